package ration_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// What an Acquire of 2 under a limit of 5 gets, and one above the limit, when Redis fails in any way.
func TestPermitsOnFailure(t *testing.T) {
	five, half := ration.Limit{Name: "in-flight", Units: 5}, ration.Limit{Name: "in-flight", Units: 2}
	for name, o := range outages {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.spoil(o.fault)
				try := func(rule ration.FailureRule, n int64) (*ration.Permit, ration.Decision, error) {
					rec := &recorder{}
					c := w.jobs(w.store(ration.WithOnFailure(rule), ration.WithObserver(rec)), 5)
					p, d, err := c.Acquire(ctx, hidden, n)
					heard := rec.take(w.T).decisions
					require.Len(w, heard, 1)
					require.Equal(w, []bool{d.Allowed, d.Degraded}, []bool{heard[0].Allowed, heard[0].Degraded})
					require.Equal(w, d.Allowed, p != nil)
					_, looked := c.InFlight(ctx, hidden)
					require.ErrorIs(w, looked, ration.ErrUnavailable)
					cause := err
					if rule != ration.FailError {
						require.NoError(w, err)
						cause = d.Cause
						d.Cause = nil
					}
					require.ErrorIs(w, cause, ration.ErrUnavailable)
					require.Equal(w, o.class, ration.ClassOf(cause))
					require.NotContains(w, cause.Error(), hidden)
					return p, d, err
				}
				_, d, err := try(ration.FailError, 2)
				require.Error(w, err)
				require.Zero(w, d)
				_, d, _ = try(ration.FailClosed, 2)
				require.Equal(w, ration.Decision{RetryAfter: time.Millisecond, Source: ration.Failure, Degraded: true}, d)
				p, d, _ := try(ration.FailOpen, 2)
				require.Equal(w, ration.Decision{Allowed: true, Granted: 2, Limit: five, Remaining: 5, Source: ration.Failure, Degraded: true}, d)
				_, d, _ = try(ration.FailOpen, 6)
				require.Equal(w, ration.Decision{Limit: five, Remaining: 5, RetryAfter: ration.Never, Source: ration.Failure, Degraded: true}, d)
				local, d, _ := try(ration.FailLocal(2), 2)
				require.Equal(w, ration.Decision{Allowed: true, Granted: 2, Limit: half, Source: ration.Ring, Degraded: true}, d)
				_, d, _ = try(ration.FailLocal(2), 3)
				require.Equal(w, ration.Decision{Limit: half, Remaining: 2, RetryAfter: time.Millisecond, Source: ration.Ring, Degraded: true}, d)
				_, d, _ = try(ration.FailLocal(2), 6)
				require.Equal(w, ration.Never, d.RetryAfter)
				pass(time.Minute)
				requireKept(w, p, local)
				w.spoil(nil)
			})
		})
	}
}

// requireKept demands that permits without a lease are held until they are released.
func requireKept(w *world, permits ...*ration.Permit) {
	w.Helper()
	for _, p := range permits {
		require.False(w, p.Lost(), "what is counted nowhere isn't lost")
		p.Release()
		require.True(w, ended(p))
	}
}

// FailLocal counts what this process holds: over all Concurrency of a name, until it's released, once.
func TestPermitsInThisProcess(t *testing.T) {
	w := offline(t, refused)
	store := w.store(ration.WithOnFailure(ration.FailLocal(3)))
	c, same := w.jobs(store, 10), w.jobs(store, 10)
	first := acquire(t, c, "u", 2)
	second := acquire(t, same, "u", 1)
	refusedPermit(t, c, "u", 1)
	acquire(t, c, "v", 3).Release()
	first.Release()
	first.Release()
	third := acquire(t, same, "u", 2)
	refusedPermit(t, c, "u", 1)
	second.Release()
	require.NoError(t, store.Close())
	third.Release()
	require.Zero(t, ration.Tallied(c), "a subject is remembered that holds nothing")
	few := w.jobs(w.store(ration.WithOnFailure(ration.FailLocal(3))), 1)
	one := acquire(t, few, "u", 1)
	refusedPermit(t, few, "u", 1)
	one.Release()
	require.Equal(t, ration.Never, refusedPermit(t, w.jobs(w.store(ration.WithOnFailure(ration.FailLocal(3))), 0), "u", 1).RetryAfter)
}

// An open breaker answers at once, and nothing is sent for permits that never were. When Redis is back so are permits.
func TestPermitsAndTheBreaker(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.jobs(w.store(), 1)
		w.spoil(silence)
		failed := func() {
			w.Helper()
			_, _, err := c.Acquire(ctx, "u", 1)
			require.ErrorIs(w, err, ration.ErrUnavailable)
		}
		failed()
		failed()
		pass(150 * time.Millisecond) // their releases have failed too
		failed()                     // the probe
		w.take()
		began := time.Now()
		for range 100 {
			failed()
		}
		require.Zero(w, time.Since(began), "the breaker isn't open")
		require.Empty(w, w.take())
		w.spoil(nil)
		pass(3 * time.Second)
		acquire(w, c, "u", 1).Release()
	})
}

// The end of the caller's own context is no failure, under any rule; a deadline that Redis lets pass is one.
func TestPermitsAndTheCallersContext(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, rule := range rules {
			c := w.jobs(w.store(ration.WithOnFailure(rule)), 10)
			require.EqualValues(w, 0, inFlight(w, c, "u")) // now the server has the script
			w.spoil(slowly(50 * time.Millisecond))
			cancelled, cancel := context.WithCancel(ctx)
			time.AfterFunc(20*time.Millisecond, cancel)
			p, _, err := c.Acquire(cancelled, "u", 1)
			require.ErrorIs(w, err, context.Canceled)
			require.Nil(w, p)
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			p, d, err := c.Acquire(short, "u", 1)
			cancel()
			if rule == ration.FailError {
				require.ErrorIs(w, err, context.DeadlineExceeded)
			} else {
				require.NoError(w, err)
				require.True(w, d.Degraded)
			}
			p.Release()
			pass(200 * time.Millisecond)
			require.EqualValues(w, 0, inFlight(w, c, "u"))
			w.spoil(nil)
		}
	})
}

func TestOddRepliesToPermits(t *testing.T) {
	one := []any{int64(2), int64(3), int64(0), int64(9)}
	require.NoError(t, ration.DecodePermit(2, one))
	require.NoError(t, ration.DecodePermit(5, []any{int64(0), int64(3), int64(1), int64(9)}))
	for i, v := range []any{"2", nil, int64(-1), ration.MaxUnits + 1, int64(1), 2.5} {
		odd := append([]any{v}, one[1:]...)
		require.Error(t, ration.DecodePermit(2, odd), i)
	}
	require.Error(t, ration.DecodePermit(2, one[:3]))
	require.Error(t, ration.DecodePermit(2, append(one, one...)))
}

// What isn't a set of leases is no answer, and isn't touched.
func TestForeignValueInAPermitsKey(t *testing.T) {
	for name, start := range backends {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			c := newConcurrency(t, b.store(t, noBreaker), ration.ConcurrencyPolicy{Name: "jobs", Limit: 5})
			require.NoError(t, b.rdb.Set(ctx, "ration:jobs:cc1:0:{text}", "x", 0).Err())
			require.NoError(t, b.rdb.Do(ctx, "zadd", "ration:jobs:cc1:0:{set}", 1, "m:1").Err())
			_, _, err := c.Acquire(ctx, "text", 1)
			require.ErrorIs(t, err, ration.ErrUnavailable)
			_, _, err = c.Acquire(ctx, "set", 1)
			require.ErrorIs(t, err, ration.ErrUnavailable)
			require.Equal(t, ration.ClassReply, ration.ClassOf(err))
			require.False(t, strings.Contains(err.Error(), "{set}"), err)
		})
	}
}
