package integration

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

var (
	smallest = ration.WithBatch(ration.Batch{Items: 1, Bytes: 1, Runs: 1})
	oneRun   = ration.WithBatch(ration.Batch{Runs: 1})
)

// variants are the ways in which histories are played.
var variants = []variant{
	{name: "default bounds", stores: 1},
	{name: "one run at a time", stores: 1, opts: []ration.Option{oneRun}},
	{name: "smallest bounds", stores: 1, opts: []ration.Option{smallest}},
	{name: "the client keeps deadlines", stores: 1, obedient: true},
	{name: "two instances", stores: 2},
	{name: "two instances, one run at a time, the client keeps deadlines", stores: 2, obedient: true, opts: []ration.Option{oneRun}},
	{name: "without batching", stores: 2, opts: []ration.Option{ration.WithoutBatching()}, alone: true},
	{name: "callers leave", stores: 1, quit: true},
	{name: "callers leave two instances, smallest bounds", stores: 2, opts: []ration.Option{smallest}, quit: true},
	{name: "connections are cut", stores: 1, opts: []ration.Option{oneRun}, cuts: true},
	{name: "connections are cut, the client keeps deadlines", stores: 1, obedient: true, cuts: true},
}

// Concurrent calls are answered as some serial order of them would have been: to the unit and to
// the microsecond, by every strategy, however runs are cut, on one instance or two, and
// whether or not other callers leave or connections break.
func TestHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	for kind, start := range servers {
		for name, st := range strategies {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				srv := start(t)
				var shared tally
				for _, v := range variants {
					t.Run(v.name, func(t *testing.T) {
						sent := newStage(t, srv, st, v).playMany(seeded(t), histories(kind))
						if !v.alone {
							shared = shared.add(sent)
						}
					})
				}
				// Which calls meet is chance: all variants together must have merged some.
				require.Less(t, shared.runs, shared.calls)
				require.Less(t, shared.items, shared.calls)
				require.Greater(t, shared.most, 1, "no calls became one item")
			})
		}
	}
}

// newStage gives each instance a client of its own.
func newStage(t *testing.T, srv server, st strategy, v variant) stage {
	s := stage{t: t, st: st, srv: srv, v: v}
	addr := srv.Addr()
	if v.cuts {
		s.proxy = newProxy(t, addr)
		addr = s.proxy.Addr()
	}
	for range v.stores {
		rdb := client(t, addr, obedient(v.obedient), func(o *redis.Options) {
			if v.cuts {
				o.ReadTimeout = time.Second // for replies that are lost on a connection that stays
			}
		})
		s.clients = append(s.clients, rdb)
		s.watches = append(s.watches, watched(&watch{st: st}, rdb))
	}
	return s
}

// histories is how many are played per variant, server and strategy; RATION_HISTORIES is for
// soaking. A Redis in memory is slow.
func histories(kind string) int {
	if n, err := strconv.Atoi(os.Getenv("RATION_HISTORIES")); err == nil {
		return n
	}
	if kind == "miniredis" {
		return 4
	}
	return 8
}

// playMany plays histories and demands that calls went alone where the variant has it so. It
// returns what was sent.
func (s stage) playMany(rng *rand.Rand, histories int) tally {
	t := s.t
	var calls, lost int64
	for i := range histories {
		p := newPlay(s, rng)
		if i == 0 { // equal calls alone, so that some become one item for certain
			p = newPlay(s, rng, []ration.Limit{ration.PerHour(40)})
			p.menu = []input{{op: ration.OpAllow, key: "a", n: 1}}
		}
		p.run()
		p.requireLegal()
		calls, lost = calls+p.calls, lost+p.lost
	}
	var sent tally
	for _, w := range s.watches {
		sent = sent.add(w.tally())
	}
	t.Logf("%d histories, %d calls, %d more unknown: %d runs of %d items for %d calls, at most %d in one",
		histories, calls, lost, sent.runs, sent.items, sent.calls, sent.most)
	if s.v.alone {
		require.EqualValues(t, calls, sent.runs)
		require.Equal(t, 1, sent.most)
	}
	return sent
}

// A check that can't fail would be none: each wrong answer, put into a sound
// history, is found. (Equal calls alone, so that no other order can explain it.)
func TestWrongHistoriesAreFound(t *testing.T) {
	t.Parallel()
	faults := map[string]func(d *ration.Decision){
		"one more remains":   func(d *ration.Decision) { d.Remaining++ },
		"one less remains":   func(d *ration.Decision) { d.Remaining-- },
		"a µs more to wait":  func(d *ration.Decision) { d.RetryAfter++ },
		"a µs more to reset": func(d *ration.Decision) { d.ResetAfter++ },
		"one more granted":   func(d *ration.Decision) { d.Granted++ },
		"another verdict":    func(d *ration.Decision) { d.Allowed = !d.Allowed },
		"another limit":      func(d *ration.Decision) { d.Limit.Units++ },
		"another source":     func(d *ration.Decision) { d.Source = ration.Ring },
		"states of limits":   func(d *ration.Decision) { d.Limits = append(d.Limits, ration.LimitState{}) },
	}
	rng := seeded(t)
	each(t, func(t *testing.T, st strategy) {
		s := newStage(t, servers["miniredis"](t), st, variants[0])
		for name, fault := range faults {
			p := newPlay(s, rng, []ration.Limit{ration.PerHour(30)})
			p.menu, p.short = []input{{op: ration.OpAllow, key: "a", n: 1}}, true
			p.run()
			p.requireLegal()
			op := p.anyAdmitted()
			o := op.Output.(output)
			fault(&o.d)
			op.Output = o
			require.Equal(t, porcupine.Illegal, p.check(), "%s in %+v", name, op)
		}
	})
}

// A limiter with a fault that shows among concurrent calls only is found: here one that
// charges an admitted call once more if another is under way.
func TestFaultyLimitersAreFound(t *testing.T) {
	t.Parallel()
	rng := seeded(t)
	each(t, func(t *testing.T, st strategy) {
		s := newStage(t, servers["miniredis"](t), st, variants[0])
		p := newPlay(s, rng, []ration.Limit{ration.PerHour(30)}, []ration.Limit{ration.PerHour(50)})
		p.menu = []input{{op: ration.OpAllow, key: "a", n: 1}, {op: ration.OpPeek, key: "a"}}
		sound := p.limiters[0]
		var under atomic.Int64
		p.limiters[0] = ration.LimiterFunc(func(ctx context.Context, r ration.Request) (ration.Decision, error) {
			others := under.Add(1) - 1
			defer under.Add(-1)
			d, err := r.Do(ctx, sound)
			if d.Granted > 0 && others > 0 {
				_, err = r.Do(ctx, sound)
			}
			return d, err
		})
		p.crowd()
		require.Equal(t, porcupine.Illegal, p.check())
		p.limiters[0], p.history = sound, nil
		p.menu = []input{{op: ration.OpAllow, key: "b", n: 1}, {op: ration.OpPeek, key: "b"}}
		p.crowd()
		p.requireLegal()
	})
}
