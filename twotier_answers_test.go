package ration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// eachTier runs a test with an instance that has used some of 1,000 units a minute and holds a
// block; nobody else uses the subject, so what remains is known exactly.
func eachTier(t *testing.T, limits []ration.Limit, f func(tt *tierTest, in *tierInstance, used int64)) {
	for strategy := range modelOf {
		t.Run(strategy, func(t *testing.T) {
			inTierBubble(t, func(tt *tierTest) {
				in := tt.instance(strategy, ration.Policy{Name: "p", Slots: 2, Limits: limits}, 1, nil, ration.WithInstances(1), ration.WithHold(400*time.Millisecond))
				used := int64(0)
				in.warm(tt, func() { used++ })
				settle()
				f(tt, in, used)
			})
		})
	}
}

// settle lets a block that is under way come, and what is left of the one before go back.
func settle() { pass(5 * time.Millisecond) }

// requireAbout allows for calls that Redis counted after the block had been taken: a Decision from
// memory tells what Redis had left when that was.
func requireAbout(tt *tierTest, want, got int64) {
	tt.Helper()
	require.InDelta(tt, want, got, worthwhile)
}

const worthwhile = 4 // calls go to Redis before a block is asked for

var perMinute = []ration.Limit{ration.PerMinute(1000)}

func TestLeaseDecision(t *testing.T) {
	eachTier(t, perMinute, func(tt *tierTest, in *tierInstance, used int64) {
		before := in.net.commands.Load()
		d := must(in.Allow(ctx, "u"))
		require.Equal(tt, before, in.net.commands.Load(), "no Redis for it")
		require.True(tt, d.Allowed)
		require.Equal(tt, ration.Lease, d.Source)
		require.EqualValues(tt, 1, d.Granted)
		require.Equal(tt, perMinute[0], d.Limit)
		requireAbout(tt, 1000-used-1, d.Remaining)
		require.Zero(tt, d.RetryAfter)
		require.Nil(tt, d.Limits)
		require.False(tt, d.Degraded)
		require.Greater(tt, d.ResetAfter, time.Duration(0))
		require.LessOrEqual(tt, d.ResetAfter, 2*time.Minute)
		settle()
		require.Equal(tt, 1000-used-1, must(in.Peek(ctx, "u")).Remaining, "a Peek counts the block, too")
	})
}

func TestLeaseDecisionOfSeveralLimits(t *testing.T) {
	limits := []ration.Limit{ration.PerMinute(1000), ration.PerHour(5000)}
	eachTier(t, limits, func(tt *tierTest, in *tierInstance, used int64) {
		d := must(in.Allow(ctx, "u"))
		require.Equal(tt, ration.Lease, d.Source)
		requireAbout(tt, 1000-used-1, d.Remaining)
		require.Equal(tt, limits[0], d.Limit)
		require.Len(tt, d.Limits, 2)
		for i, s := range d.Limits {
			require.Equal(tt, limits[i], s.Limit)
			requireAbout(tt, limits[i].Units-used-1, s.Remaining)
			require.Zero(tt, s.RetryAfter)
			require.Greater(tt, s.ResetAfter, time.Duration(0))
		}
	})
}

// A call for more than the block holds takes the rest from Redis, all of it or nothing.
func TestLeaseAndRedisTogether(t *testing.T) {
	eachTier(t, perMinute, func(tt *tierTest, in *tierInstance, used int64) {
		held, _ := ration.Held(in.Limiter, "u")
		d := must(in.AllowN(ctx, "u", held+5))
		require.True(tt, d.Allowed)
		require.Equal(tt, held+5, d.Granted)
		require.Equal(tt, ration.Redis, d.Source)
		used += held + 5
		settle()
		require.Equal(tt, 1000-used, must(in.Peek(ctx, "u")).Remaining)

		d = must(in.AllowN(ctx, "u", 1000-used+1))
		require.False(tt, d.Allowed, "one more than there is")
		require.Zero(tt, d.Granted)
		require.Greater(tt, d.RetryAfter, time.Duration(0))
		require.NotEqual(tt, ration.Never, d.RetryAfter)
		settle()
		require.Equal(tt, 1000-used, must(in.Peek(ctx, "u")).Remaining, "nothing is lost by it")
		require.Equal(tt, ration.Never, must(in.AllowN(ctx, "u", 1001)).RetryAfter)

		settle()
		d = must(in.AllowUpTo(ctx, "u", 5000))
		require.True(tt, d.Allowed)
		require.Equal(tt, 1000-used, d.Granted)
		require.Zero(tt, d.Remaining)
		require.False(tt, must(in.Allow(ctx, "u")).Allowed)
	})
}

func TestLeaseRefund(t *testing.T) {
	eachTier(t, perMinute, func(tt *tierTest, in *tierInstance, used int64) {
		for range 2 {
			require.Equal(tt, ration.Lease, must(in.Allow(ctx, "u")).Source)
			used++
		}
		before := in.net.commands.Load()
		d := must(in.Refund(ctx, "u", 2))
		require.EqualValues(tt, 2, d.Granted)
		require.True(tt, d.Allowed)
		require.Equal(tt, before, in.net.commands.Load(), "to the block")
		used -= 2
		requireAbout(tt, 1000-used, d.Remaining)
		settle()
		d = must(in.Refund(ctx, "u", used))
		require.Equal(tt, used, d.Granted, "the rest in Redis")
		settle()
		require.EqualValues(tt, 1000, must(in.Peek(ctx, "u")).Remaining)
	})
}

func TestLeaseReset(t *testing.T) {
	eachTier(t, perMinute, func(tt *tierTest, in *tierInstance, used int64) {
		require.NoError(tt, in.Reset(ctx, "u"))
		held, _ := ration.Held(in.Limiter, "u")
		require.Zero(tt, held, "the block is forgotten")
		require.EqualValues(tt, 1000, must(in.Peek(ctx, "u")).Remaining)
		pass(time.Second)
		require.EqualValues(tt, 1000, must(in.Peek(ctx, "u")).Remaining, "nothing of it comes back later")
		d := must(in.AllowUpTo(ctx, "u", 5000))
		require.EqualValues(tt, 1000, d.Granted)
	})
}
