package ration_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/model"
	"github.com/rationgo/ration/rationtest"
)

// bucket is a limit of a token bucket.
func bucket(units int64, window time.Duration, burst int64) ration.Limit {
	return ration.Limit{Units: units, Window: window, Burst: burst}
}

// buckets runs a test on every server for token buckets.
func tokens(t *testing.T, run func(t *testing.T, make func(...ration.Limit) *timeline)) {
	on(t, "token", func(t *testing.T, b backend, strategy string) {
		run(t, func(limits ...ration.Limit) *timeline { return newTimeline(t, b, strategy, limits...) })
	})
}

func TestB06LifetimeOfAFastBucket(t *testing.T) {
	tokens(t, func(t *testing.T, make func(...ration.Limit) *timeline) {
		tl := make(bucket(5000, time.Second, 10))
		for range 10 {
			tl.letters("A")
			ttl, err := tl.b.rdb.PTTL(ctx, tl.keys()[0]).Result()
			require.NoError(t, err)
			require.GreaterOrEqual(t, ttl, time.Millisecond)
		}
		tl.letters("D")
		tl.requireLifetimes(2 * time.Millisecond)
	})
}

func TestB11IdleBucketIsNotForgotten(t *testing.T) {
	tokens(t, func(t *testing.T, make func(...ration.Limit) *timeline) {
		tl := make(bucket(1, 10*time.Second, 10))
		tl.letters("AAAAAAAAAA")
		ttl, err := tl.b.rdb.PTTL(ctx, tl.keys()[0]).Result()
		require.NoError(t, err)
		require.GreaterOrEqual(t, ttl, 100*time.Second)
		tl.at(11)
		tl.letters("AD")
		tl.at(12)
		tl.letters("D")
	})
}

func TestB33BucketsOfAnySize(t *testing.T) {
	tokens(t, func(t *testing.T, make func(...ration.Limit) *timeline) {
		for _, units := range []int64{1 << 31, 1<<32 + 5, 1 << 53} {
			tl := make(bucket(units, time.Minute, units))
			d := tl.letters("A")
			require.Equal(t, units, d.Limit.Burst)
			require.Equal(t, units-1, d.Remaining)
			require.NoError(t, tl.l.Reset(ctx, "u"))
			require.Zero(t, tl.costs(units, "A").Remaining)
			require.Equal(t, time.Minute, tl.costs(units, "D").RetryAfter)
		}
		tl := make(bucket(1, time.Minute, 1))
		for _, bad := range []ration.Limit{
			bucket(1<<53+1, time.Minute, 0), bucket(5, time.Minute, 1<<53+1), bucket(5, time.Minute, math.MaxInt64),
			bucket(5, time.Minute, -1), bucket(1, 24*time.Hour, 50*365+1),
		} {
			_, err := tl.make(tl.store, ration.Policy{Name: "p", Limits: []ration.Limit{bad}})
			require.ErrorIs(t, err, ration.ErrInvalidPolicy, bad)
		}
	})
}

func TestB39RefillOfTenASecond(t *testing.T) {
	tokens(t, func(t *testing.T, make func(...ration.Limit) *timeline) {
		tl := make(bucket(10, time.Second, 1))
		tl.at(0.95)
		tl.letters("A")
		for at, want := range map[float64]string{1: "D", 1.049999: "D"} {
			tl.at(at)
			tl.letters(want)
		}
		tl.at(1.05)
		tl.letters("A")
		for i := range 100 {
			tl.at(2 + float64(i)/10)
			tl.letters("A")
		}
		for i := range 200 {
			tl.at(20 + float64(i)/20)
			tl.letters([]string{"A", "D"}[i%2])
		}
	})
}

func TestB41LongIdleBucket(t *testing.T) {
	tokens(t, func(t *testing.T, make func(...ration.Limit) *timeline) {
		tl := make(bucket(1_000_000, time.Second, 1_000_000))
		tl.letters("A")
		for _, idle := range []time.Duration{12 * time.Hour, 30 * 24 * time.Hour, 10 * 365 * 24 * time.Hour} {
			tl.b.Advance(idle)
			require.EqualValues(t, 999_999, tl.letters("A").Remaining)
			require.Equal(t, ration.Never, tl.costs(1_000_001, "D").RetryAfter)
		}
	})
}

// The ring, too.
func TestB41LongIdleRing(t *testing.T) {
	now := rationtest.Epoch
	p := ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerSecond(1_000_000)}}
	l, err := ration.NewLocal(p, ration.WithClock(func() time.Time { return now }))
	require.NoError(t, err)
	for _, idle := range []time.Duration{0, 12 * time.Hour, 30 * 24 * time.Hour, 10 * 365 * 24 * time.Hour} {
		now = now.Add(idle)
		require.EqualValues(t, 999_999, must(l.Allow(ctx, "u")).Remaining)
		require.Equal(t, ration.Never, must(l.AllowN(ctx, "u", 1_000_001)).RetryAfter)
		now = now.Add(2 * time.Second) // as long as a ring holds a unit
	}
}

func TestB42RatesBeyondTheClock(t *testing.T) {
	tokens(t, func(t *testing.T, make func(...ration.Limit) *timeline) {
		tl := make(bucket(3_000_000, time.Second, 1))
		require.Equal(t, time.Microsecond, tl.letters("ADDDDDDDDD").RetryAfter)
		tl.at(0.000001)
		tl.letters("AD") // three came back, one fits
		tl = make(bucket(2000, time.Second, 1))
		require.Equal(t, 500*time.Microsecond, tl.letters("AD").RetryAfter)
		tl.at(0.0005)
		tl.letters("AD")
		tl = make(bucket(1, 24*time.Hour, 1))
		require.Equal(t, ration.Never, tl.costs(200_000_000, "D").RetryAfter)
		require.Equal(t, 24*time.Hour, tl.letters("AD").RetryAfter)
	})
}

func TestB43CostOfTheWholeBurst(t *testing.T) {
	tokens(t, func(t *testing.T, make func(...ration.Limit) *timeline) {
		tl := make(bucket(1, time.Second, 5))
		tl.costs(5, "A")
		tl.at(1)
		require.Equal(t, 4*time.Second, tl.costs(5, "D").RetryAfter)
		tl.at(5)
		tl.costs(5, "A")
	})
}

func TestB44RetryIsNotReset(t *testing.T) {
	tokens(t, func(t *testing.T, make func(...ration.Limit) *timeline) {
		tl := make(bucket(1, time.Second, 5))
		d := tl.letters("AAAAAD")
		require.Equal(t, time.Second, d.RetryAfter)
		require.Equal(t, 5*time.Second, d.ResetAfter)
		tl.at(1)
		tl.letters("A")
	})
}

func TestB64RaisedRateActsAtOnce(t *testing.T) {
	tokens(t, func(t *testing.T, make func(...ration.Limit) *timeline) {
		tl := make(bucket(10, 20*time.Second, 16))
		under := func(lim ration.Limit) ration.Limiter {
			return tl.limiter(ration.Policy{Name: "p", Limits: []ration.Limit{lim}})
		}
		tl.letters("AAAAAAAAAA")
		fast := under(bucket(1000, 20*time.Second, 16))
		d := must(fast.AllowN(ctx, "u", 16))
		require.False(t, d.Allowed)
		require.LessOrEqual(t, d.RetryAfter, 320*time.Millisecond)
		require.Equal(t, 200*time.Millisecond, d.RetryAfter) // for the ten that are out
		require.EqualValues(t, 6, must(fast.AllowUpTo(ctx, "u", 100)).Granted)
		// A lower rate, or burst, never gives more than the burst.
		for _, lim := range []ration.Limit{bucket(1, 20*time.Second, 16), bucket(1000, 20*time.Second, 4)} {
			require.NoError(t, tl.l.Reset(ctx, "u"))
			must(fast.AllowN(ctx, "u", 3))
			require.LessOrEqual(t, must(under(lim).AllowUpTo(ctx, "u", 100)).Granted, lim.Burst-3)
		}
	})
}

// Rates that don't divide a second, slow and fast: in a span of many windows exactly what comes back
// passes, to the unit.
func TestBucketsDoNotDrift(t *testing.T) {
	for _, lim := range []ration.Limit{
		bucket(3, 10*time.Second, 1), bucket(7, time.Second, 2), bucket(1, 365*24*time.Hour, 1), bucket(3_000_000, time.Second, 5),
		bucket(1_000_003, 24*time.Hour, 1), bucket(999_999_937, 50*365*24*time.Hour, 3), bucket(1<<53-111, time.Second, 1<<40),
	} {
		tokens(t, func(t *testing.T, make func(...ration.Limit) *timeline) {
			t.Run(fmt.Sprint(lim), func(t *testing.T) {
				tl := make(lim)
				burst := tl.costs(lim.Burst, "A").Granted
				granted := int64(0)
				const spans = 97
				for i := range int64(spans) {
					// From one turn to the next what came back is less than a bucket.
					step := time.Duration(float64(lim.Window) * float64(burst) / float64(lim.Units) / 2).Round(time.Microsecond)
					tl.b.SetTime(tl.start.Add(time.Duration(i+1) * max(step, time.Microsecond)))
					granted += must(tl.l.AllowUpTo(ctx, "u", 1<<53)).Granted
				}
				gone := tl.b.Now().Sub(tl.start).Microseconds()
				rate := float64(lim.Units) / float64(lim.Window.Microseconds())
				if step := rate; step > float64(burst) { // a bucket comes back within a microsecond
					require.Equal(t, spans*burst, granted)
					return
				}
				require.InDelta(t, float64(gone)*rate, float64(granted), 1+float64(granted)*1e-12)
			})
		})
	}
}

// Without Redis the instances' rings together keep the bucket's promise, unless its Burst is
// less than one for each.
func TestBucketsWithoutRedis(t *testing.T) {
	const instances = 4
	for _, lim := range []ration.Limit{
		bucket(100, time.Minute, 0), bucket(60, time.Minute, 8), bucket(10, time.Second, 1), bucket(3_000_000, time.Second, 1), bucket(1, time.Minute, 7), bucket(0, time.Minute, 5),
	} {
		t.Run(lim.String(), func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.spoil(refused)
				var all []ration.Limiter
				for range instances {
					all = append(all, w.of("token", w.store(ration.WithOnFailure(ration.FailLocal(instances))), ration.Policy{Name: "p", Limits: []ration.Limit{lim}}))
				}
				promised := lim
				promised.Burst = max(instances, model.Size(lim))
				if lim.Units == 0 {
					promised.Burst = 0
				}
				oracle := model.NewOracle(model.TokenBucket)
				granted := int64(0)
				for i := range 300 {
					d := must(all[i%instances].AllowUpTo(ctx, "u", 1<<53))
					require.True(t, d.Degraded)
					if d.Granted > 0 {
						require.NoError(t, oracle.Grant(time.Now().UnixMicro(), d.Granted, []ration.Limit{promised}))
					}
					granted += d.Granted
					pass(lim.Window / 100)
				}
				if lim.Units > 0 { // in 3 windows, at the bucket's pace, with what a ring holds on to for longer
					require.Greater(t, granted, min(lim.Units*3, 300*model.Size(lim))*7/10)
				}
			})
		})
	}
}
