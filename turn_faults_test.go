package ration_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
	"github.com/rationgo/ration/rationtest"
)

// A cancel that arrives after the turn gives back nothing: others may have used what came back.
func TestTurnCancelledLate(t *testing.T) {
	srv := rationtest.NewRedis(t)
	l, err := ration.NewTokenBucket(srv.Store(), ration.Policy{Name: "p", Limits: []ration.Limit{bucket(1, time.Second, 1)}})
	require.NoError(t, err)
	require.True(t, must(l.Allow(ctx, "u")).Allowed)
	res, err := ration.Reserve(ctx, l, "u", 1, time.Minute) // turn at 1 s
	require.NoError(t, err)
	require.Equal(t, time.Second, res.Pause)
	srv.Advance(2 * time.Second)
	require.True(t, must(l.Allow(ctx, "u")).Allowed) // at 2 s
	_, err = res.Cancel(ctx)                         // it left just before its turn; the message took a while
	require.NoError(t, err)
	require.False(t, must(l.Allow(ctx, "u")).Allowed, "two units in no time at a Burst of 1")
}

// A lease removed by hand (ZREM) leaves a total that's too large: an error, and no loop on the server.
func TestLeasesFewerThanTheirTotal(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	store, err := ration.Open(rdb)
	require.NoError(t, err)
	defer store.Close()
	c := newConcurrency(t, store, ration.ConcurrencyPolicy{Name: "jobs", Limit: 2, TTL: time.Hour})
	p := acquire(t, c, "u", 2)
	require.NoError(t, rdb.ZRem(ctx, "ration:jobs:cc1:0:{u}", ration.PermitID(p)+":2").Err())
	_, _, err = c.Acquire(ctx, "u", 1)
	require.ErrorIs(t, err, ration.ErrUnavailable)
	require.NoError(t, rdb.Ping(ctx).Err())
}

// Refund and Reset by a part end a refusal that the combined limiter remembers, and the other way round.
func TestDenyCacheOfCombinedLimiters(t *testing.T) {
	srv := rationtest.NewRedis(t)
	store := srv.Store(ration.WithDenyCache(100))
	a, err := ration.NewTokenBucket(store, ration.Policy{Name: "a", Limits: []ration.Limit{bucket(1, time.Hour, 1)}})
	require.NoError(t, err)
	b, err := ration.NewFixedWindow(store, ration.Policy{Name: "b", Limits: []ration.Limit{ration.PerDay(100)}})
	require.NoError(t, err)
	both, err := ration.Combine(a, b)
	require.NoError(t, err)
	t.Run("part", func(t *testing.T) {
		require.True(t, must(both.Allow(ctx, "u")).Allowed)
		require.False(t, must(both.Allow(ctx, "u")).Allowed)
		require.EqualValues(t, 1, must(a.Refund(ctx, "u", 1)).Granted)
		require.True(t, must(both.Allow(ctx, "u")).Allowed)
	})
	t.Run("combined", func(t *testing.T) {
		require.True(t, must(a.Allow(ctx, "v")).Allowed)
		require.False(t, must(a.Allow(ctx, "v")).Allowed)
		require.NoError(t, both.Reset(ctx, "v"))
		require.True(t, must(a.Allow(ctx, "v")).Allowed)
	})
}

// A waiter of this process that leaves ends the refusals that its turn made.
func TestDenyCacheAndALeavingWaiter(t *testing.T) {
	inBubble(t, func(w *world) {
		l := w.of("token", w.store(ration.WithDenyCache(10)), ration.Policy{Name: "p", Limits: []ration.Limit{bucket(1, 100*time.Millisecond, 1)}})
		c := newCrew(w)
		c.wait(ctx, l, 0, 1)
		leaving, leave := context.WithCancel(ctx)
		c.wait(leaving, l, 1, 1)
		require.Equal(t, 200*time.Millisecond, must(l.Allow(ctx, "u")).RetryAfter)
		leave()
		c.Wait()
		pass(100 * time.Millisecond)
		require.True(t, must(l.Allow(ctx, "u")).Allowed)
	})
}

// A waiter that leaves while its reservation is under way leaves no turn behind.
func TestTurnLeftDuringTheRoundTrip(t *testing.T) {
	inBubble(t, func(w *world) {
		c := newCrew(w)
		l := w.of("token", w.store(), ration.Policy{Name: "p", Limits: []ration.Limit{bucket(1, time.Second, 1)}})
		c.wait(ctx, l, 0, 1)
		w.spoil(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			defer pass(20 * time.Millisecond) // the answer takes 20 ms
			return next(ctx, cmd)
		})
		leaving, leave := context.WithCancel(ctx)
		c.wait(leaving, l, 1, 1)
		pass(10 * time.Millisecond)
		leave()
		c.Wait()
		pass(time.Second)
		require.ErrorIs(t, c.left[1], context.Canceled)
		w.spoil(nil)
		require.Zero(t, must(l.Peek(ctx, "u")).ResetAfter, "nobody is behind it, and it left at 10 ms")
	})
}

// With a failure rule, too, a reservation whose answer is lost is charged once.
func TestTurnWhoseAnswerIsLost(t *testing.T) {
	inBubble(t, func(w *world) {
		l := w.of("token", w.store(ration.WithOnFailure(ration.FailOpen)), ration.Policy{Name: "p", Limits: []ration.Limit{bucket(1, time.Hour, 10)}})
		lost := 0
		w.spoil(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			err := next(ctx, cmd)
			if err != nil {
				return err
			}
			if lost++; lost == 1 {
				return io.EOF // the server had it, its answer is lost
			}
			return nil
		})
		_, err := ration.Wait(ctx, l, "u", 1)
		require.NoError(t, err)
		w.spoil(nil)
		require.EqualValues(t, 9, must(l.Peek(ctx, "u")).Remaining)
	})
}

// The failure rule decides where Redis is silent beyond the caller's deadline, under Wait as elsewhere.
func TestTurnDeadlineWhileRedisIsSilent(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, strategy := range []string{"fixed", "token"} {
			l := w.of(strategy, w.store(ration.WithOnFailure(ration.FailOpen)), ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerSecond(1)}})
			must(l.Peek(ctx, "u"))
			w.spoil(silence)
			soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			d, err := ration.Wait(soon, l, "u", 1)
			cancel()
			w.spoil(nil)
			require.NoError(t, err, strategy)
			require.True(t, d.Allowed && d.Degraded, strategy)
		}
	})
}

// When a rate is raised while waiters sleep nobody gets in between them: no more pass than at the higher rate.
func TestRateRaisedWhileTurnsAreReserved(t *testing.T) {
	inBubble(t, func(w *world) {
		units := int64(1)
		l := w.of("token", w.store(), ration.Policy{Name: "p", LimitsFor: func(context.Context, string) ([]ration.Limit, error) {
			return []ration.Limit{bucket(units, time.Second, 1)}, nil
		}})
		c := newCrew(w)
		for i := range 20 {
			c.wait(ctx, l, i, 1) // at 0, 1, 2, … 19 s
		}
		units = 2
		for i := range 20 {
			c.wait(ctx, l, 20+i, 1)
		}
		c.Wait()
		in := 0
		for _, at := range c.admitted {
			if at >= 10*time.Second && at < 19*time.Second {
				in++
			}
		}
		require.LessOrEqual(t, in, 1+2*9, "in 9 s at 2 a second and a Burst of 1")
	})
}

type events struct {
	ration.NopObserver
	got []ration.DecisionEvent
}

func (e *events) Decided(d ration.DecisionEvent) { e.got = append(e.got, d) }

// Mistakes under Wait are told to the observer.
func TestMistakesInWaitAreObserved(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, strategy := range []string{"fixed", "token"} {
			e := &events{}
			l := w.of(strategy, w.store(ration.WithObserver(e)), ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerSecond(1)}})
			_, err := ration.Wait(ctx, l, "", 1)
			require.ErrorIs(t, err, ration.ErrInvalidKey)
			require.Len(t, e.got, 1, strategy)
		}
	})
}

// Limits that can't ever be kept don't pass Combine, also where another part has LimitsFor.
func TestCombineOfOneCountTwice(t *testing.T) {
	srv := rationtest.NewRedis(t)
	store := srv.Store()
	a, err := ration.NewFixedWindow(store, ration.Policy{Name: "a", Limits: []ration.Limit{ration.PerSecond(1)}})
	require.NoError(t, err)
	b, err := ration.NewFixedWindow(store, ration.Policy{Name: "b", LimitsFor: func(context.Context, string) ([]ration.Limit, error) { return []ration.Limit{ration.PerHour(1)}, nil }})
	require.NoError(t, err)
	_, err = ration.Combine(a, a, b)
	require.ErrorIs(t, err, ration.ErrInvalidPolicy)
}

// A rate that is lowered keeps tokens out no longer than the rate there was.
func TestRateLowered(t *testing.T) {
	srv := rationtest.NewRedis(t)
	units := int64(10)
	l, err := ration.NewTokenBucket(srv.Store(), ration.Policy{Name: "p", LimitsFor: func(context.Context, string) ([]ration.Limit, error) {
		return []ration.Limit{bucket(units, time.Second, 10)}, nil
	}})
	require.NoError(t, err)
	must(l.AllowN(ctx, "u", 10))
	units = 1
	srv.Advance(900 * time.Millisecond)
	d := must(l.Peek(ctx, "u"))
	require.Zero(t, d.Remaining)
	require.Equal(t, 100*time.Millisecond, d.RetryAfter)
	srv.Advance(100 * time.Millisecond)
	require.EqualValues(t, 10, must(l.Peek(ctx, "u")).Remaining)
}

// Wait ends with its context, also while Redis is silent.
func TestTurnLeftWhileRedisIsSilent(t *testing.T) {
	inBubble(t, func(w *world) {
		l := w.of("token", w.store(ration.WithTimeout(5*time.Second)), ration.Policy{Name: "p", Limits: []ration.Limit{bucket(1, time.Minute, 1)}})
		must(l.Allow(ctx, "u"))
		leaving, leave := context.WithCancel(ctx)
		var left time.Time
		go func() { pass(time.Second); w.spoil(silence); left = time.Now(); leave() }()
		_, err := ration.Wait(leaving, l, "u", 1)
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, time.Since(left))
	})
}
