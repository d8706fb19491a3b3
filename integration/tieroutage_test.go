package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// shared is the tier of one of n instances that split a part of the units.
func shared(part float64, n int) []ration.TierOption {
	return []ration.TierOption{ration.WithShare(part), ration.WithInstances(n)}
}

// B88: whoever starts without a Redis makes normal decisions soon after there is one, in either mode, and
// from memory before long.
func TestB88TiersStartWithoutRedis(t *testing.T) {
	const longest = 200 * time.Millisecond
	for mode, tier := range map[string][]ration.TierOption{"lease": {ration.WithHold(time.Second)}, "share": shared(0.5, 2)} {
		t.Run(mode, func(t *testing.T) {
			eachOf(t, leased, func(t *testing.T, st strategy) {
				srv := redistest.Start(t)
				srv.Stop()
				b := ration.WithBreaker(ration.Breaker{Cooldown: longest / 4, MaxCooldown: longest})
				store := open(t, client(t, srv.Addr()), b, ration.WithTimeout(2*budget))
				l, err := ration.NewTwoTier(st.under(t, store, lasting), tier...)
				require.NoError(t, err)
				for range 10 {
					requireWithin(t, 3*budget, "no Redis", func() { requireUnavailableFor(t, l, "u") })
				}
				srv.Restart()
				requireWithin(t, longest+4*budget, "a normal decision", func() {
					until(t, "it", func() bool {
						d, err := l.Allow(ctx, "u")
						return err == nil && d.Allowed && !d.Degraded
					})
				})
				until(t, "units in memory", func() bool {
					d, err := l.Allow(ctx, "u")
					return err == nil && d.Source != ration.Redis
				})
			})
		})
	}
}

// B94: callers that hang up leave a block as it is, a block that is under way comes all the same, and the
// breaker, which would open at the first failure, hears nothing of them.
func TestB94HangingUpBehindABlock(t *testing.T) {
	t.Parallel()
	eachOf(t, leased, func(t *testing.T, st strategy) {
		t.Parallel()
		srv := redistest.Start(t)
		l := st.twoTier(t, client(t, srv.Addr()), lasting, alone(time.Second), ration.WithBreaker(ration.Breaker{Failures: 1}))
		requireWorks(t, l)
		release := make(chan struct{})
		l.watch.on(func(int) { <-release }, nil)
		hanging, hangUp := context.WithCancel(ctx)
		var callers sync.WaitGroup
		for range 100 {
			callers.Go(func() {
				if _, err := l.Allow(hanging, "u"); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		awaitCalls(t, 100)
		hangUp()
		callers.Wait()
		close(release)
		l.spend(t, "u", 1)
		for range 100 {
			before := l.watch.runsSeen()
			d, err := l.Allow(hanging, "u")
			require.ErrorIs(t, err, context.Canceled)
			require.Zero(t, d)
			require.LessOrEqual(t, l.watch.runsSeen(), before+1) // the next block may come, or an old one go
		}
		require.Zero(t, l.ledger.failed.Load())
		require.Zero(t, l.ledger.changed.Load())
		require.NoError(t, l.store.Close())
		granted := l.used(t, srv, "u")
		require.LessOrEqual(t, granted, l.watch.units('a')+l.ledger.taken.Load()-l.ledger.unused.Load())
		require.Zero(t, l.ledger.lost.Load())
	})
}

// B91: the shares and, of the pool, each instance's part go on without Redis, and make no more than the
// limit, also where the pool is less than one unit an instance.
func TestB91SharesWithoutRedis(t *testing.T) {
	for _, c := range []struct {
		units int64
		part  float64
		pool  int64
		least int
	}{{100, 0.8, 20, 100}, {100, 0.5, 52, 98}, {10, 0.9, 6, 8}, {101, 0.999, 5, 100}} {
		for name, first := range map[string]bool{"that was there": true, "that never was": false} {
			t.Run(fmt.Sprintf("%d at %v, a Redis %s", c.units, c.part, name), func(t *testing.T) {
				t.Parallel()
				srv := redistest.Start(t)
				if !first {
					srv.Stop()
				}
				policy := ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(c.units)}}
				var instances []ration.Limiter
				for range fleet {
					store := open(t, client(t, srv.Addr()), ration.WithOnFailure(ration.FailLocal(fleet)),
						ration.WithBreaker(ration.Breaker{}), ration.WithTimeout(2*budget))
					l, err := ration.NewTwoTier(strategies["log"].under(t, store, policy), shared(c.part, fleet)...)
					require.NoError(t, err)
					instances = append(instances, l)
				}
				if first {
					for _, l := range instances {
						awaitShare(t, l, "u", c.pool)
					}
					srv.Stop()
				}
				admitted := 0
				for i := range 4 * int(c.units) {
					d, err := instances[i%fleet].Allow(ctx, "u")
					require.NoError(t, err)
					admitted += int(d.Granted)
				}
				require.LessOrEqual(t, admitted, int(c.units))
				if first {
					require.GreaterOrEqual(t, admitted, c.least)
				}
			})
		}
	}
}

// awaitShare waits until an instance has a share, without spending of it: then more remains of a fresh subject than the pool.
func awaitShare(t testing.TB, l ration.Limiter, key string, pool int64) {
	t.Helper()
	until(t, "a share", func() bool {
		d, err := l.Peek(ctx, key)
		return err == nil && d.Remaining > pool
	})
}

// Two tiers of a policy on one store are two instances: a share is spent once.
func TestTwoSharesOnOneStore(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	store := open(t, client(t, srv.Addr()))
	global := strategies["log"].under(t, store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(100)}})
	granted := int64(0)
	for range 2 {
		l, err := ration.NewTwoTier(global, shared(0.8, 1)...) // there is one place
		require.NoError(t, err)
		for began := time.Now(); time.Since(began) < 500*time.Millisecond; time.Sleep(time.Millisecond) {
			d, err := l.Allow(ctx, "u")
			require.NoError(t, err)
			granted += d.Granted
		}
	}
	require.EqualValues(t, 100, granted)
}

// An instance that was idle since Redis was away has lost its place meanwhile: it doesn't spend its share
// until it has asked for it again.
func TestIdleThroughAnOutageLosesItsPlace(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	policy := ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(100, time.Second)}}
	share := func() *tiered {
		of := &tiered{ledger: &ledger{}}
		of.store = open(t, client(t, srv.Addr()), ration.WithTimeout(budget), ration.WithObserver(of.ledger))
		var err error
		of.Limiter, err = ration.NewTwoTier(strategies["log"].under(t, of.store, policy), shared(0.8, 1)...)
		require.NoError(t, err)
		return of
	}
	idle := share()
	awaitShare(t, idle, "u", 20)
	srv.Freeze()
	for began := time.Now(); time.Since(began) < 1200*time.Millisecond; time.Sleep(budget) { // a beat fails
		_, _ = idle.Peek(ctx, "u")
	}
	time.Sleep(3500 * time.Millisecond) // the beats end, and so does the time of its place
	srv.Thaw()
	other := share()
	until(t, "the place of the idle one", func() bool {
		d, err := other.Allow(ctx, "v")
		return err == nil && d.Source == ration.Ring
	})
	d, err := idle.Allow(ctx, "u")
	require.NoError(t, err)
	require.Equal(t, ration.Redis, d.Source)
}
