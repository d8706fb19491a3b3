package ration_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

func TestB46BoundaryBurst(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(10))
		tl.at(59.9)
		tl.letters("AAAAAAAAAA")
		tl.at(60)
		switch strategy {
		case "fixed": // the burst its doc comment states
			tl.letters("AAAAAAAAAAD")
		case "log", "compact":
			require.Equal(t, seconds(59.9), tl.letters("DDDDDDDDDD").RetryAfter)
		case "buckets": // the slot of 59.9 is [57, 60); it's counted up to 120
			require.Equal(t, time.Minute, tl.letters("DDDDDDDDDD").RetryAfter)
			tl.at(119.999999)
			tl.letters("D")
			tl.at(120)
			tl.letters("A")
		}
	})
}

// After an answer with Remaining r, r calls pass at that instant and no more.
func TestB48RemainingIsTheNextDecision(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	r := backends["redis"](t) // in memory it would take much longer
	store := r.store(t)
	const histories = 1500 // of each of seven kinds
	limiters := map[string]func(ration.Policy) (ration.Limiter, error){
		"ring": func(p ration.Policy) (ration.Limiter, error) { return ration.NewLocal(p, ration.WithClock(r.Now)) },
	}
	for name, newLimiter := range strategies {
		limiters[name] = func(p ration.Policy) (ration.Limiter, error) { return newLimiter(store, p) }
	}
	for name, newLimiter := range limiters {
		t.Run(name, func(t *testing.T) {
			for i := range histories {
				l, err := newLimiter(ration.Policy{
					Name: fmt.Sprintf("p%d", i), Slots: 1 + rng.IntN(9),
					Limits: []ration.Limit{ration.Per(1+rng.Int64N(4), time.Duration(1+rng.Int64N(2000))*time.Millisecond)},
				})
				require.NoError(t, err)
				var d ration.Decision
				for range 1 + rng.IntN(4) {
					r.Advance(time.Duration(rng.Int64N(900)) * time.Millisecond)
					d, err = l.AllowN(ctx, "u", 1+rng.Int64N(3))
					require.NoError(t, err)
				}
				for range d.Remaining {
					d, err := l.Allow(ctx, "u")
					require.NoError(t, err)
					require.True(t, d.Allowed)
				}
				d, err = l.Allow(ctx, "u")
				require.NoError(t, err)
				require.False(t, d.Allowed)
			}
		})
	}
}

// With two tiers too what remains is never overstated. It may be understated, as Redis is asked what it has only now
// and then.
func TestB48RemainingOfTwoTiers(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	inBubble(t, func(w *world) {
		store := w.store(ration.WithTimeout(time.Minute))
		sources := map[ration.Source]int{}
		for i := range 200 {
			strategy := strings.Fields(leased)[i%3]
			p := ration.Policy{Name: fmt.Sprintf("p%d", i), Slots: 1 + rng.IntN(3), Limits: []ration.Limit{
				ration.Per(20+rng.Int64N(60), time.Duration(100+rng.Int64N(2000))*time.Millisecond),
			}}
			l, err := ration.NewTwoTier(w.of(strategy, store, p), ration.WithInstances(1), ration.WithHold(10*time.Millisecond))
			require.NoError(t, err)
			var d ration.Decision
			for range 10 + rng.IntN(30) {
				pass(time.Duration(rng.Int64N(2000)) * time.Microsecond)
				d = must(l.AllowN(ctx, "u", 1+rng.Int64N(2)))
				sources[d.Source]++
				synctest.Wait() // a block that's on its way has units that no call gets meanwhile
			}
			d = must(l.Peek(ctx, "u"))
			for n := range d.Remaining {
				d := must(l.Allow(ctx, "u"))
				synctest.Wait()
				require.True(t, d.Allowed, "%s: call %d", strategy, n)
				sources[d.Source]++
			}
		}
		require.Greater(t, sources[ration.Lease], 300, sources)
	})
}

func TestB50PollersAtFixedIntervals(t *testing.T) {
	on(t, "buckets", func(t *testing.T, b backend, strategy string) {
		tenth := func(units int64) *timeline {
			return policyTimeline(t, b, strategy, ration.Policy{Name: "p", Slots: 10, Limits: []ration.Limit{ration.PerSecond(units)}})
		}
		tl := tenth(3)
		for s := range 31 {
			tl.at(float64(s))
			tl.letters("A")
		}
		tl = tenth(5)
		tl.letters("AAAAADDDDD")
		for s := 1.5; s < 60; s += 0.5 {
			tl.at(s)
			tl.letters("A")
		}
		for k := 3; k <= 25; k++ {
			tl := tenth(5)
			tl.letters("AAAAADDDDD")
			for i := 1; i < 40; i++ {
				s := float64(i*k) / 10
				if tl.at(s); s >= 1.2 {
					tl.letters("A")
				}
			}
		}
	})
}

func TestB51TrimmedBeforeCounted(t *testing.T) {
	on(t, "log compact", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerSecond(2))
		tl.letters("AA")
		tl.at(1.001)
		tl.letters("A")
		tl = newTimeline(t, b, strategy, ration.Per(2, 10*time.Second))
		for s := 0; s < 600; s += 6 {
			tl.at(float64(s))
			tl.letters("A")
			require.LessOrEqual(t, b.rdb.ZCard(ctx, tl.keys()[0]).Val(), int64(2+1), "two entries and the total")
		}
	})
}

func TestB53ResetOnTheCountersGrid(t *testing.T) {
	on(t, "fixed", func(t *testing.T, b backend, strategy string) {
		day := 24 * time.Hour
		for _, window := range []time.Duration{7 * time.Second, 11 * time.Second, 13 * time.Minute, 7 * day} {
			tl := newTimeline(t, b, strategy, ration.Per(1, window))
			tl.start = tl.start.Add(4321 * time.Millisecond) // anywhere in a window
			for i := range 57 {
				at := time.Duration(i) * window / 14
				tl.b.SetTime(tl.start.Add(at.Truncate(time.Microsecond)))
				if d, err := tl.l.Peek(ctx, "u"); err != nil || d.Allowed {
					require.NoError(t, err)
					tl.letters("A")
				}
				now := tl.b.Now()
				d := tl.letters("D")
				tl.b.SetTime(now.Add(d.RetryAfter - time.Millisecond))
				tl.letters("D")
				tl.b.SetTime(now.Add(d.RetryAfter))
				require.True(t, must(tl.l.Peek(ctx, "u")).Allowed)
				tl.b.SetTime(now)
			}
		}
	})
}

func TestB56OlderTimeAfterANewer(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerSecond(3))
		tl.at(1)
		tl.letters("A")
		tl.at(0.999)
		d := tl.letters("A")
		if strategy == "fixed" || strategy == "buckets" { // there the older entry is one, and counts as one
			require.EqualValues(t, 1, d.Remaining)
		}
		require.Positive(t, d.ResetAfter)
		tl.at(1)
		tl.letters("AD")
	})
}

func TestB57WindowsThatSlotsDontDivide(t *testing.T) {
	on(t, "buckets", func(t *testing.T, b backend, strategy string) {
		for _, c := range []struct {
			window time.Duration
			slots  int
			ok     bool
		}{
			{time.Second, 7, true}, {time.Second, 0, true}, {time.Millisecond, 1000, true}, {7 * time.Hour, 999, true},
			{time.Nanosecond, 10, false}, {time.Second, -1, false}, {time.Millisecond, 1_000_000, false}, {24 * time.Hour, 100_000, false},
		} {
			p := ration.Policy{Name: "p", Slots: c.slots, Limits: []ration.Limit{ration.Per(2, c.window)}}
			_, err := strategies[strategy](b.store(t), p)
			if !c.ok {
				require.ErrorIs(t, err, ration.ErrInvalidPolicy)
				continue
			}
			tl := policyTimeline(t, b, strategy, p)
			tl.letters("AAD")
			b.Advance(c.window - time.Microsecond)
			d := tl.letters("D")
			require.LessOrEqual(t, d.RetryAfter, oneSlot(p, c.window)+time.Microsecond)
			b.Advance(d.RetryAfter)
			tl.letters("AAD")
		}
	})
}

func TestB59ResetClearsAllKeys(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(5))
		_, err := tl.l.AllowN(ctx, "neighbour", 3)
		require.NoError(t, err)
		neighbours := len(tl.keys())
		for s := range 5 {
			tl.at(float64(s) * 7)
			tl.letters("A")
		}
		if strategy == "token" {
			tl.letters("AA") // two have come back in 28 s
		}
		tl.letters("D")
		require.NoError(t, tl.l.Reset(ctx, "u"))
		require.Len(t, tl.keys(), neighbours)
		tl.letters("AAAAAD")
		d, err := tl.l.Peek(ctx, "neighbour")
		require.NoError(t, err)
		want := map[string]int64{"token": 4}[strategy] // two of three have come back, and a part
		require.Equal(t, max(2, want), d.Remaining)
	})
}
