package redistest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// slots is the number of hash slots of any Redis Cluster.
const slots = 16384

// Cluster is three masters without replicas that share all hash slots: the
// lowest third belongs to Nodes[0], the highest to Nodes[2].
type Cluster struct {
	Nodes []*Server
}

// StartCluster starts a cluster and returns when all its nodes say that it is
// whole, which takes about two seconds: Redis itself waits that long. WithArgs
// is for all nodes; a password or WithClock can't be used here.
func StartCluster(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	set := collect(opts)
	if set.hasClock {
		t.Fatal("redistest: a cluster can't run on a clock that stands still")
	}
	c := &Cluster{}
	for range 3 {
		s := newServer(t)
		s.bus = true
		s.args = s.plainArgs(append([]string{
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-node-timeout", "5000", "--cluster-announce-ip", "127.0.0.1",
		}, set.args...)...)
		s.launch()
		c.Nodes = append(c.Nodes, s)
	}
	must(t, c.join())
	for _, s := range c.Nodes {
		must(t, s.ask(func(ctx context.Context, rdb *redis.Client) error {
			return poll(startLimit, func() error { return c.whole(ctx, rdb) })
		}))
	}
	return c
}

// Addrs gives the nodes' addresses.
func (c *Cluster) Addrs() []string { return addrs(c.Nodes) }

// Client makes a client of the cluster that is closed when t ends. Each of
// opts may change the options before the client is made.
func (c *Cluster) Client(t testing.TB, opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	o := &redis.ClusterOptions{Addrs: c.Addrs()}
	for _, opt := range opts {
		if opt != nil {
			opt(o)
		}
	}
	rdb := redis.NewClusterClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// join deals out the slots and introduces the nodes to each other.
func (c *Cluster) join() error {
	for i, s := range c.Nodes {
		low, high := slots*i/len(c.Nodes), slots*(i+1)/len(c.Nodes)-1
		err := s.ask(func(ctx context.Context, rdb *redis.Client) error {
			// Masters that meet with equal epochs have to settle them first.
			if err := rdb.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
				return err
			}
			if err := rdb.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", low, high).Err(); err != nil {
				return err
			}
			if i == 0 {
				return nil
			}
			return rdb.ClusterMeet(ctx, "127.0.0.1", fmt.Sprint(c.Nodes[0].port)).Err()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// whole gives nil when the node that rdb asks knows the whole cluster.
func (c *Cluster) whole(ctx context.Context, rdb *redis.Client) error {
	info, err := rdb.ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	for _, want := range []string{
		"cluster_state:ok", fmt.Sprintf("cluster_slots_ok:%d", slots),
		fmt.Sprintf("cluster_known_nodes:%d", len(c.Nodes)), fmt.Sprintf("cluster_size:%d", len(c.Nodes)),
	} {
		if !strings.Contains(info, want+"\r\n") {
			return fmt.Errorf("no %s in CLUSTER INFO:\n%s", want, info)
		}
	}
	return nil
}

// ask runs f with a client of the server that lives only as long.
func (s *Server) ask(f func(context.Context, *redis.Client) error) error {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer func() { _ = rdb.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*startLimit)
	defer cancel()
	return f(ctx, rdb)
}
