package ration_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

func TestB48WeightsInRemaining(t *testing.T) {
	on(t, "counter", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(100))
		tl.at(-30)
		tl.costs(50, "A")
		tl.at(6)
		tl.costs(10, "A")
		require.EqualValues(t, 45, must(tl.l.Peek(ctx, "u")).Remaining, "100 - 10 - 50 * 54/60")
		require.EqualValues(t, 45, tl.costs(46, "D").Remaining)
		require.Zero(t, tl.costs(45, "A").Remaining)
		tl.letters("D")
	})
}

func TestB54LowLimitsKeepTheFraction(t *testing.T) {
	on(t, "counter", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerSecond(1))
		tl.at(0.9)
		tl.letters("A")
		tl.at(1.05)
		require.Equal(t, seconds(0.95), tl.letters("D").RetryAfter)
		tl.at(1.999999)
		require.Equal(t, time.Microsecond, tl.letters("D").RetryAfter)
		tl.at(2)
		tl.letters("A")

		tl = newTimeline(t, b, strategy, ration.PerSecond(3))
		tl.at(0.9)
		tl.letters("AAA")
		tl.at(1.05)
		require.Equal(t, seconds(1.0/3-0.05)+time.Microsecond, tl.letters("D").RetryAfter, "two thirds of a second before the turn, not a µs sooner")
	})
}

// The time to wait is exact before the turn and across it.
func TestCounterRetryAfter(t *testing.T) {
	on(t, "counter", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(10))
		tl.at(-1)
		tl.costs(10, "A")
		tl.at(30)
		tl.costs(5, "A")
		for _, c := range []struct {
			n    int64
			at   float64
			left int64
		}{
			{1, 36, 1}, // 10 weigh 4 then, and 5 are in this minute
			{5, 60, 5}, // the 5 weigh all at the turn
			{7, 84, 7}, // the 5 weigh 3
			{10, 120, 10},
		} {
			d := tl.costs(c.n, "D")
			require.Equal(t, seconds(c.at-30), d.RetryAfter)
			require.Equal(t, seconds(120-30), d.ResetAfter)
			tl.at(c.at - 0.000001)
			require.Less(t, must(tl.l.Peek(ctx, "u")).Remaining, c.n)
			tl.at(c.at)
			require.Equal(t, c.left, must(tl.l.Peek(ctx, "u")).Remaining)
			tl.at(30)
		}
	})
}

// Units are given back as they were charged: of a window that counts in part all of them.
func TestCounterRefunds(t *testing.T) {
	on(t, "counter", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(10))
		refund := func(n, granted, remaining int64) {
			t.Helper()
			d := must(tl.l.Refund(ctx, "u", n))
			require.Equal(t, granted, d.Granted)
			require.Equal(t, remaining, d.Remaining)
		}
		value := func() string { return b.rdb.Get(ctx, tl.keys()[0]).Val() }
		window := tl.start.UnixMicro() / time.Minute.Microseconds()
		tl.at(-1)
		tl.costs(8, "A")
		tl.at(30)
		tl.costs(3, "A") // and 4 of the minute before
		require.Equal(t, fmt.Sprintf("%d 3 8", window), value())
		refund(2, 2, 5)
		refund(3, 3, 7) // one of this minute, then two of the last, which count half
		require.Equal(t, fmt.Sprintf("%d 6 0", window-1), value(), "the minute before is the latest with units in it")
		tl.requireLifetimes(30 * time.Second)
		refund(1<<53, 6, 10)
		require.Empty(t, tl.keys())
		refund(1, 0, 10)
		require.Empty(t, tl.keys())
	})
}

// All a subject needs is one string, which lives until nothing can count; what's refused writes nothing.
func TestCounterStoresOneString(t *testing.T) {
	on(t, "counter", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(5))
		tl.at(59.9995)
		tl.letters("AAAAA")
		require.Len(t, tl.keys(), 1)
		key := tl.keys()[0]
		require.Equal(t, tl.prefix+":p:sc1:60000000:{u}", key)
		require.Equal(t, "string", b.rdb.Type(ctx, key).Val())
		require.Equal(t, 60001*time.Millisecond, b.rdb.PTTL(ctx, key).Val(), "60.0005 s, rounded up")
		before := tl.stored()
		tl.letters("DDDDD")
		require.Equal(t, before, tl.stored())
		tl.at(90)
		before = tl.stored()
		tl.costs(3, "D")
		require.Equal(t, before, tl.stored())
		tl.costs(2, "A")
		require.Equal(t, 90*time.Second, b.rdb.PTTL(ctx, key).Val())
		require.Less(t, len(b.rdb.Get(ctx, key).Val()), 24)
		if expires(b) {
			tl.at(180.001)
			require.Empty(t, tl.keys())
		}
	})
}

// A value put there by hand counts as none and is written over; one of long ago likewise.
func TestCounterForeignValues(t *testing.T) {
	on(t, "counter", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(2))
		tl.letters("A")
		key := tl.keys()[0]
		window := tl.start.UnixMicro() / time.Minute.Microseconds()
		for _, value := range []string{"", "2", "x", "1 2", "1 2 3 4", "1 -2 3", fmt.Sprintf("%d 9", window), fmt.Sprintf("%d 9 9", window-2)} {
			require.NoError(t, b.rdb.Set(ctx, key, value, 0).Err())
			tl.letters("AAD")
			tl.requireLifetimes(2 * time.Minute)
		}
	})
}

// A clock that is set back inside of a window makes the one before count for more again, which
// may be more than any number that's exact.
func TestCounterClockSetBackInAWindow(t *testing.T) {
	on(t, "counter", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(1<<53))
		tl.at(-1)
		tl.costs(1<<53, "A")
		tl.at(59.999999)
		left := must(tl.l.Peek(ctx, "u")).Remaining
		require.EqualValues(t, 1<<53-(1<<53+60_000_000-1)/60_000_000, left)
		require.Zero(t, tl.costs(left, "A").Remaining)
		tl.letters("D")
		for _, s := range []float64{30, 0, -1, -3600} {
			tl.at(s)
			d := tl.letters("D")
			require.Zero(t, d.Remaining)
			require.Equal(t, seconds(120-s), d.ResetAfter)
		}
		d := must(tl.l.Refund(ctx, "u", 1<<53))
		require.EqualValues(t, 1<<53, d.Granted, "all of one window, and some of the one before")
	})
}

func TestCounterIsNotLeased(t *testing.T) {
	l, err := ration.NewSlidingCounter(rationtest.NewRedis(t).Store(), ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(5)}})
	require.NoError(t, err)
	tier, err := ration.NewTwoTier(l)
	require.ErrorIs(t, err, ration.ErrInvalidClient)
	require.Nil(t, tier)
}

// boundOf is what the doc comment of NewSlidingCounter promises for any span of a window.
func boundOf(l ration.Limit) int64 {
	w := l.Window.Microseconds()
	return 2*l.Units - (2*l.Units+w-1)/w
}

// The worst that the doc comment states happens: all at the end of a window, and again at the
// end of the next, a microsecond less than a window later.
func TestCounterWorstCase(t *testing.T) {
	on(t, "counter", func(t *testing.T, b backend, strategy string) {
		for _, c := range []struct {
			limit ration.Limit
			bound int64
		}{
			{ration.PerMinute(10), 19},
			{ration.PerMinute(1), 1},
			{ration.PerHour(1_000_000), 1_999_999},
			{ration.Per(500, time.Millisecond), 999},
			{ration.Per(1500, time.Millisecond), 2997},
			{ration.PerSecond(1 << 53), 1<<54 - 18014398510},
		} {
			tl := newTimeline(t, b, strategy, c.limit)
			b.SetTime(tl.start.Add(-time.Microsecond))
			first := must(tl.l.AllowUpTo(ctx, "u", c.limit.Units))
			b.Advance(c.limit.Window - time.Microsecond)
			second := must(tl.l.AllowUpTo(ctx, "u", c.limit.Units))
			require.Equal(t, c.bound, boundOf(c.limit))
			require.Equal(t, c.bound, first.Granted+second.Granted, "%v", c.limit)
			tl.letters("D")
		}
	})
}

// No span of a window holds more than the bound, and none of the grid more than the limit, on random
// bursts that gather at the windows' ends.
func TestCounterKeepsItsBound(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	r := rationtest.NewRedis(t)
	store := r.Store()
	most := 0.0
	for i := range 150 {
		limit := ration.Per(1+rng.Int64N(40), time.Duration(1+rng.Int64N(3))*time.Millisecond)
		l, err := ration.NewSlidingCounter(store, ration.Policy{Name: fmt.Sprintf("p%d", i), Limits: []ration.Limit{limit}})
		require.NoError(t, err)
		window := limit.Window.Microseconds()
		type use struct{ at, n int64 }
		var uses []use
		for range 40 {
			now := r.Now().UnixMicro()
			step := rng.Int64N(window)
			if rng.IntN(2) == 0 {
				step = window - now%window - 1 - rng.Int64N(3)
			}
			r.Advance(time.Duration(max(0, step)) * time.Microsecond)
			now = r.Now().UnixMicro()
			uses = append(uses, use{now, must(l.AllowUpTo(ctx, "u", 1+rng.Int64N(limit.Units))).Granted})
			span, cell := int64(0), int64(0)
			for _, u := range uses {
				if u.at > now-window {
					span += u.n
				}
				if u.at/window == now/window {
					cell += u.n
				}
			}
			require.LessOrEqual(t, cell, limit.Units)
			require.LessOrEqual(t, span, boundOf(limit))
			if limit.Units >= 10 { // the bound of 1 is 1
				most = max(most, float64(span)/float64(boundOf(limit)))
			}
		}
	}
	t.Logf("the fullest span held %.3f of the bound", most)
	require.Greater(t, most, 0.9, "the bursts come near the bound")
}

// A caller that never stops asking gets a unit less than its limit in each window but
// the first, since a share is never rounded down.
func TestCounterEagerCaller(t *testing.T) {
	on(t, "counter", func(t *testing.T, b backend, strategy string) {
		for units, want := range map[int64][]int64{1: {1, 0, 1, 0, 1}, 2: {2, 1, 1, 1, 1}, 10: {10, 9, 9, 9, 9}} {
			tl := newTimeline(t, b, strategy, ration.PerSecond(units))
			var got []int64
			for window := range 5 {
				got = append(got, 0)
				for i := range 100 {
					tl.at(float64(window) + float64(i)/100)
					got[window] += must(tl.l.Allow(ctx, "u")).Granted
				}
			}
			require.Equal(t, want, got, "%d units", units)
		}
	})
}
