package ration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
	"github.com/rationgo/ration/rationtest"
)

// compactHead is what a compact log takes beside its records of 8 bytes.
const compactHead = 43

// realCompact is a timeline of the compact log on a redis-server.
func realCompact(t *testing.T, limits ...ration.Limit) *timeline {
	t.Helper()
	s := redistest.Start(t, redistest.WithClock(rationtest.Epoch))
	return newTimeline(t, backend{s, s.Client(t)}, "compact", limits...)
}

// Never more than 16 bytes a call of one unit, nor than an eighth of the sliding log: while a log of
// 3,000 is filled, and while its entries end and others come.
func TestCompactLogIsSmall(t *testing.T) {
	tl := realCompact(t, ration.PerMinute(3000))
	sliding := newTimeline(t, tl.b, "log", ration.PerMinute(3000))
	memory := func(tl *timeline) int64 {
		bytes, err := tl.b.rdb.MemoryUsage(ctx, tl.keys()[0], 0).Result()
		require.NoError(t, err)
		return bytes
	}
	most, other := int64(0), int64(0)
	for i := range 9000 {
		tl.at(float64(i) * 0.02)
		live := int64(min(i+1, 3000))
		require.EqualValues(t, 3000-live, tl.letters("A").Remaining)
		if i < 3000 {
			must(sliding.l.Allow(ctx, "u"))
		}
		if i >= 250 && i%50 == 0 || i == 2999 {
			require.LessOrEqual(t, memory(tl), 16*live, "%d entries", live)
		}
		if i >= 2999 && i%50 == 49 {
			most = max(most, memory(tl))
		}
		if i == 2999 {
			other = memory(sliding)
		}
	}
	require.Less(t, most, other/8)
	t.Logf("at most %d bytes of 3,000 calls, %.1f each; the sliding log %d", most, float64(most)/3000, other)
}

// A charge is a record for each digit of its units in base 16 but 0, and several equal calls are one charge.
func TestCompactLogRecords(t *testing.T) {
	tl := realCompact(t, ration.PerMinute(ration.MaxUnits))
	for _, c := range []struct{ units, records int64 }{
		{1, 1}, {15, 1}, {16, 1}, {17, 2}, {64, 1}, {40_000, 3}, {1 << 52, 1}, {1<<53 - 1, 14}, {1 << 53, 1},
	} {
		require.NoError(t, tl.l.Reset(ctx, "u"))
		require.EqualValues(t, ration.MaxUnits-c.units, tl.costs(c.units, "A").Remaining)
		require.EqualValues(t, compactHead+8*c.records, tl.b.rdb.StrLen(ctx, tl.keys()[0]).Val(), "%d units", c.units)
		require.EqualValues(t, c.units, must(tl.l.Refund(ctx, "u", ration.MaxUnits)).Granted)
		require.Empty(t, tl.keys())
	}
}

// The answers on a log of thousands are the sliding log's, whatever happens to it.
func TestCompactLogAnswersAsTheSlidingLog(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := redistest.Start(t, redistest.WithClock(rationtest.Epoch))
	for _, costs := range []int64{1, 3, 100, 1 << 40} {
		t.Run(fmt.Sprint("costs up to ", costs), func(t *testing.T) {
			newLogPair(t, backend{s, s.Client(t)}, rng, costs).play()
		})
	}
}

// logPair is both logs of one subject, asked the same.
type logPair struct {
	*testing.T
	b     backend
	rng   *rand.Rand
	costs int64
	units int64
	logs  [2]ration.Limiter
	start time.Time
}

func newLogPair(t *testing.T, b backend, rng *rand.Rand, costs int64) *logPair {
	p := &logPair{T: t, b: b, rng: rng, costs: costs, units: 1500 * costs, start: b.Now()}
	store := b.store(t, ration.WithPrefix(freshPrefix()))
	policy := ration.Policy{Name: "p", LimitsFor: func(context.Context, string) ([]ration.Limit, error) {
		return []ration.Limit{ration.PerMinute(p.units), ration.Per(2*p.units, 90*time.Second)}[:1+int(costs%2)], nil
	}}
	for i, name := range []string{"log", "compact"} {
		l, err := strategies[name](store, policy)
		require.NoError(t, err)
		p.logs[i] = l
	}
	return p
}

// play goes through some windows. In the first the clock is set back, too, where no entry has ended.
func (p *logPair) play() {
	units := p.units
	for i := range 6000 {
		step := time.Duration(p.rng.Int64N(50_000)) * time.Microsecond
		switch p.rng.IntN(300) {
		case 0:
			step = time.Duration(p.rng.Int64N(int64(20 * time.Second))).Truncate(time.Microsecond)
		case 1:
			p.units = units/2 + p.rng.Int64N(units)
		}
		if past := p.b.Now().Sub(p.start); past < 50*time.Second && i%100 == 99 {
			step = -min(past, step*time.Duration(p.rng.IntN(100)))
		}
		p.b.Advance(step)
		r := ration.Request{Op: ration.OpAllow, Key: "u", N: 1 + p.rng.Int64N(p.costs)}
		switch p.rng.IntN(40) {
		case 0, 1:
			r.Op = ration.OpAllowUpTo
		case 2:
			r.Op = ration.OpPeek
		case 3:
			r.Op = ration.OpRefund
			if p.rng.IntN(10) == 0 {
				r.N = p.rng.Int64N(p.units)
			}
		case 4:
			r.N = 1 + p.rng.Int64N(p.units)
			if i < 3000 && p.rng.IntN(20) > 0 { // mostly refused
				r.N = p.units
			}
		}
		want, got := must(r.Do(ctx, p.logs[0])), must(r.Do(ctx, p.logs[1]))
		require.Equal(p, want, got, "step %d, %v of %d", i, r.Op, r.N)
	}
}

// The key lives until the window of its newest entry is over, whatever wrote it last.
func TestCompactLogLifetimes(t *testing.T) {
	on(t, "compact", func(t *testing.T, b backend, strategy string) {
		if !expires(b) {
			t.Skip("lifetimes stand still there")
		}
		for _, many := range []int{0, 100} {
			tl := newTimeline(t, b, strategy, ration.Per(200, time.Minute+time.Microsecond))
			lives := func(want time.Duration) {
				t.Helper()
				require.Equal(t, want, b.rdb.PTTL(ctx, tl.keys()[0]).Val())
			}
			whole := time.Minute + time.Millisecond // rounded up
			for range many {
				tl.letters("A")
			}
			tl.letters("A")
			lives(whole)
			tl.at(10)
			tl.costs(20, "A")
			lives(whole)
			tl.at(15)
			tl.costs(200, "D")
			must(tl.l.Peek(ctx, "u"))
			lives(whole - 5*time.Second)
			must(tl.l.Refund(ctx, "u", 3))
			lives(whole - 5*time.Second)
			must(tl.l.Refund(ctx, "u", 17))
			lives(whole - 15*time.Second) // the newest is the first now
			tl.at(12)
			tl.letters("A")
			tl.at(11) // set back
			tl.letters("A")
			lives(whole + time.Second)
		}
	})
}

// What charges nothing leaves the value and its lifetime as they are, with entries that have ended in it, too.
func TestCompactLogIsLeftAlone(t *testing.T) {
	on(t, "compact", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(100))
		for i := range 100 {
			tl.at(float64(i) / 4)
			tl.costs(1, "A")
		}
		tl.at(70) // 41 have ended
		before, key := tl.stored(), tl.keys()[0]
		require.EqualValues(t, 41, must(tl.l.Peek(ctx, "u")).Remaining)
		d := tl.costs(50, "D")
		require.EqualValues(t, 41, d.Remaining)
		require.Equal(t, seconds(12.25-10), d.RetryAfter)
		tl.costs(101, "D")
		require.EqualValues(t, 0, must(tl.l.Refund(ctx, "v", 5)).Granted)
		require.Equal(t, before, tl.stored())
		require.NoError(t, b.rdb.Persist(ctx, key).Err())
		tl.costs(50, "D")
		require.Equal(t, seconds(24.75+60-70), b.rdb.PTTL(ctx, key).Val(), "a lost lifetime comes back")
	})
}

// A value of another kind, or one that was cut off, is an error and stays as it is.
func TestCompactLogTakesNothingElse(t *testing.T) {
	on(t, "compact", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(100))
		tl.store = b.store(t, ration.WithPrefix(tl.prefix), noBreaker)
		tl.l = tl.limiter(ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(100)}})
		for range 50 {
			tl.letters("A")
			tl.b.Advance(time.Millisecond)
		}
		key := tl.keys()[0]
		whole := b.rdb.Get(ctx, key).Val()
		for _, value := range []string{"5", "\x01", strings.Repeat("1234567 ", 50), whole[1:], "\x00" + whole[1:], whole[:compactHead-1]} {
			require.NoError(t, b.rdb.Set(ctx, key, value, time.Minute).Err())
			for _, r := range []ration.Request{{Op: ration.OpAllow, N: 1}, {Op: ration.OpPeek}, {Op: ration.OpRefund, N: 1}} {
				r.Key = "u"
				d, err := r.Do(ctx, tl.l)
				require.ErrorIs(t, err, ration.ErrUnavailable)
				require.Zero(t, d)
			}
			require.Equal(t, value, b.rdb.Get(ctx, key).Val())
		}
		// Without its end what needs that can't be told: the waiting time for 90, what is given back.
		require.NoError(t, b.rdb.Set(ctx, key, whole[:compactHead+8*35], time.Minute).Err())
		for _, r := range []ration.Request{{Op: ration.OpAllow, N: 90}, {Op: ration.OpRefund, N: 1}} {
			r.Key = "u"
			_, err := r.Do(ctx, tl.l)
			require.ErrorIs(t, err, ration.ErrUnavailable)
			require.ErrorContains(t, err, "a compact log that is cut off")
		}
		require.NoError(t, b.rdb.Del(ctx, key).Err())
		require.NoError(t, b.rdb.RPush(ctx, key, "1").Err())
		_, err := tl.l.Allow(ctx, "u")
		require.ErrorIs(t, err, ration.ErrUnavailable)
		require.NoError(t, tl.l.Reset(ctx, "u"))
		tl.letters("A")
	})
}

func TestCompactLogHasNoLeases(t *testing.T) {
	r := rationtest.NewRedis(t)
	l, err := ration.NewCompactLog(r.Store(), ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(5)}})
	require.NoError(t, err)
	for _, opt := range []ration.TierOption{nil, ration.WithShare(0.5)} {
		_, err = ration.NewTwoTier(l, opt)
		require.ErrorIs(t, err, ration.ErrInvalidClient)
	}
}
