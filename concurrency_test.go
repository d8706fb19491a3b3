package ration_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/fakeredis"
)

// jobs makes a limit of units in flight with a TTL of 3 s, renewed each second.
func (w *world) jobs(store *ration.Store, limit int64) *ration.Concurrency {
	w.Helper()
	return newConcurrency(w, store, ration.ConcurrencyPolicy{Name: "jobs", Limit: limit, TTL: 3 * time.Second})
}

func newConcurrency(t testing.TB, store *ration.Store, p ration.ConcurrencyPolicy) *ration.Concurrency {
	t.Helper()
	c, err := ration.NewConcurrency(store, p)
	require.NoError(t, err)
	return c
}

// acquire gets a permit that must be granted.
func acquire(t testing.TB, c *ration.Concurrency, key string, n int64) *ration.Permit {
	t.Helper()
	p, d, err := c.Acquire(ctx, key, n)
	require.NoError(t, err)
	require.True(t, d.Allowed, "%+v", d)
	require.Equal(t, n, d.Granted)
	return p
}

// refusedPermit asks for what must be refused.
func refusedPermit(t testing.TB, c *ration.Concurrency, key string, n int64) ration.Decision {
	t.Helper()
	p, d, err := c.Acquire(ctx, key, n)
	require.NoError(t, err)
	require.Nil(t, p)
	require.False(t, d.Allowed, "%+v", d)
	return d
}

func inFlight(t testing.TB, c *ration.Concurrency, key string) int64 {
	t.Helper()
	units, err := c.InFlight(ctx, key)
	require.NoError(t, err)
	return units
}

// ended says whether a permit's channel is closed.
func ended(p *ration.Permit) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// On each server: the answers while a limit of 3 is used up, by weighted leases that run out and are released.
func TestConcurrencyAnswers(t *testing.T) {
	for name, start := range backends {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			c := newConcurrency(t, b.store(t), ration.ConcurrencyPolicy{Name: "jobs", Limit: 3, TTL: time.Hour})
			limit := ration.Limit{Name: "in-flight", Units: 3}
			two, d, err := c.Acquire(ctx, "u", 2)
			require.NoError(t, err)
			require.Equal(t, ration.Decision{Allowed: true, Granted: 2, Limit: limit, Remaining: 1, ResetAfter: time.Hour, Source: ration.Redis}, d)
			b.Advance(time.Minute)
			one := acquire(t, c, "u", 1)
			require.Equal(t, ration.Decision{Limit: limit, RetryAfter: 59 * time.Minute, ResetAfter: time.Hour, Source: ration.Redis}, refusedPermit(t, c, "u", 2))
			require.Equal(t, time.Hour, refusedPermit(t, c, "u", 3).RetryAfter)
			require.Equal(t, ration.Never, refusedPermit(t, c, "u", 4).RetryAfter)
			require.EqualValues(t, 3, inFlight(t, c, "u"))
			require.EqualValues(t, 0, inFlight(t, c, "v"))
			require.Equal(t, []string{"ration:jobs:cc1:0:{u}"}, b.keys(t))
			two.Release()
			require.EqualValues(t, 1, inFlight(t, c, "u"))
			three := acquire(t, c, "u", 2)
			b.Advance(time.Hour - time.Microsecond)
			require.EqualValues(t, 3, inFlight(t, c, "u"))
			b.Advance(time.Microsecond)
			require.EqualValues(t, 0, inFlight(t, c, "u"), "a crashed holder's units come back at the end of its TTL")
			require.False(t, ration.RenewNow(three), "a dead lease was renewed")
			last := acquire(t, c, "u", 3)
			one.Release() // a dead one: nothing happens
			require.EqualValues(t, 3, inFlight(t, c, "u"))
			last.Release()
			require.Empty(t, b.keys(t))
		})
	}
}

// A server clock that is set back frees nothing early.
func TestConcurrencyClockSetBack(t *testing.T) {
	for name, start := range backends {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			c := newConcurrency(t, b.store(t), ration.ConcurrencyPolicy{Name: "jobs", Limit: 2, TTL: time.Hour})
			first := acquire(t, c, "u", 1)
			b.Advance(-30 * time.Minute)
			acquire(t, c, "u", 1)
			require.Equal(t, time.Hour, refusedPermit(t, c, "u", 1).RetryAfter, "the second ends first")
			require.True(t, ration.RenewNow(first))
			b.Advance(time.Hour - time.Microsecond)
			refusedPermit(t, c, "u", 1)
			b.Advance(time.Microsecond)
			acquire(t, c, "u", 2)
		})
	}
}

// An Acquire that reaches Redis twice counts once: the lease's id is the caller's.
func TestAcquireSentTwiceCountsOnce(t *testing.T) {
	for name, start := range backends {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			c := newConcurrency(t, b.store(t), ration.ConcurrencyPolicy{Name: "jobs", Limit: 5, TTL: time.Hour})
			for range 3 {
				granted, units, err := ration.AcquireAs(c, "u", "id", 2)
				require.NoError(t, err)
				require.EqualValues(t, []int64{2, 2}, []int64{granted, units})
			}
		})
	}
}

func TestConcurrencyPolicyMistakes(t *testing.T) {
	w := offline(t, says(errors.New("nothing may be sent")))
	store := w.store()
	_, err := ration.NewConcurrency(nil, ration.ConcurrencyPolicy{Name: "p"})
	require.ErrorIs(t, err, ration.ErrInvalidClient)
	for text, p := range map[string]ration.ConcurrencyPolicy{
		"0 characters":   {},
		`"a:b"`:          {Name: "a:b"},
		"the Limit -1":   {Name: "p", Limit: -1},
		"1<<53":          {Name: "p", Limit: ration.MaxUnits + 1},
		"the TTL 99ms":   {Name: "p", TTL: 99 * time.Millisecond},
		"the TTL 24h0m0": {Name: "p", TTL: ration.MaxTTL + time.Millisecond},
		"the TTL -1ns":   {Name: "p", TTL: -1},
	} {
		_, err := ration.NewConcurrency(store, p)
		require.ErrorIs(t, err, ration.ErrInvalidPolicy)
		require.ErrorContains(t, err, text)
	}
}

func TestConcurrencyMistakes(t *testing.T) {
	store := offline(t, says(errors.New("nothing may be sent"))).store()
	limit, cause := int64(-1), error(nil)
	c := newConcurrency(t, store, ration.ConcurrencyPolicy{Name: "p", LimitFor: func(context.Context, string) (int64, error) { return limit, cause }})
	over, cancel := context.WithCancel(ctx)
	cancel()
	none := errors.New("no such plan")
	for _, m := range []struct {
		ctx   context.Context
		key   string
		n     int64
		cause error
		want  error
	}{
		{over, "", -1, nil, context.Canceled},
		{ctx, "", 1, nil, ration.ErrInvalidKey},
		{ctx, hidden, -1, nil, ration.ErrInvalidCost},
		{ctx, hidden, 0, nil, ration.ErrInvalidCost},
		{ctx, hidden, 1, nil, ration.ErrInvalidPolicy},
		{ctx, hidden, 1, none, none},
	} {
		cause = m.cause
		p, d, err := c.Acquire(m.ctx, m.key, m.n)
		require.ErrorIs(t, err, m.want)
		require.NotContains(t, err.Error(), hidden)
		require.Zero(t, d)
		require.Nil(t, p)
		_, _, err = c.AcquireWait(m.ctx, m.key, m.n)
		require.ErrorIs(t, err, m.want)
		if m.n > 0 {
			_, err = c.InFlight(m.ctx, m.key)
			require.ErrorIs(t, err, m.want)
		}
	}
	_, err := c.Do(ctx, "u", 1, nil)
	require.ErrorIs(t, err, ration.ErrInvalidRequest)
	require.NoError(t, store.Close())
	limit, cause = 1, nil
	_, _, err = c.Acquire(ctx, "u", 1)
	require.ErrorIs(t, err, ration.ErrClosed)
}

// A nil permit is that of a refusal: it holds nothing, and says so.
func TestNilPermit(t *testing.T) {
	var p *ration.Permit
	p.Release()
	require.True(t, p.Lost())
	require.True(t, ended(p))
}

// Limits and costs at the ends of their ranges, by several instances.
func TestConcurrencyNumbers(t *testing.T) {
	inBubble(t, func(w *world) {
		store := w.store()
		require.Equal(t, ration.Never, refusedPermit(w, w.jobs(store, 0), "u", 1).RetryAfter, "0 refuses everything")
		most := w.jobs(store, ration.MaxUnits)
		require.Equal(t, ration.Never, refusedPermit(w, most, "u", math.MaxInt64).RetryAfter)
		require.Equal(t, ration.Never, refusedPermit(w, most, "u", ration.MaxUnits+1).RetryAfter)
		p := acquire(w, most, "u", ration.MaxUnits-1)
		acquire(w, most, "u", 1).Release()
		one := acquire(w, most, "u", 1)
		refusedPermit(w, w.jobs(w.store(), ration.MaxUnits), "u", 1)
		p.Release()
		require.EqualValues(w, 1, inFlight(w, most, "u"))
		one.Release()
		// 300 leases: the wait for the last of them is found.
		many := w.jobs(store, 300)
		for range 300 {
			acquire(w, many, "v", 1)
			pass(time.Millisecond)
		}
		require.Equal(w, 2701*time.Millisecond, refusedPermit(w, many, "v", 2).RetryAfter)
		require.Equal(w, 2900*time.Millisecond, refusedPermit(w, many, "v", 201).RetryAfter)
	})
}

// A lowered limit takes nothing from anybody, and lets nobody in until fewer are in flight.
func TestConcurrencyLimitLowered(t *testing.T) {
	inBubble(t, func(w *world) {
		limit := int64(5)
		c := newConcurrency(w, w.store(), ration.ConcurrencyPolicy{Name: "jobs", TTL: time.Second,
			LimitFor: func(context.Context, string) (int64, error) { return limit, nil }})
		var all []*ration.Permit
		for range 5 {
			all = append(all, acquire(w, c, "u", 1))
		}
		limit = 2
		pass(time.Minute)
		for i, p := range all {
			require.False(w, p.Lost())
			d := refusedPermit(w, c, "u", 1)
			require.EqualValues(w, []int64{0, 2}, []int64{d.Remaining, d.Limit.Units})
			require.EqualValues(w, 5-i, inFlight(w, c, "u"))
			p.Release()
			if i == 3 {
				break
			}
		}
		acquire(w, c, "u", 1).Release()
		limit = 7
		acquire(w, c, "u", 6)
	})
}

// Released from many goroutines at once a permit goes back once: another's units stay.
func TestReleaseOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.jobs(w.store(), 2)
		p, other := acquire(w, c, "u", 1), acquire(w, c, "u", 1)
		w.take()
		var all sync.WaitGroup
		for range 100 {
			all.Go(p.Release)
		}
		all.Wait()
		require.Len(w, w.take(), 1)
		require.True(w, ended(p))
		require.False(w, p.Lost(), "it was released")
		require.EqualValues(w, 1, inFlight(w, c, "u"))
		other.Release()
		require.Zero(w, ration.Permits(c))
	})
}

func TestDo(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.jobs(w.store(), 1)
		mine := errors.New("mine")
		run := 0
		d, err := c.Do(ctx, "u", 1, func(ctx context.Context) error {
			run++
			require.EqualValues(w, 1, inFlight(w, c, "u"))
			d, err := c.Do(ctx, "u", 1, func(context.Context) error { run++; return nil })
			require.NoError(w, err)
			require.False(w, d.Allowed, "another at the same time")
			return mine
		})
		require.Equal(w, mine, err)
		require.True(w, d.Allowed)
		require.Equal(w, 1, run)
		require.Panics(w, func() { _, _ = c.Do(ctx, "u", 1, func(context.Context) error { panic("work") }) })
		require.EqualValues(w, 0, inFlight(w, c, "u"), "what panicked holds on")
		d, err = c.Do(ctx, "u", 1, func(ctx context.Context) error {
			w.spoil(refused)
			defer w.spoil(nil)
			<-ctx.Done()
			require.Equal(w, ration.ErrPermitLost, context.Cause(ctx))
			return nil
		})
		require.ErrorIs(w, err, ration.ErrPermitLost, "f hadn't noticed")
		require.True(w, d.Allowed)
		pass(3 * time.Second)
		_, err = c.Do(ctx, "u", 1, func(inner context.Context) error { pass(time.Minute); return inner.Err() })
		require.NoError(w, err)
	})
}

func TestAcquireWait(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.jobs(w.store(), 1)
		p := acquire(w, c, "u", 1)
		began := time.Now()
		time.AfterFunc(10*time.Second, p.Release)
		w.take()
		next, d, err := c.AcquireWait(ctx, "u", 1)
		require.NoError(w, err)
		require.True(w, d.Allowed)
		require.GreaterOrEqual(w, time.Since(began), 10*time.Second)
		require.LessOrEqual(w, time.Since(began), 10500*time.Millisecond)
		sent := len(w.take()) - 10 - 1 // renewals and the release
		require.Greater(w, sent, 10000/500)
		require.Less(w, sent, 10000/250+10)
		short, cancel := context.WithTimeout(ctx, 700*time.Millisecond)
		defer cancel()
		none, _, err := c.AcquireWait(short, "u", 1)
		require.ErrorIs(w, err, context.DeadlineExceeded)
		require.Nil(w, none)
		_, d, err = c.AcquireWait(ctx, "u", 2)
		require.NoError(w, err)
		require.Equal(w, ration.Never, d.RetryAfter)
		// A crashed holder's units are taken at the very end of its lease.
		next.Release()
		_, _, err = ration.AcquireAs(c, "u", "crashed", 1)
		require.NoError(w, err)
		began = time.Now()
		_, d, err = c.AcquireWait(ctx, "u", 1)
		require.NoError(w, err)
		require.True(w, d.Allowed)
		require.InDelta(w, 3*time.Second, time.Since(began), float64(time.Microsecond))
	})
}

func TestObserverHearsOfPermits(t *testing.T) {
	inBubble(t, func(w *world) {
		rec := &recorder{}
		c := w.jobs(w.store(ration.WithObserver(rec)), 3)
		limit := ration.Limit{Name: "in-flight", Units: 3}
		p := acquire(w, c, hidden, 2)
		refusedPermit(w, c, hidden, 2)
		inFlight(w, c, hidden)
		_, _, err := c.Acquire(ctx, "", 1)
		require.ErrorIs(w, err, ration.ErrInvalidKey)
		p.Release()
		require.Equal(w, []ration.DecisionEvent{
			{Policy: "jobs", Op: ration.OpAllow, N: 2, Allowed: true, Granted: 2, Limit: limit, Source: ration.Redis},
			{Policy: "jobs", Op: ration.OpAllow, N: 2, Limit: limit, Source: ration.Redis},
			{Policy: "jobs", Op: ration.OpPeek, Allowed: true, Limit: limit, Source: ration.Redis},
			{Policy: "jobs", Op: ration.OpAllow, N: 1, Err: err},
		}, rec.take(w.T).decisions)
		w.spoil(sayingKeys(func(keys string) error { return redisError("ERR odd: " + keys) }))
		_, _, err = c.Acquire(ctx, hidden, 1)
		require.ErrorIs(w, err, ration.ErrUnavailable)
		require.NotContains(w, err.Error(), hidden)
		synctest.Wait()
		require.NotEmpty(w, rec.take(w.T).failures)
	})
}

// exampleRedis is the Redis of the examples.
func exampleRedis() (rdb *redis.Client, end func()) {
	srv, err := fakeredis.Start(time.Now())
	if err != nil {
		panic(err)
	}
	rdb = srv.Client()
	return rdb, func() {
		rdb.Close()
		srv.Close()
	}
}
