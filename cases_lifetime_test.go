package ration_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

func TestB01LostLifetimeIsMended(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(2))
		tl.letters("AA")
		for _, key := range tl.keys() {
			require.NoError(t, b.rdb.Persist(ctx, key).Err())
		}
		tl.at(1)
		tl.letters("D")
		longest := map[string]time.Duration{"fixed": time.Minute, "log": time.Minute, "compact": time.Minute, "buckets": 72 * time.Second, "counter": 2 * time.Minute, "token": time.Minute}[strategy]
		if strategy != "buckets" { // a slot's turn writes over what lost its lifetime; they're 21 and 3 more
			tl.requireLifetimes(longest)
		}
		tl.at(64)
		if strategy == "counter" {
			tl.at(120)
		}
		tl.letters("AAD")
		tl.requireLifetimes(longest)
	})
	// A counter put there by hand, in no form of ours.
	on(t, "fixed", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(2))
		tl.letters("A")
		key := tl.keys()[0]
		require.NoError(t, b.rdb.Set(ctx, key, "2", 0).Err())
		tl.at(1)
		tl.letters("A")
		tl.requireLifetimes(time.Minute)
		tl.at(62)
		tl.letters("AAD")
	})
}

func TestB03EveryKeyHasALifetime(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := policyTimeline(t, b, strategy, ration.Policy{
			Name: "p", Slots: 7, Limits: []ration.Limit{ration.Per(3, 7*time.Second), ration.PerMinute(5)},
		})
		for i := range 50 {
			key := fmt.Sprint("subject ", i)
			for _, n := range []int64{1, 2, 3, 0, 1, 100} {
				_, err := tl.l.AllowN(ctx, key, n)
				require.NoError(t, err)
			}
			_, err := tl.l.Refund(ctx, key, int64(i%4))
			require.NoError(t, err)
			_, err = tl.l.AllowUpTo(ctx, key, 2)
			require.NoError(t, err)
			if i%5 == 0 {
				require.NoError(t, tl.l.Reset(ctx, key))
			}
			if i%10 == 0 {
				require.NoError(t, b.rdb.ScriptFlush(ctx).Err())
			}
			tl.at(float64(i) / 10)
		}
		require.NotEmpty(t, tl.keys())
		tl.requireLifetimes(2 * time.Minute)
		if expires(b) {
			b.Advance(2*time.Minute + time.Second)
			require.Empty(t, tl.keys())
		}
	})
}

// expires says whether keys of a server expire at all.
func expires(b backend) bool {
	key := freshPrefix()
	b.rdb.Set(ctx, key, "1", time.Millisecond)
	b.Advance(time.Second)
	return b.rdb.Exists(ctx, key).Val() == 0
}

func TestB04WindowEndsUnderSteadyCalls(t *testing.T) {
	on(t, "fixed", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.Per(3, 10*time.Second))
		tl.letters("A")
		tl.at(4)
		tl.letters("A")
		tl.at(8)
		tl.letters("A")
		tl.at(9)
		require.Equal(t, time.Second, tl.letters("D").RetryAfter)
		tl.at(10)
		tl.letters("A")
	})
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.Per(10, 10*time.Second))
		for s := 0; s <= 300; s += 10 {
			tl.at(float64(s))
			tl.letters("A")
		}
	})
}

func TestB06LifetimeIsNeverZero(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.Per(2, time.Millisecond))
		tl.at(0.0009999) // a tenth of a microsecond before the window's end, rounded to it
		tl.letters("AAD")
		tl.requireLifetimes(3 * time.Millisecond)
	})
}

func TestB08NoCountSurvivesItsWindow(t *testing.T) {
	on(t, "fixed", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.Per(100, 5*time.Second))
		for i := range 60 {
			tl.at(float64(i) * 4.999 / 59)
			tl.letters("A")
		}
		tl.at(5)
		d := tl.letters("A")
		require.EqualValues(t, 99, d.Remaining)
		require.Equal(t, 5*time.Second, d.ResetAfter)
		// The same with a key that should be gone but isn't.
		for _, key := range tl.keys() {
			require.NoError(t, b.rdb.Persist(ctx, key).Err())
		}
		tl.at(10)
		d = tl.letters("A")
		require.EqualValues(t, 99, d.Remaining)
		require.Equal(t, 5*time.Second, d.ResetAfter)
	})
}

func TestB09LateRefundsGiveNothing(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerSecond(2))
		tl.at(0.2)
		tl.letters("AA")
		tl.at(1.3)
		if strategy == "counter" { // the units of the window before still count
			tl.at(2.3)
		}
		for range 2 {
			d, err := tl.l.Refund(ctx, "u", 1)
			require.NoError(t, err)
			require.Zero(t, d.Granted)
		}
		tl.letters("AAD")
		tl.requireLifetimes(2 * time.Second)
		_, err := tl.l.Refund(ctx, "never seen", 1)
		require.NoError(t, err)
		for _, key := range tl.keys() {
			require.NotContains(t, key, "never")
		}
	})
}

func TestB13FractionsOfMilliseconds(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		for _, window := range []time.Duration{time.Second / 300, 1500 * time.Microsecond, 600*time.Second + time.Millisecond} {
			tl := policyTimeline(t, b, strategy, ration.Policy{Name: "p", Slots: 1, Limits: []ration.Limit{ration.Per(1, window)}})
			tl.letters("AD")
			tl.requireLifetimes(2*window + 2*time.Millisecond)
			b.Advance(2 * (window + time.Millisecond).Truncate(time.Millisecond))
			tl.letters("AD")
		}
		for _, window := range []time.Duration{time.Millisecond - 1, time.Nanosecond} {
			_, err := strategies[strategy](b.store(t), ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(1, window)}})
			require.ErrorIs(t, err, ration.ErrInvalidPolicy)
		}
	})
}
