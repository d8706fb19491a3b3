package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// outage is a state of a real server in which it refuses, set by commands and ended by others.
type outage struct {
	class    ration.FailureClass
	set, end []string
	or       ration.FailureClass // another class it may have
}

var outages = map[string]outage{
	"a replica":        {ration.ClassReadOnly, []string{"REPLICAOF 127.0.0.1 1"}, []string{"REPLICAOF NO ONE"}, ""},
	"too few replicas": {ration.ClassReadOnly, []string{"CONFIG SET min-replicas-to-write 1"}, []string{"CONFIG SET min-replicas-to-write 0"}, ""},
	"no master": {ration.ClassMasterDown, []string{"CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"},
		[]string{"CONFIG SET replica-serve-stale-data yes", "REPLICAOF NO ONE"}, ""},
	"no memory":         {ration.ClassMemory, []string{"CONFIG SET maxmemory 1"}, []string{"CONFIG SET maxmemory 0"}, ""},
	"no command":        {ration.ClassMisconfigured, []string{"ACL SETUSER default -evalsha"}, []string{"ACL SETUSER default +@all"}, ""},
	"no command inside": {ration.ClassMisconfigured, []string{"ACL SETUSER default -time"}, []string{"ACL SETUSER default +@all"}, ""},
	"no keys":           {ration.ClassMisconfigured, []string{"ACL SETUSER default resetkeys ~other:*"}, []string{"ACL SETUSER default ~*"}, ""},
	"a password":        {ration.ClassMisconfigured, []string{"CONFIG SET requirepass secret"}, []string{"CONFIG SET requirepass "}, ration.ClassConnection}, // it hangs up
}

// commands has a server do commands, written as in redis-cli.
func commands(t testing.TB, rdb redis.UniversalClient, lines ...string) {
	t.Helper()
	for _, line := range lines {
		var args []any
		for arg := range strings.SplitSeq(line, " ") {
			args = append(args, arg)
		}
		require.NoError(t, rdb.Do(ctx, args...).Err(), line)
	}
}

// What real servers say has the right class under every rule, and ends with its reason: the next
// call is a normal one.
func TestRealOutages(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	admin := client(t, srv.Addr())
	require.NoError(t, admin.Ping(ctx).Err())
	for name, o := range outages {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, st strategy) {
				for _, rule := range rules {
					prefix := ration.WithPrefix(freshName())
					limiter := func() ration.Limiter {
						return st.of(t, open(t, client(t, srv.Addr()), prefix, ration.WithOnFailure(rule)), 400)
					}
					l := limiter()
					commands(t, admin, o.set...)
					for range 2 {
						d, err := l.Allow(ctx, "subject")
						requireDegraded(t, rule, d, err, o.class, o.or)
					}
					commands(t, admin, o.end...)
					if o.or != "" { // what it hung up on may be met once more
						l = limiter()
					}
					requireUnharmed(t, l, 399)
				}
			})
		})
	}
}

// requireUnharmed demands a normal answer.
func requireUnharmed(t *testing.T, l ration.Limiter, remaining int64) {
	t.Helper()
	d, err := l.Allow(ctx, "subject")
	require.NoError(t, err)
	require.False(t, d.Degraded)
	require.NoError(t, d.Cause)
	require.Equal(t, remaining, d.Remaining)
}

// A server that reads its data, and one that is busy with a script, say so.
func TestLoadingAndBusyServer(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.WithArgs("--enable-debug-command", "yes", "--busy-reply-threshold", "1",
		"--loading-process-events-interval-bytes", "1024"))
	admin := client(t, srv.Addr(), func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = bound, -1 })
	for i := range 1000 {
		require.NoError(t, admin.Set(ctx, fmt.Sprint("data", i), strings.Repeat("x", 2000), 0).Err())
	}
	for name, c := range map[string]struct{ begin, end []any }{
		"loading": {[]any{"DEBUG", "RELOAD"}, []any{"CONFIG", "SET", "key-load-delay", 0}},
		"busy":    {[]any{"EVAL", "while true do end", 0}, []any{"SCRIPT", "KILL"}},
	} {
		t.Run(name, func(t *testing.T) {
			commands(t, admin, "CONFIG SET key-load-delay 5000") // µs a key, and after each it hears callers
			rdb := client(t, srv.Addr(), func(o *redis.Options) { o.MaxRetries = -1 })
			require.NoError(t, rdb.Ping(ctx).Err())
			ended := make(chan error, 1)
			go func() { ended <- admin.Do(ctx, c.begin...).Err() }()
			until(t, name, func() bool { return rdb.Ping(ctx).Err() != nil })
			st, prefix := strategies["log"], ration.WithPrefix(freshName())
			for _, rule := range rules {
				l := st.of(t, open(t, rdb, prefix, ration.WithOnFailure(rule)), 400)
				d, err := l.Allow(ctx, "subject")
				requireDegraded(t, rule, d, err, ration.ClassLoading)
			}
			require.NoError(t, rdb.Do(ctx, c.end...).Err())
			<-ended
			requireUnharmed(t, st.of(t, open(t, rdb, prefix), 400), 399)
		})
	}
}

// A node of a cluster that a plain client asks refuses keys of others, of several slots at once, and
// of a slot that nobody has.
func clusterRefusals(t *testing.T, cluster *redistest.Cluster) {
	st := strategies["log"]
	limiter := func(node int, rule ration.FailureRule) ration.Limiter {
		return st.of(t, open(t, client(t, cluster.Nodes[node].Addr()), oneRun, ration.WithOnFailure(rule), ration.WithPrefix(freshName())), 400)
	}
	for _, rule := range rules {
		d, err := limiter(0, rule).Allow(ctx, "subject") // of slot 9897, the second node's
		requireDegraded(t, rule, d, err, ration.ClassCluster)

		l := limiter(2, rule)
		var crossed atomic.Bool
		var callers sync.WaitGroup
		for _, key := range []string{"subject2", "u", "a"} { // of slots 15285, 11826 and 15495
			callers.Go(func() {
				for !crossed.Load() {
					d, err := l.Peek(ctx, key) // alone, or together with others
					if err != nil || d.Degraded {
						crossed.Store(true)
						cause := errors.Join(err, d.Cause)
						if ration.ClassOf(cause) != ration.ClassCluster || !strings.Contains(cause.Error(), "CROSSSLOT") {
							t.Error(cause)
						}
					}
				}
			})
		}
		callers.Wait()
	}
	commands(t, client(t, cluster.Nodes[2].Addr()), "CLUSTER DELSLOTS 15285")
	for _, rule := range rules {
		d, err := limiter(2, rule).Allow(ctx, "subject2")
		requireDegraded(t, rule, d, err, ration.ClassCluster)
	}
}

// What isn't a Redis, or hangs up, is told from one that's silent.
func TestNotARedis(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		says  string
		class ration.FailureClass
	}{
		"a web server":  {"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", ration.ClassReply},
		"a mail server": {"220 mail.example.org ESMTP\r\n", ration.ClassReply},
		"it hangs up":   {"", ration.ClassConnection},
	} {
		t.Run(name, func(t *testing.T) {
			addr := listen(t, func(conn net.Conn) {
				_, _ = conn.Read(make([]byte, 1000))
				_, _ = io.WriteString(conn, c.says)
				_ = conn.Close()
			})
			for _, rule := range rules {
				l := strategies["fixed"].of(t, open(t, client(t, addr), ration.WithOnFailure(rule)), 400)
				d, err := l.Allow(ctx, "subject")
				requireDegraded(t, rule, d, err, c.class)
			}
		})
	}
}
