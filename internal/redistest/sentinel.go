package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// masterName is what the sentinels call their master.
const masterName = "redistest"

// Sentinel is a master with one replica, watched by three sentinels of which
// two must agree. They take a master for dead after two seconds of silence.
type Sentinel struct {
	MasterName string    // to ask the sentinels with
	Master     *Server   // the master at the start; a failover may have changed the roles
	Replica    *Server   // the replica at the start
	Sentinels  []*Server // they understand little more than SENTINEL and PING
}

// StartSentinel starts such a group and returns when the replica follows its
// master and all sentinels know each other and the replica, which takes a few
// seconds. WithArgs is for master and replica; a password or WithClock can't be
// used here.
func StartSentinel(t testing.TB, opts ...Option) *Sentinel {
	t.Helper()
	if collect(opts).hasClock {
		t.Fatal("redistest: sentinels can't watch a clock that stands still")
	}
	// The replica is to get its first copy now, not after the usual five seconds.
	opts = append([]Option{WithArgs("--repl-diskless-sync-delay", "0")}, opts...)
	s := &Sentinel{MasterName: masterName, Master: Start(t, opts...)}
	replicaOf := WithArgs("--replicaof", "127.0.0.1", fmt.Sprint(s.Master.port))
	s.Replica = Start(t, append([]Option{replicaOf}, opts...)...)
	// Sentinels look for replicas every ten seconds only, so this one is to be
	// there when they first look.
	must(t, s.Master.await("replication", "state=online"))
	for range 3 {
		s.Sentinels = append(s.Sentinels, startSentinel(t, s.Master.port))
	}
	for _, one := range s.Sentinels {
		must(t, one.await("sentinel", "status=ok", "slaves=1,", "sentinels=3"))
	}
	return s
}

func startSentinel(t testing.TB, masterPort int) *Server {
	t.Helper()
	s := newServer(t)
	s.args = func(port int) []string {
		// A sentinel keeps what it learns in its file, so each start gets a new one.
		conf := filepath.Join(s.dir, "sentinel.conf")
		text := strings.Join([]string{
			fmt.Sprintf("port %d", port), "bind 127.0.0.1",
			fmt.Sprintf("dir %q", s.dir), fmt.Sprintf("unixsocket %q", s.socket()),
			fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2", masterName, masterPort),
			"sentinel down-after-milliseconds " + masterName + " 2000",
			"sentinel failover-timeout " + masterName + " 6000",
		}, "\n")
		if err := os.WriteFile(conf, []byte(text+"\n"), 0o600); err != nil {
			t.Errorf("redistest: %v", err)
		}
		return []string{conf, "--sentinel"}
	}
	s.launch()
	return s
}

// SentinelAddrs gives the sentinels' addresses.
func (s *Sentinel) SentinelAddrs() []string { return addrs(s.Sentinels) }

// Client makes a client of whichever server is master that is closed when t
// ends. Each of opts may change the options before the client is made.
func (s *Sentinel) Client(t testing.TB, opts ...func(*redis.FailoverOptions)) *redis.Client {
	t.Helper()
	o := &redis.FailoverOptions{MasterName: s.MasterName, SentinelAddrs: s.SentinelAddrs()}
	for _, opt := range opts {
		if opt != nil {
			opt(o)
		}
	}
	rdb := redis.NewFailoverClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// await polls a section of INFO until it contains all of wants.
func (s *Server) await(section string, wants ...string) error {
	return s.ask(func(ctx context.Context, rdb *redis.Client) error {
		return poll(startLimit, func() error {
			text, err := rdb.Info(ctx, section).Result()
			if err != nil {
				return err
			}
			for _, want := range wants {
				if !strings.Contains(text, want) {
					return fmt.Errorf("no %s in INFO %s:\n%s", want, section, text)
				}
			}
			return nil
		})
	})
}
