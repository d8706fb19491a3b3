package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// B79: a flushed script cache, and a server that was restarted on its address, cost no call its
// answer. (The client looks at a pooled connection before it uses it, so not even the
// first call meets a dead one.)
func TestB79FlushAndRestart(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, st strategy, kind func(*redis.Options)) {
		t.Parallel()
		srv := redistest.Start(t)
		rdb := client(t, srv.Addr(), kind)
		l := st.of(t, open(t, rdb), 100)
		requireRemaining(t, 99, func() (ration.Decision, error) { return l.Allow(ctx, "u") })
		require.NoError(t, rdb.ScriptFlush(ctx).Err())
		require.Len(t, passed(t, []ration.Limiter{l}, "u", 50), 50)
		require.EqualValues(t, 51, st.used(t, srv.Addr(), "u", 100))
		for i := range 20 {
			require.NoError(t, rdb.ScriptFlush(ctx).Err())
			requireRemaining(t, int64(48-i), func() (ration.Decision, error) { return l.Allow(ctx, "u") })
		}
		for i := range 4 {
			srv.Restart()
			if i%2 == 0 {
				requireRemaining(t, 99, func() (ration.Decision, error) { return l.Allow(ctx, "u") })
			} else {
				require.Len(t, passed(t, []ration.Limiter{l}, "u", 60), 60)
				require.EqualValues(t, 60, st.used(t, srv.Addr(), "u", 100))
			}
		}
	})
}

// B79: while the server is away calls fail, each once; none does after it's back.
func TestB79RestartUnderLoad(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, st strategy) {
		t.Parallel()
		srv := redistest.Start(t)
		l := st.of(t, open(t, client(t, srv.Addr())), many)
		for range 3 {
			var callers sync.WaitGroup
			load, end := context.WithCancel(ctx)
			for range 20 {
				callers.Go(func() {
					for load.Err() == nil {
						if d, err := l.Allow(ctx, "u"); err != nil {
							checkOutage(t, d, err)
						}
					}
				})
			}
			runs := scriptRuns(t, srv)
			until(t, "some load", func() bool { return scriptRuns(t, srv) > runs+20 })
			srv.Restart()
			end()
			callers.Wait()
			for range 50 {
				callers.Go(func() {
					if d, err := l.Allow(ctx, "u"); err != nil || !d.Allowed {
						t.Errorf("after the restart: %+v, %v", d, err)
					}
				})
			}
			callers.Wait()
		}
	})
}

// checkOutage demands of an error that it's ErrUnavailable and nothing else.
func checkOutage(t testing.TB, d ration.Decision, err error) {
	t.Helper()
	for _, never := range []error{context.Canceled, context.DeadlineExceeded, ration.ErrMisconfigured} {
		if errors.Is(err, never) || !errors.Is(err, ration.ErrUnavailable) || d.Allowed || d.Granted != 0 {
			t.Errorf("%+v, %v", d, err)
		}
	}
}

// B80: twenty subjects in one run that meets an empty script cache, and again after a flush.
func TestB80FlushBeforeASharedRun(t *testing.T) {
	each(t, func(t *testing.T, st strategy) {
		srv := redistest.Start(t)
		rdb := client(t, srv.Addr())
		flush := func() { require.NoError(t, rdb.ScriptFlush(ctx).Err()) }
		st.shareFlushedRuns(t, rdb, flush, func() redis.UniversalClient { return client(t, srv.Addr()) })
	})
}

// B80: on a cluster such a run is a pipeline of several scripts over all nodes.
func TestB80FlushBeforeASharedPipeline(t *testing.T) {
	cluster := redistest.StartCluster(t)
	each(t, func(t *testing.T, st strategy) {
		rdb := cluster.Client(t)
		flush := func() {
			require.NoError(t, rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
				return node.ScriptFlush(ctx).Err()
			}))
		}
		flush()
		st.shareFlushedRuns(t, rdb, flush, func() redis.UniversalClient { return cluster.Client(t) })
	})
}

// shareFlushedRuns has 20 subjects share a run, whose scripts no server knows, three times.
func (st strategy) shareFlushedRuns(t *testing.T, rdb redis.UniversalClient, flush func(), other func() redis.UniversalClient) {
	w := watched(&watch{st: st}, rdb)
	w.on(func(int) { flush() }, nil)
	prefix := ration.WithPrefix(freshName())
	checks := st.of(t, open(t, other(), prefix), 1000)
	for round := range int64(3) {
		// A fresh store hasn't learned yet which node a subject belongs to: all wait on one lane.
		l := st.of(t, open(t, rdb, prefix, oneRun), 1000)
		answers, errs := make([]ration.Decision, 20), make([]error, 20)
		var calls []func()
		for i := range answers {
			calls = append(calls, func() { answers[i], errs[i] = l.AllowN(ctx, fmt.Sprint("u", i), int64(1+i)) })
		}
		together(t, w, func() { _, _ = l.Peek(ctx, "first") }, calls...)()
		require.Equal(t, 20, w.lastSize())
		for i, d := range answers {
			require.NoError(t, errs[i])
			require.True(t, d.Allowed)
			require.EqualValues(t, 1+i, d.Granted)
			require.Equal(t, 1000-(round+1)*int64(1+i), d.Remaining)
			peek, err := checks.Peek(ctx, fmt.Sprint("u", i))
			require.NoError(t, err)
			require.Equal(t, d.Remaining, peek.Remaining)
		}
	}
}
