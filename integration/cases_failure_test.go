package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// B28: a server that accepts and never answers gives a decision by the rule within twice the caller's deadline
// or the budget, be it the first call of a client or one of 200 at once.
func TestB28MuteServerGivesADecision(t *testing.T) {
	eachRule(t, func(t *testing.T, st strategy, kind func(*redis.Options), rule ration.FailureRule) {
		if rule == ration.FailError { // it makes no decision: see TestB28FrozenServer
			return
		}
		addr := mute(t)
		limiter := func(opts ...ration.Option) ration.Limiter {
			store, err := ration.Open(client(t, addr, kind), append(opts, ration.WithOnFailure(rule))...)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			return st.of(t, store, 400)
		}
		short := func(l ration.Limiter, key string) (ration.Decision, error) {
			short, cancel := context.WithTimeout(ctx, budget)
			defer cancel()
			return l.Allow(short, key)
		}
		l := limiter()
		requireWithin(t, 2*budget, "a deadline of 50 ms", func() {
			d, err := short(l, "subject")
			requireDegraded(t, rule, d, err, ration.ClassTimeout)
		})
		requireWithin(t, 2*budget, "200 deadlines of 50 ms", func() {
			var all sync.WaitGroup
			for i := range 200 {
				all.Go(func() {
					d, err := short(l, fmt.Sprint("subject", i))
					if err := degraded(rule, d, err, ration.ClassTimeout); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		})
		brief := limiter(ration.WithTimeout(budget))
		requireWithin(t, 2*budget, "a budget of 50 ms", func() {
			d, err := brief.Allow(ctx, "subject")
			requireDegraded(t, rule, d, err, ration.ClassTimeout)
		})
		requireWithin(t, 2*budget, "200 budgets of 50 ms", func() { crowdOf(t, 200, brief, rule, ration.ClassTimeout) })
	})
}

// B85: a server without memory is a failure like others, and ends when there's memory again: at once, or
// where the breaker has opened, with its next probe.
func TestB85OutOfMemory(t *testing.T) {
	srv := redistest.Start(t, redistest.WithArgs("--maxmemory-policy", "noeviction"))
	admin := client(t, srv.Addr())
	eachRule(t, func(t *testing.T, st strategy, kind func(*redis.Options), rule ration.FailureRule) {
		for _, calls := range []int{2, 20} {
			store := open(t, client(t, srv.Addr(), kind), usual, ration.WithPrefix(freshName()), ration.WithOnFailure(rule))
			l := st.of(t, store, 400)
			commands(t, admin, "SETRANGE ballast 8000000 x", "CONFIG SET maxmemory 6mb")
			for range calls {
				d, err := l.Allow(ctx, "subject")
				requireDegraded(t, rule, d, err, ration.ClassMemory)
			}
			commands(t, admin, "DEL ballast")
			if calls < 3 {
				requireUnharmed(t, l, 399)
			} else {
				d, err := l.Allow(ctx, "subject") // the breaker doesn't know yet
				requireDegraded(t, rule, d, err, ration.ClassMemory)
				requireNormal(t, slowest, l, "subject", 399)
			}
			commands(t, admin, "CONFIG SET maxmemory 0")
		}
	})
}

// B88: constructors work with nothing there, quickly; calls follow the rule, and are normal within the probe interval
// once there is a Redis.
func TestB88NothingThere(t *testing.T) {
	srv := redistest.Start(t)
	eachRule(t, func(t *testing.T, st strategy, kind func(*redis.Options), rule ration.FailureRule) {
		srv.Stop()
		var l ration.Limiter
		requireWithin(t, 0, "the constructors", func() {
			store, err := ration.Open(client(t, srv.Addr(), kind), ration.WithOnFailure(rule))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			l = st.of(t, store, 400)
		})
		for range 2 {
			requireWithin(t, standard, "a call", func() {
				d, err := l.Allow(ctx, "subject")
				requireDegraded(t, rule, d, err, ration.ClassConnection, ration.ClassTimeout)
			})
		}
		srv.Restart()
		requireNormal(t, slowest, l, "subject", 399)
	})
}

// B89, B90: while Redis is down a decision says so and why, and the observer counts it; failures are told of
// a few times, not once a call. FailError gives no decision at all, FailClosed none that
// looks like a limit's refusal.
func TestB89B90DownSaysSo(t *testing.T) {
	srv := redistest.Start(t)
	srv.Stop()
	eachRule(t, func(t *testing.T, st strategy, kind func(*redis.Options), rule ration.FailureRule) {
		o := &observer{}
		store := open(t, client(t, srv.Addr(), kind, dialOnce), usual, ration.WithOnFailure(rule), ration.WithObserver(o))
		l := st.under(t, store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(4000, century), ration.PerHour(4000)}})
		began := time.Now()
		for range 1000 {
			d, err := l.Allow(ctx, "subject")
			requireDegraded(t, rule, d, err, ration.ClassConnection)
			if rule == ration.FailError {
				require.Zero(t, d)
			}
			if rule == ration.FailClosed {
				require.Equal(t, ration.Decision{Source: ration.Failure, Degraded: true, RetryAfter: d.RetryAfter, Cause: d.Cause}, d)
			}
		}
		probes := 3 + int(time.Since(began)/standard)
		require.NoError(t, store.Close())
		decisions, failures, changes := o.counted()
		require.Equal(t, 1000, decisions)
		require.GreaterOrEqual(t, failures, 3)
		require.LessOrEqual(t, failures, probes)
		require.Positive(t, changes)
		for _, e := range o.decisions {
			require.Equal(t, rule != ration.FailError, e.Degraded)
			require.Equal(t, rule == ration.FailError, errors.Is(e.Err, ration.ErrUnavailable))
		}
		require.NotContains(t, fmt.Sprintf("%+v", o.decisions)+fmt.Sprintf("%+v%+v", o.failures, o.changes), "subject")
	})
}

// B91: four instances let through no more than the limit between them while Redis is down, however
// the calls are spread, and afterwards Redis goes on from its own state.
func TestB91LocalShares(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, st strategy) {
		t.Parallel()
		srv := redistest.Start(t)
		p := ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(100)}}
		var instances []ration.Limiter
		for range 4 {
			store := open(t, client(t, srv.Addr(), dialOnce), usual, ration.WithTimeout(standard), ration.WithOnFailure(ration.FailLocal(4)))
			instances = append(instances, st.under(t, store, p))
		}
		srv.Stop()
		admitted := map[string]*[4]int64{"even": {}, "uneven": {}}
		for i := range 400 {
			for spread, to := range map[string]int{"even": i % 4, "uneven": 0} {
				d, err := instances[to].Allow(ctx, spread)
				require.NoError(t, err)
				require.True(t, d.Degraded)
				require.Equal(t, ration.Ring, d.Source)
				admitted[spread][to] += d.Granted
			}
		}
		require.Equal(t, [4]int64{25, 25, 25, 25}, *admitted["even"])
		require.Equal(t, [4]int64{25, 0, 0, 0}, *admitted["uneven"])
		srv.Restart() // empty
		for i, l := range instances {
			requireNormal(t, slowest, l, "even", int64(99-i))
		}
	})
}

// B94: callers that hang up say nothing about Redis under any rule: no decision without it, no failure, and
// the breaker stays closed.
func TestB94HangingUpUnderEveryRule(t *testing.T) {
	srv := redistest.Start(t)
	eachRule(t, func(t *testing.T, st strategy, kind func(*redis.Options), rule ration.FailureRule) {
		o := &observer{}
		store := open(t, client(t, srv.Addr(), kind), usual, ration.WithPrefix(freshName()), ration.WithOnFailure(rule), ration.WithObserver(o))
		l := st.of(t, store, many)
		requireWorks(t, l)
		rng := seeded(t)
		var callers sync.WaitGroup
		var quit atomic.Int64
		for i := range 1000 {
			callCtx, end := hangUp(i%4, time.Duration(rng.IntN(1000))*time.Microsecond)
			callers.Go(func() {
				defer end()
				d, err := l.Allow(callCtx, "subject")
				switch {
				case err == nil && i%4 > 1 && d.Allowed && !d.Degraded && d.Source == ration.Redis:
				case err != nil && errors.Is(err, callCtx.Err()) && !errors.Is(err, ration.ErrUnavailable) && !d.Degraded && d.Source == 0:
					quit.Add(1)
				default:
					t.Errorf("%+v, %v with %v", d, err, callCtx.Err())
				}
			})
		}
		callers.Wait()
		require.GreaterOrEqual(t, quit.Load(), int64(500))
		d, err := l.Allow(ctx, "next")
		require.NoError(t, err)
		require.False(t, d.Degraded)
		require.EqualValues(t, many-1, d.Remaining)
		decisions, failures, changes := o.counted()
		require.Equal(t, 1002, decisions)
		require.Zero(t, failures)
		require.Zero(t, changes)
	})
}
