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

const budget = 50 * time.Millisecond

// lateness measures, until it's asked, by how much this machine wakes a sleeper too late.
func lateness() (most func() time.Duration) {
	var worst atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			began := time.Now()
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				worst.Store(max(worst.Load(), int64(time.Since(began)-time.Millisecond)))
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		<-stopped
		return time.Duration(worst.Load())
	}
}

// requireWithin demands that f returns within limit, and the slack of a busy machine: 50 ms, and
// three times what it was late by meanwhile, for there's more than one wake-up on the way.
func requireWithin(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	late := lateness()
	began := time.Now()
	f()
	took := time.Since(began)
	slack := 50*time.Millisecond + 3*late()
	t.Logf("%s: %v (slack %v)", what, took, slack)
	require.LessOrEqual(t, took, limit+slack, what)
}

// B28: a server that accepts and never answers costs a call its caller's deadline or the
// library's budget, also where 200 wait; when the server goes on, so does the limiter.
func TestB28FrozenServer(t *testing.T) {
	eachClient(t, func(t *testing.T, st strategy, kind func(*redis.Options)) {
		srv := redistest.Start(t)
		w := &watch{st: st}
		rdb := client(t, srv.Addr(), kind)
		watched(w, rdb)
		patient := st.of(t, open(t, rdb), many)
		brief := st.of(t, open(t, rdb, ration.WithTimeout(budget)), many)
		until(t, "a connection", func() bool { _, err := brief.Allow(ctx, "u"); return err == nil })

		srv.Freeze()
		requireWithin(t, 2*budget, "a deadline of 50 ms", func() {
			short, cancel := context.WithTimeout(ctx, budget)
			defer cancel()
			_, err := patient.Allow(short, "u")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, ration.ErrUnavailable)
		})
		for range 3 {
			requireWithin(t, 2*budget, "a budget of 50 ms", func() { requireUnavailable(t, brief) })
		}
		requireWithin(t, 2*budget, "200 budgets of 50 ms", func() {
			var callers sync.WaitGroup
			for range 200 {
				callers.Go(func() { requireUnavailable(t, brief) })
			}
			callers.Wait()
		})
		srv.Thaw()

		row := 0
		until(t, "calls work again", func() bool {
			if _, err := brief.Allow(ctx, "u"); err != nil {
				row = 0
			}
			row++
			return row == 20
		})
		sent := int64(w.tally().calls)
		require.LessOrEqual(t, st.used(t, srv.Addr(), "u", many), sent, "charged what was never sent")
	})
}

func requireUnavailable(t *testing.T, l ration.Limiter) {
	d, err := l.Allow(ctx, "u")
	if !errors.Is(err, ration.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || d.Allowed {
		t.Errorf("a frozen server: %+v, %v", d, err)
	}
}

// B28: calls whose callers leave while they wait for a run are withdrawn: they're never
// charged, also when the server goes on later.
func TestB28WithdrawnCallsAreNotCharged(t *testing.T) {
	each(t, func(t *testing.T, st strategy) {
		srv := redistest.Start(t)
		w := &watch{st: st}
		rdb := client(t, srv.Addr())
		watched(w, rdb)
		l := st.of(t, open(t, rdb, oneRun), many)
		requireWorks(t, l)
		srv.Freeze()
		seen := w.runsSeen()
		first := make(chan error, 1)
		go func() {
			_, err := l.Allow(ctx, "u")
			first <- err
		}()
		until(t, "the first call's run", func() bool { return w.runsSeen() > seen })
		requireWithin(t, 2*budget, "50 that leave", func() {
			short, cancel := context.WithTimeout(ctx, budget)
			defer cancel()
			var callers sync.WaitGroup
			for range 50 {
				callers.Go(func() {
					if _, err := l.Allow(short, "u"); !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
				})
			}
			callers.Wait()
		})
		srv.Thaw()
		require.NoError(t, <-first)
		requireWorks(t, l)
		require.EqualValues(t, 1, st.used(t, srv.Addr(), "u", many))
	})
}

// A caller that leaves while it waits behind a run on a frozen server hurts nobody: it returns at once,
// the others of its run get their answers when the server goes on, and it isn't charged.
func TestLeavingCallerHurtsNobody(t *testing.T) {
	each(t, func(t *testing.T, st strategy) {
		srv := redistest.Start(t)
		w := &watch{st: st}
		rdb := client(t, srv.Addr())
		watched(w, rdb)
		l := st.of(t, open(t, rdb, oneRun), 100)
		requireWorks(t, l)
		srv.Freeze()
		seen := w.runsSeen()
		leaver, leave := context.WithCancel(ctx)
		defer leave()
		var stay sync.WaitGroup
		var left sync.Map // Remaining of those that stay
		ask := func() {
			d, err := l.Allow(ctx, "u")
			if _, twice := left.LoadOrStore(d.Remaining, true); twice || err != nil || !d.Allowed {
				t.Errorf("%+v, %v", d, err)
			}
		}
		stay.Go(ask)
		until(t, "the first call's run", func() bool { return w.runsSeen() > seen })
		gone := make(chan error, 1)
		go func() {
			_, err := l.Allow(leaver, "u")
			gone <- err
		}()
		for range 9 {
			stay.Go(ask)
		}
		awaitCalls(t, 11)
		requireWithin(t, budget, "a cancelled call", func() {
			leave()
			require.ErrorIs(t, <-gone, context.Canceled)
		})
		srv.Thaw()
		stay.Wait()
		require.EqualValues(t, 10, st.used(t, srv.Addr(), "u", 100))
		for i := range 10 {
			_, ok := left.Load(int64(99 - i))
			require.True(t, ok, "nobody was told that %d remain", 99-i)
		}
	})
}

// A node of a cluster that is silent holds up its own subjects and no others.
func TestFrozenNodeHoldsUpItsOwn(t *testing.T) {
	cluster := redistest.StartCluster(t)
	each(t, func(t *testing.T, st strategy) {
		rdb := cluster.Client(t)
		l := st.of(t, open(t, rdb, ration.WithPrefix(freshName()), ration.WithTimeout(bound)), many)
		var own, others []string // subjects of the node that will be frozen, and the rest
		for i := range 60 {
			key := fmt.Sprint("u", i)
			_, err := l.Allow(ctx, key) // now its node is known
			require.NoError(t, err)
			node, err := rdb.MasterForKey(ctx, "{"+key+"}")
			require.NoError(t, err)
			if node.Options().Addr == cluster.Nodes[0].Addr() {
				own = append(own, key)
			} else {
				others = append(others, key)
			}
		}
		cluster.Nodes[0].Freeze()
		var held, free sync.WaitGroup
		for _, key := range own {
			held.Go(func() {
				if d, err := l.Allow(ctx, key); err != nil || d.Remaining != many-2 {
					t.Errorf("%+v, %v", d, err)
				}
			})
		}
		awaitCalls(t, len(own))
		for _, key := range others {
			free.Go(func() {
				if d, err := l.Allow(ctx, key); err != nil || d.Remaining != many-2 {
					t.Errorf("%+v, %v", d, err)
				}
			})
		}
		free.Wait() // or the test never ends
		require.Equal(t, len(own), goroutines("ration.(*lane).ask"))
		cluster.Nodes[0].Thaw()
		held.Wait()
	})
}

// B28: on a cluster with a silent node too, for clients that know the cluster and for fresh ones.
func TestB28FrozenNode(t *testing.T) {
	cluster := redistest.StartCluster(t)
	eachClient(t, func(t *testing.T, st strategy, kind func(*redis.Options)) {
		var one redis.Options
		kind(&one)
		like := func(o *redis.ClusterOptions) { o.ContextTimeoutEnabled = one.ContextTimeoutEnabled }
		limiter := func() ration.Limiter {
			store := open(t, cluster.Client(t, like), ration.WithPrefix(freshName()), ration.WithTimeout(budget))
			return st.of(t, store, many)
		}
		known := limiter()
		for i := range 30 {
			until(t, "an answer", func() bool { _, err := known.Allow(ctx, fmt.Sprint("u", i)); return err == nil })
		}
		fresh := []ration.Limiter{limiter(), limiter(), limiter()}
		cluster.Nodes[0].Freeze()
		defer cluster.Nodes[0].Thaw()
		failed := 0
		for i := range 12 {
			requireWithin(t, 2*budget, "a client that knows the cluster", func() {
				if _, err := known.Allow(ctx, fmt.Sprint("u", i)); err != nil {
					require.ErrorIs(t, err, ration.ErrUnavailable)
					failed++
				}
			})
		}
		require.Positive(t, failed)
		require.Less(t, failed, 12)
		for _, l := range fresh {
			for range 3 {
				requireWithin(t, 2*budget, "a fresh client", func() { _, _ = l.Allow(ctx, "u") })
			}
		}
	})
}
