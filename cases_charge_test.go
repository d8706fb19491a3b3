package ration_test

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/fakeredis"
)

func TestB14RefusedCallsAreNotCounted(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := policyTimeline(t, b, strategy, ration.Policy{Name: "p", Slots: 10, Limits: []ration.Limit{ration.Per(2, 2*time.Second)}})
		var admitted []float64
		for i := range 100 {
			tl.at(float64(i) / 10)
			d, err := tl.l.Allow(ctx, "u")
			require.NoError(t, err)
			if d.Allowed {
				admitted = append(admitted, float64(i)/10)
			}
		}
		if strategy == "token" {
			require.Equal(t, []float64{0, 0.1, 1, 2, 3, 4, 5, 6, 7, 8, 9}, admitted)
			return
		}
		if strategy == "counter" { // after the first window one in each: a share is never rounded down
			require.Equal(t, []float64{0, 0.1, 3, 4, 6, 8}, admitted)
			return
		}
		if strategy != "buckets" {
			require.Equal(t, []float64{0, 0.1, 2, 2.1, 4, 4.1, 6, 6.1, 8, 8.1}, admitted)
			return
		}
		require.GreaterOrEqual(t, len(admitted), 8)
		for i := 1; i < len(admitted); i++ {
			require.LessOrEqual(t, admitted[i]-admitted[i-1], 2.2+1e-9)
		}
	})
}

func TestB16CostAboveTheLimit(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(300))
		d := tl.costs(301, "D")
		require.Equal(t, ration.Never, d.RetryAfter)
		require.EqualValues(t, 300, d.Remaining)
		require.EqualValues(t, 299, tl.letters("A").Remaining)
		fresh, err := tl.l.AllowN(ctx, "v", 300)
		require.NoError(t, err)
		require.True(t, fresh.Allowed)
	})
}

func TestB17MixedCostsInTheLog(t *testing.T) {
	on(t, "log compact", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(10))
		tl.costs(7, "A")
		tl.at(1)
		tl.costs(2, "A")
		tl.at(2)
		tl.costs(1, "A")
		tl.at(3)
		require.Equal(t, 57*time.Second, tl.costs(1, "D").RetryAfter)
		require.Equal(t, 58*time.Second, tl.costs(8, "D").RetryAfter)
		tl.at(60)
		tl.costs(7, "A")
	})
}

func TestB18NegativeCosts(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(5))
		tl.letters("AA")
		before := len(tl.keys())
		for _, key := range []string{"u", "fresh"} {
			for _, n := range []int64{-3, math.MinInt64} {
				_, err := tl.l.AllowN(ctx, key, n)
				require.ErrorIs(t, err, ration.ErrInvalidCost)
			}
		}
		require.Len(t, tl.keys(), before)
		tl.letters("AAAD")
	})
}

func TestB19RefundWhenNothingIsLeft(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(1))
		tl.letters("AD")
		d, err := tl.l.Refund(ctx, "u", 1)
		require.NoError(t, err)
		require.EqualValues(t, 1, d.Granted)
		tl.letters("AD")
	})
}

func TestB21RefusedLimitChargesNoOther(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerSecond(10), ration.PerMinute(20))
		d := tl.letters("AAAAAAAAAADDDDDDDDDDDDDDDDDDDD")
		require.EqualValues(t, 10, d.Limits[1].Remaining)
		tl.at(0.06)
		tl.letters("D")
		// When the second's ten are gone, and gone again.
		gone := map[string][2]float64{"fixed": {1, 2.2}, "log": {1, 2.2}, "buckets": {1.05, 2.2}, "counter": {2, 4}, "compact": {1, 2.2}, "token": {1, 2.2}}[strategy]
		tl.at(gone[0])
		tl.letters("AAAAAAAAAA")
		tl.at(gone[1])
		d = tl.letters("D")
		require.Equal(t, ration.PerMinute(20), d.Limit)
		require.EqualValues(t, 10, d.Limits[0].Remaining)
		switch strategy {
		case "token": // 19 4/15 are out, and a third comes back a second
			require.Equal(t, seconds(0.8), d.RetryAfter)
		case "fixed", "log", "compact":
			require.Equal(t, seconds(57.8), d.RetryAfter)
		case "counter": // three seconds into the next minute 19 of the 20 count
			require.Equal(t, seconds(59), d.RetryAfter)
		}
	})
}

func TestB23LookingCostsNothing(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(1))
		peek := func() ration.Decision {
			d, err := tl.l.Peek(ctx, "u")
			require.NoError(t, err)
			return d
		}
		for range 100 {
			require.EqualValues(t, 1, peek().Remaining)
		}
		require.Empty(t, tl.keys())
		tl.letters("A")
		tl.at(1)
		lifetime := b.rdb.PTTL(ctx, tl.keys()[0]).Val()
		first := peek()
		for range 100 {
			require.Equal(t, first, peek())
		}
		require.Equal(t, lifetime, b.rdb.PTTL(ctx, tl.keys()[0]).Val())
		require.Zero(t, first.Remaining)
		tl.at(60)
		switch strategy {
		case "buckets":
			tl.at(63)
		case "counter":
			tl.at(120)
		}
		tl.letters("A")
	})
}

func TestB24FirstCallOfAWindowIsCharged(t *testing.T) {
	on(t, "fixed log", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerSecond(2))
		for s := range 4 {
			tl.at(float64(s))
			tl.letters("AAD")
		}
	})
}

// Waiters are admitted by AllowN and by nothing else: all on the bubble's clock.
func TestB25WaitersNeedAPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fakeredis.Synctest()
		defer server.Close()
		rdb := server.Client()
		defer rdb.Close()
		store, err := ration.Open(rdb)
		require.NoError(t, err)
		defer store.Close()
		l, err := ration.NewSlidingLog(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerSecond(10)}})
		require.NoError(t, err)

		began := time.Now()
		cancelled, cancel := context.WithCancel(ctx)
		var mu sync.Mutex
		var admitted []time.Duration
		var left error
		var waiters sync.WaitGroup
		for i := range 51 {
			waiters.Go(func() {
				own := ctx
				if i == 50 {
					own = cancelled
					time.Sleep(time.Millisecond) // the fifty are first
				}
				d, err := ration.Wait(own, l, "u", 1)
				mu.Lock()
				defer mu.Unlock()
				if i == 50 {
					left = err
				} else if d.Allowed {
					admitted = append(admitted, time.Since(began))
				}
			})
		}
		time.Sleep(time.Second / 2)
		cancel()
		waiters.Wait()
		require.ErrorIs(t, left, context.Canceled)
		require.Len(t, admitted, 50)
		slices.Sort(admitted)
		for i := 10; i < 50; i++ {
			require.GreaterOrEqual(t, admitted[i]-admitted[i-10], time.Second, "waiters %d and %d", i-10, i)
		}
		require.Equal(t, 4*time.Second, admitted[49].Truncate(100*time.Millisecond))
	})
}

func TestB26EndedContextChargesNothing(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(1))
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		expired, cancel := context.WithDeadline(ctx, time.Unix(0, 0))
		defer cancel()
		d, err := tl.l.Allow(cancelled, "u")
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, d.Allowed)
		d, err = tl.l.Allow(expired, "u")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, d.Allowed)
		require.Empty(t, tl.keys())
		tl.letters("AD")
	})
}
