package ration_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

func minute(units int64) ration.Policy {
	return ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(units)}}
}

// leases adds up lease events.
type leases struct {
	ration.NopObserver
	taken, unused, lost atomic.Int64
}

func (l *leases) Leased(e ration.LeaseEvent) {
	l.taken.Add(e.Taken)
	l.unused.Add(e.Unused)
	l.lost.Add(e.Lost)
}

// steady asks n times, a millisecond apart, and counts what is granted, and what from memory.
func (in *tierInstance) steady(n int) (granted, local int64) {
	for range n {
		d := must(in.Allow(ctx, "u"))
		granted += d.Granted
		if d.Source == ration.Lease {
			local += d.Granted
		}
		time.Sleep(time.Millisecond)
	}
	return granted, local
}

// redisUsed is what Redis counts.
func (in *tierInstance) redisUsed() int64 {
	d := must(in.global.Peek(ctx, "u"))
	return d.Limit.Units - d.Remaining
}

// TestB128UnusedUnitsComeBack has 100 of 1,000 used: after Close, and after the hold too, Redis counts 100.
func TestB128UnusedUnitsComeBack(t *testing.T) {
	for _, strategy := range simStrategies {
		for _, how := range []string{"close", "hold"} {
			t.Run(strategy+"/"+how, func(t *testing.T) {
				inTierBubble(t, func(tt *tierTest) {
					var events leases
					in := tt.instance(strategy, minute(1000), 1, []ration.Option{ration.WithObserver(&events)})
					other := tt.instance(strategy, minute(1000), 1, nil)
					granted, local := in.steady(100)
					require.EqualValues(t, 100, granted)
					require.Greater(t, local, int64(50))
					held, _ := ration.Held(in.Limiter, "u")
					require.Positive(t, held, "nothing is held: nothing is tested")
					require.Equal(t, 100+held, other.redisUsed())
					if how == "close" {
						require.NoError(t, in.store.Close())
					} else {
						time.Sleep(200 * time.Millisecond)
					}
					require.EqualValues(t, 100, other.redisUsed())
					require.EqualValues(t, 900, must(other.Peek(ctx, "u")).Remaining)
					require.Equal(t, local, events.taken.Load()-events.unused.Load(), "taken isn't used and unused")
					require.Zero(t, events.lost.Load())
				})
			})
		}
	}
}

func TestLostReturnIsNotSentTwice(t *testing.T) {
	for _, outage := range []simOutage{simRefuses, simMute} {
		inTierBubble(t, func(tt *tierTest) {
			var events leases
			in := tt.instance("log", minute(1000), 1, []ration.Option{ration.WithObserver(&events)})
			other := tt.instance("log", minute(1000), 1, nil)
			in.steady(100)
			held, _ := ration.Held(in.Limiter, "u")
			require.Positive(t, held)
			before := in.net.commands.Load()
			in.outage.Store(int32(outage))
			time.Sleep(time.Second)
			require.LessOrEqual(t, in.net.commands.Load()-before, int64(2), "a return and a beat are all that is sent")
			require.Equal(t, held, events.lost.Load())
			if outage == simRefuses {
				require.Equal(t, 100+held, other.redisUsed())
			} else { // it ran, the answer was lost
				require.EqualValues(t, 100, other.redisUsed())
			}
			time.Sleep(time.Minute)
			require.Zero(t, other.redisUsed(), "a lost unit returns when its window ends")
		})
	}
}

func TestLostInstanceReturnsByItself(t *testing.T) {
	inTierBubble(t, func(tt *tierTest) {
		in, other := tt.instance("log", minute(1000), 1, nil), tt.instance("log", minute(1000), 1, nil)
		in.steady(100)
		in.net.cut.Store(true)
		require.Greater(t, other.redisUsed(), int64(100))
		time.Sleep(time.Minute + 100*time.Millisecond)
		require.Zero(t, other.redisUsed())
	})
}

func TestSteadyCallerSeldomWaits(t *testing.T) {
	inTierBubble(t, func(tt *tierTest) {
		in := tt.instance("log", minute(600_000), 1, nil)
		in.steady(100) // to get going
		granted, local := in.steady(5000)
		require.EqualValues(t, 5000, granted)
		t.Logf("%d of 5000 calls waited for Redis", granted-local)
		require.EqualValues(t, 0, granted-local)
	})
}

// TestChangedLimitsEndABlock has a limit fall below what is used while a block is held.
func TestChangedLimitsEndABlock(t *testing.T) {
	for _, strategy := range simStrategies {
		inTierBubble(t, func(tt *tierTest) {
			var units atomic.Int64
			units.Store(1000)
			p := minute(1000)
			p.LimitsFor = func(context.Context, string) ([]ration.Limit, error) {
				return []ration.Limit{ration.PerMinute(units.Load())}, nil
			}
			in := tt.instance(strategy, p, 1, nil, ration.WithHold(10*time.Second))
			in.steady(200)
			held, _ := ration.Held(in.Limiter, "u")
			require.Positive(t, held)
			units.Store(100)
			require.False(t, must(in.Allow(ctx, "u")).Allowed)
			synctest.Wait()
			time.Sleep(10 * time.Millisecond)
			held, _ = ration.Held(in.Limiter, "u")
			require.Zero(t, held)
			units.Store(1000)
			require.EqualValues(t, 800, must(in.global.Peek(ctx, "u")).Remaining)
		})
	}
}

// TestStoppedProcessSpendsNothingLate: its timers come late as well.
func TestStoppedProcessSpendsNothingLate(t *testing.T) {
	inTierBubble(t, func(tt *tierTest) {
		in := tt.instance("log", minute(1000), 1, nil)
		in.steady(100)
		held, left := ration.Held(in.Limiter, "u")
		require.Positive(t, held)
		ration.BlockTimers(in.Limiter, func(_ time.Duration, timer *time.Timer) { timer.Stop() })
		time.Sleep(left)
		require.Equal(t, ration.Redis, must(in.Allow(ctx, "u")).Source)
	})
}

func TestHugeCostsTakeNothing(t *testing.T) {
	inTierBubble(t, func(tt *tierTest) {
		in := tt.instance("fixed", minute(1000), 1, nil)
		in.steady(50)
		held, _ := ration.Held(in.Limiter, "u")
		require.Positive(t, held)
		var callers sync.WaitGroup
		for range 100 {
			callers.Go(func() {
				if d := must(in.AllowN(ctx, "u", 1<<63-1)); d.Allowed || d.RetryAfter != ration.Never {
					t.Errorf("%+v", d)
				}
			})
		}
		callers.Wait()
		time.Sleep(time.Second)
		require.EqualValues(t, 50, in.redisUsed())
	})
}

func TestFloodOfNamesIsBounded(t *testing.T) {
	inTierBubble(t, func(tt *tierTest) {
		in := tt.instance("fixed", minute(1000), 1, []ration.Option{ration.WithOnFailure(ration.FailOpen)})
		in.outage.Store(int32(simRefuses)) // so that it's quick
		for i := range 200_000 {
			must(in.Allow(ctx, fmt.Sprint("name", i)))
		}
		n := ration.TierSubjects(in.Limiter)
		require.LessOrEqual(t, n, 64*2048)
		require.Greater(t, n, 60*2048)
		time.Sleep(2 * time.Second)
		for i := range 1000 {
			must(in.Allow(ctx, fmt.Sprint("later", i)))
		}
		require.Less(t, ration.TierSubjects(in.Limiter), 70_000, "names that aren't asked for make room")
		long := string(make([]byte, 1<<16))
		before := ration.TierSubjects(in.Limiter)
		must(in.Allow(ctx, long))
		require.Equal(t, before, ration.TierSubjects(in.Limiter))
	})
}

func TestHitAllocatesNothing(t *testing.T) {
	in, err := ration.Open(backends["miniredis"](t).rdb, ration.WithTimeout(10*time.Second)) // a failed lease would be tried again after hours of this clock
	require.NoError(t, err)
	t.Cleanup(func() { in.Close() })
	var now atomic.Int64
	in.SetClock(func() time.Duration { return time.Duration(now.Load()) }) // one that stands still: the block lasts
	global, err := ration.NewSlidingLog(in, minute(1<<40))
	require.NoError(t, err)
	l, err := ration.NewTwoTier(global, ration.WithHold(30*time.Second), ration.WithInstances(1))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		must(l.Allow(ctx, "u"))
		now.Add(1000)
		held, _ := ration.Held(l, "u")
		return held > 5000
	}, 20*time.Second, time.Microsecond)
	require.Zero(t, testing.AllocsPerRun(200, func() {
		if must(l.Allow(ctx, "u")).Source != ration.Lease {
			t.Error("not a hit")
		}
	}))
}
