package integration

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// B28 with a block in hand: on a frozen server calls go on as long as it lasts, and then cost their
// budget, as do those for other subjects; 200 at once, too.
func TestB28FrozenServerBehindABlock(t *testing.T) {
	eachOf(t, leased, func(t *testing.T, st strategy) {
		const hold = 600 * time.Millisecond
		srv := redistest.Start(t)
		l := st.twoTier(t, client(t, srv.Addr()), lasting, alone(hold), ration.WithTimeout(budget))
		l.spend(t, "u", 500)
		began := time.Now()
		srv.Freeze()
		for time.Since(began) < hold/3 {
			requireWithin(t, budget, "a call that the block serves", func() {
				d, err := l.Allow(ctx, "u")
				require.NoError(t, err)
				require.Equal(t, ration.Lease, d.Source)
			})
			requireWithin(t, 3*budget, "another subject", func() { requireUnavailableFor(t, l, "v") })
		}
		until(t, "the hold's end", func() bool {
			_, err := l.Allow(ctx, "u")
			return err != nil
		})
		require.Less(t, time.Since(began), hold+bound/10)
		requireWithin(t, 2*budget, "200 budgets of 50 ms", func() {
			var callers sync.WaitGroup
			for range 200 {
				callers.Go(func() { requireUnavailableFor(t, l, "u") })
			}
			callers.Wait()
		})
		srv.Thaw()
		until(t, "a block", func() bool {
			d, err := l.Allow(ctx, "u")
			return err == nil && d.Source == ration.Lease
		})
	})
}

func requireUnavailableFor(t testing.TB, l ration.Limiter, key string) {
	d, err := l.Allow(ctx, key)
	if !errors.Is(err, ration.ErrUnavailable) || d.Allowed {
		t.Errorf("a frozen server: %+v, %v", d, err)
	}
}

// B28: Close gives back what it can and waits for it no longer than a call would, however much is held;
// with the heartbeat's goodbye too. That nothing is left running is checked when all tests are done.
func TestB28CloseOnFrozenServer(t *testing.T) {
	for mode, tier := range map[string][]ration.TierOption{
		"lease": {ration.WithHold(10 * time.Second)},
		"share": {ration.WithShare(0.5), ration.WithInstances(2)},
	} {
		for kind, yes := range map[string]bool{"usual client": false, "obedient client": true} {
			t.Run(mode+" "+kind, func(t *testing.T) {
				srv := redistest.Start(t)
				rdb := client(t, srv.Addr(), obedient(yes))
				store := open(t, rdb, ration.WithTimeout(budget))
				l, err := ration.NewTwoTier(strategies["log"].under(t, store, lasting), tier...)
				require.NoError(t, err)
				for i := range 200 {
					until(t, "units in memory", func() bool {
						d, err := l.Allow(ctx, fmt.Sprint("u", i))
						return err == nil && (d.Source == ration.Lease || d.Source == ration.Ring)
					})
				}
				srv.Freeze()
				requireWithin(t, 2*budget, "Close", func() { require.NoError(t, store.Close()) })
				_, err = l.Allow(ctx, "new")
				if mode == "lease" {
					require.ErrorIs(t, err, ration.ErrClosed)
				}
				srv.Thaw()
			})
		}
	}
}
