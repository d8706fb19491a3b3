package redistest

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestCluster(t *testing.T) {
	ctx := t.Context()
	c := StartCluster(t, WithArgs("--maxmemory", "5mb"))
	require.Len(t, c.Addrs(), 3)
	rdb := c.Client(t, func(o *redis.ClusterOptions) { o.MaxRedirects = -1 }, nil)
	for i := range 100 { // without redirects: the client's map is right at once
		require.NoError(t, rdb.Set(ctx, fmt.Sprint(i), i, 0).Err())
	}
	for i, s := range c.Nodes {
		own := s.Client(t)
		require.NotZero(t, own.DBSize(ctx).Val())
		require.Equal(t, "5242880", own.ConfigGet(ctx, "maxmemory").Val()["maxmemory"])
		shards := own.ClusterShards(ctx).Val()
		require.Len(t, shards, 3)
		held := map[string][]redis.SlotRange{}
		for _, shard := range shards {
			require.Len(t, shard.Nodes, 1)
			held[fmt.Sprintf("%s:%d", shard.Nodes[0].IP, shard.Nodes[0].Port)] = shard.Slots
		}
		require.Equal(t, map[string][]redis.SlotRange{
			c.Addrs()[0]: {{Start: 0, End: 5460}},
			c.Addrs()[1]: {{Start: 5461, End: 10921}},
			c.Addrs()[2]: {{Start: 10922, End: 16383}},
		}, held, "as node %d sees it", i)
	}
}

func TestSentinel(t *testing.T) {
	ctx := t.Context()
	s := StartSentinel(t)
	require.Len(t, s.SentinelAddrs(), 3)
	rdb := s.Client(t, nil)
	require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err())
	require.EqualValues(t, 1, rdb.Wait(ctx, 1, startLimit).Val())
	require.Equal(t, "v", s.Replica.Client(t).Get(ctx, "k").Val())

	for _, addr := range s.SentinelAddrs() {
		one := redis.NewSentinelClient(&redis.Options{Addr: addr})
		got, err := one.GetMasterAddrByName(ctx, s.MasterName).Result()
		require.NoError(t, err)
		require.Equal(t, s.Master.Addr(), got[0]+":"+got[1])
		require.NoError(t, one.Close())
	}

	s.Master.Stop()
	require.NoError(t, poll(startLimit, func() error { return rdb.Set(ctx, "k", "new", 0).Err() }))
	require.Equal(t, "new", s.Replica.Client(t).Get(ctx, "k").Val())
}
