package ration_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// under makes a limiter of one strategy for some limits.
func under(t testing.TB, store *ration.Store, strategy, name string, limits ...ration.Limit) ration.Limiter {
	t.Helper()
	l, err := strategies[strategy](store, ration.Policy{Name: name, Limits: limits})
	require.NoError(t, err)
	return l
}

// A token bucket for the second, a log for the minute and a fixed window for the day hold together: each
// refuses in its turn, and what one refuses no other has charged.
func TestCombine(t *testing.T) {
	on(t, "token", func(t *testing.T, b backend, _ string) {
		tl := newTimeline(t, b, "token", ration.PerDay(1)) // for its clock
		burst := under(t, tl.store, "token", "burst", bucket(1, time.Second, 2))
		parts := []ration.Limiter{burst, under(t, tl.store, "log", "minute", ration.PerMinute(3)), under(t, tl.store, "fixed", "day", ration.PerDay(5))}
		all, err := ration.Combine(parts...)
		require.NoError(t, err)
		tl.l = all
		d := tl.letters("AADD")
		require.Equal(t, bucket(1, time.Second, 2), d.Limit)
		require.Equal(t, time.Second, d.RetryAfter)
		require.Equal(t, []int64{0, 1, 3}, []int64{d.Limits[0].Remaining, d.Limits[1].Remaining, d.Limits[2].Remaining})
		tl.at(5)
		d = tl.letters("AD")
		require.Equal(t, ration.PerMinute(3), d.Limit)
		require.Equal(t, 55*time.Second, d.RetryAfter)
		tl.at(61)
		d = tl.letters("AAD")
		require.Equal(t, ration.PerDay(5), d.Limit)
		require.Equal(t, 24*time.Hour-61*time.Second, d.RetryAfter)
		require.Zero(t, d.Limits[1].Remaining) // one of second 5, two now

		// The counts are those of the parts.
		require.Zero(t, must(parts[2].Peek(ctx, "u")).Remaining)
		require.EqualValues(t, 2, must(parts[2].Refund(ctx, "u", 2)).Granted)
		require.EqualValues(t, 2, must(all.Peek(ctx, "u")).Limits[2].Remaining)
		require.NoError(t, all.Reset(ctx, "u"))
		require.Empty(t, tl.keys())
		require.EqualValues(t, 2, must(burst.Peek(ctx, "u")).Remaining)

		// Combined of combined is the same.
		pair, err := ration.Combine(parts[0], parts[1])
		require.NoError(t, err)
		tl.l, err = ration.Combine(pair, parts[2])
		require.NoError(t, err)
		require.Len(t, tl.letters("AAD").Limits, 3)
	})
}

func TestCombineMistakes(t *testing.T) {
	w := offline(t, refused)
	store, other := w.store(), w.store()
	one := under(t, store, "log", "p", ration.PerMinute(1))
	local, err := ration.NewLocal(ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(1)}})
	require.NoError(t, err)
	tier, err := ration.NewTwoTier(one)
	require.NoError(t, err)
	var many []ration.Limiter
	for i := range 3 {
		many = append(many, under(t, store, "log", fmt.Sprint(i), ration.PerMinute(1), ration.PerHour(1), ration.PerDay(1)))
	}
	for name, c := range map[string]struct {
		limiters []ration.Limiter
		want     error
	}{
		"none":            {nil, ration.ErrInvalidPolicy},
		"nil":             {[]ration.Limiter{one, nil}, ration.ErrInvalidClient},
		"typed nil":       {[]ration.Limiter{ration.NilRedisLimiter}, ration.ErrInvalidClient},
		"a ring":          {[]ration.Limiter{one, local}, ration.ErrInvalidClient},
		"two tiers":       {[]ration.Limiter{tier}, ration.ErrInvalidClient},
		"of two stores":   {[]ration.Limiter{one, under(t, other, "log", "q", ration.PerMinute(1))}, ration.ErrInvalidClient},
		"nine limits":     {many, ration.ErrInvalidPolicy},
		"one count twice": {[]ration.Limiter{one, under(t, store, "log", "p", ration.PerMinute(2))}, ration.ErrInvalidPolicy},
	} {
		l, err := ration.Combine(c.limiters...)
		require.ErrorIs(t, err, c.want, name)
		require.Nil(t, l, name)
	}
	_, err = ration.NewTwoTier(combined(t, one))
	require.ErrorIs(t, err, ration.ErrInvalidClient)

	plan := ration.Policy{Name: "p", LimitsFor: func(context.Context, string) ([]ration.Limit, error) {
		return []ration.Limit{ration.PerMinute(2)}, nil
	}}
	dynamic, err := ration.NewSlidingLog(store, plan)
	require.NoError(t, err)
	_, err = combined(t, one, dynamic).Allow(ctx, "u")
	require.ErrorIs(t, err, ration.ErrInvalidPolicy)
}

func combined(t testing.TB, parts ...ration.Limiter) ration.Limiter {
	t.Helper()
	l, err := ration.Combine(parts...)
	require.NoError(t, err)
	return l
}

// While Redis is away each limit has its strategy's own share in this process, those of equal windows too.
func TestCombineWithoutRedis(t *testing.T) {
	inBubble(t, func(w *world) {
		store := w.store(ration.WithOnFailure(ration.FailLocal(2)), noBreaker)
		l := combined(t, under(t, store, "token", "burst", bucket(60, time.Minute, 4)), under(t, store, "fixed", "minute", ration.PerMinute(20)))
		w.spoil(refused)
		require.EqualValues(t, 2, must(l.AllowUpTo(ctx, "u", 100)).Granted) // half of the burst
		granted := int64(2)
		for range 600 {
			pass(100 * time.Millisecond)
			granted += must(l.AllowUpTo(ctx, "u", 100)).Granted
		}
		require.EqualValues(t, 10, granted) // half of the minute's
		w.spoil(nil)
		d := must(l.Peek(ctx, "v"))
		require.False(t, d.Degraded)
		require.EqualValues(t, 4, d.Remaining)
	})
}
