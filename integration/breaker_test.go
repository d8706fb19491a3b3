package integration

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// outageOfOne takes one of several servers away and demands that the subjects of the others are decided on by
// Redis all the while, those never seen before too. home says where a subject is.
func outageOfOne(t *testing.T, l ration.Limiter, home func(key string) string, victim *redistest.Server) {
	t.Helper()
	for i := range 30 {
		key := fmt.Sprint("known", i)
		until(t, "an answer", func() bool { d, err := l.Allow(ctx, key); return err == nil && !d.Degraded })
	}
	victim.Freeze()
	defer victim.Thaw()
	degraded, free := 0, 0
	for i := range 400 {
		for _, key := range []string{fmt.Sprint("known", i%30), fmt.Sprint("fresh", i)} {
			gone := home(key) == victim.Addr()
			d, err := l.Allow(ctx, key)
			require.NoError(t, err)
			require.Equal(t, gone, d.Degraded, "call %d, %s: %v", i, key, d.Cause)
			if gone {
				degraded++
			} else {
				free++
			}
		}
	}
	require.Greater(t, degraded, 50)
	require.Greater(t, free, 50)
	victim.Thaw()
	for i := range 30 {
		requireNormal(t, slowest+time.Second, l, fmt.Sprint("back", i), many-1)
	}
}

func failOpen(t *testing.T, rdb redis.UniversalClient, opts ...ration.Option) *ration.Store {
	return open(t, rdb, append([]ration.Option{usual, ration.WithTimeout(standard), ration.WithOnFailure(ration.FailOpen)}, opts...)...)
}

// patient servers are well for longer than a busy machine holds them up.
var patient = []ration.Option{ration.WithTimeout(400 * time.Millisecond), ration.WithBreaker(ration.Breaker{Failures: 1})}

func TestClusterFails(t *testing.T) {
	cluster := redistest.StartCluster(t)
	t.Run("a node", func(t *testing.T) { breakerIsANodes(t, cluster) })
	t.Run("refusals", func(t *testing.T) { clusterRefusals(t, cluster) })
}

// There is a breaker a node of a cluster: what a silent node costs, the subjects of others don't pay.
func breakerIsANodes(t *testing.T, cluster *redistest.Cluster) {
	rdb := cluster.Client(t)
	l := strategies["fixed"].of(t, failOpen(t, rdb, patient...), many)
	outageOfOne(t, l, func(key string) string {
		node, err := rdb.MasterForKey(ctx, "{"+key+"}")
		require.NoError(t, err)
		return node.Options().Addr
	}, cluster.Nodes[1])
}

// So for the servers of a ring.
func TestBreakerIsARingServers(t *testing.T) {
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
	ring := redis.NewRing(&redis.RingOptions{
		Addrs:              map[string]string{"a": servers[0].Addr(), "b": servers[1].Addr()},
		HeartbeatFrequency: time.Hour, // it doesn't rearrange itself meanwhile
	})
	t.Cleanup(func() { _ = ring.Close() })
	outageOfOne(t, strategies["fixed"].of(t, failOpen(t, ring, patient...), many), func(key string) string {
		server, err := ring.GetShardClientForKey("{" + key + "}")
		require.NoError(t, err)
		return server.Options().Addr
	}, servers[0])
}

// A client whose pool has given up dialing asks once a second whether it may again; decisions are normal
// when it and the breaker have noticed.
func TestRecoveryOfAPoolThatGaveUp(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := client(t, srv.Addr(), dialOnce, func(o *redis.Options) { o.PoolSize = 1 })
	l := strategies["fixed"].of(t, failOpen(t, rdb, ration.WithTimeout(bound)), many)
	srv.Stop()
	for began := time.Now(); time.Since(began) < time.Second; time.Sleep(10 * time.Millisecond) {
		d, err := l.Allow(ctx, "subject")
		requireDegraded(t, ration.FailOpen, d, err, ration.ClassConnection)
	}
	srv.Restart()
	requireNormal(t, slowest+time.Second, l, "subject", many-1)
}

// While the breaker is open the server hears nothing, though 200 ask all the time: one call a cool-down.
func TestOpenBreakerLeavesTheServerAlone(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	admin, rdb := client(t, srv.Addr()), client(t, srv.Addr())
	l := strategies["log"].of(t, failOpen(t, rdb), many)
	requireWorks(t, l)
	commands(t, admin, "CONFIG SET maxmemory 1")
	until(t, "it's open", func() bool { d, err := l.Allow(ctx, "subject"); return err == nil && d.Degraded })
	for range 5 {
		_, _ = l.Allow(ctx, "subject")
	}
	before, sent := time.Now(), scriptRuns(t, srv)
	var calls atomic.Int64
	for time.Since(before) < time.Second {
		calls.Add(200)
		crowdOf(t, 200, l, ration.FailOpen, ration.ClassMemory)
	}
	probes := scriptRuns(t, srv) - sent
	t.Logf("%d calls, %d probes", calls.Load(), probes)
	require.Greater(t, calls.Load(), int64(1000))
	require.LessOrEqual(t, probes, 4) // 100, 300, 700 ms after it opened, and one that was under way
	commands(t, admin, "CONFIG SET maxmemory 0")
	requireNormal(t, slowest, l, "other", many-1)
}
