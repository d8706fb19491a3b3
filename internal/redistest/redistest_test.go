package redistest

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStart(t *testing.T) {
	ctx := t.Context()
	var pid int
	var addr, dir string
	t.Run("running", func(t *testing.T) {
		s := Start(t, WithArgs("--maxmemory", "3mb"), nil)
		pid, addr, dir = s.Pid(), s.Addr(), s.dir
		rdb := s.Client(t, func(o *redis.Options) { o.DB = 3 }, nil)
		require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err())
		require.Contains(t, rdb.Info(ctx, "server").Val(), fmt.Sprintf("process_id:%d\r\n", pid))
		require.Contains(t, rdb.Info(ctx, "keyspace").Val(), "db3:")
		require.Equal(t, "3145728", rdb.ConfigGet(ctx, "maxmemory").Val()["maxmemory"])
		require.NotEqual(t, "127.0.0.1:6379", addr)
	})
	require.False(t, alive(pid), "the server outlived its test")
	_, err := net.Dial("tcp", addr)
	require.Error(t, err)
	require.NoDirExists(t, dir)
}

func TestStopAndRestart(t *testing.T) {
	ctx := t.Context()
	s := Start(t)
	rdb := s.Client(t, func(o *redis.Options) { o.DialerRetries, o.MaxRetries = 1, -1 })
	require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err())
	addr, pid := s.Addr(), s.Pid()
	s.Stop()
	require.False(t, alive(pid))
	require.Zero(t, s.Pid())
	require.ErrorContains(t, rdb.Ping(ctx).Err(), "refused")
	s.Stop()

	s.Restart()
	require.Equal(t, addr, s.Addr())
	require.NotEqual(t, pid, s.Pid())
	require.ErrorIs(t, rdb.Get(ctx, "k").Err(), redis.Nil, "it must come back empty")

	pid = s.Pid()
	s.Restart()
	require.False(t, alive(pid))
	require.NoError(t, rdb.Ping(ctx).Err())
}

func TestFreezeAndThaw(t *testing.T) {
	ctx := t.Context()
	s := Start(t)
	rdb := s.Client(t, func(o *redis.Options) {
		o.ReadTimeout, o.MaxRetries = 50*time.Millisecond, -1
	})
	require.NoError(t, rdb.Ping(ctx).Err())
	for range 3 {
		s.Freeze()
		require.ErrorContains(t, rdb.Ping(ctx).Err(), "timeout")
		s.Thaw()
		require.NoError(t, poll(startLimit, func() error { return rdb.Ping(ctx).Err() }))
	}
	s.Freeze()
	pid := s.Pid()
	s.Stop()
	require.False(t, alive(pid))
}

func TestBusyServerIsKilled(t *testing.T) {
	s := Start(t)
	rdb := s.Client(t, func(o *redis.Options) {
		o.ReadTimeout, o.MaxRetries = 50*time.Millisecond, -1
	})
	require.ErrorContains(t, rdb.Eval(t.Context(), `while true do end`, nil).Err(), "timeout")
	pid := s.Pid()
	s.Stop()
	require.False(t, alive(pid))
}

func TestServerWithPasswordIsReady(t *testing.T) {
	s := Start(t, WithArgs("--requirepass", "secret"))
	require.ErrorContains(t, s.Client(t).Ping(t.Context()).Err(), "NOAUTH")
	rdb := s.Client(t, func(o *redis.Options) { o.Password = "secret" })
	require.NoError(t, rdb.Ping(t.Context()).Err())
}

// The port is taken by a server that even answers PING.
func TestTakenPort(t *testing.T) {
	other := Start(t)
	s := newServer(t)
	s.args = s.plainArgs()
	s.port = other.port
	require.ErrorIs(t, s.run(), errPortTaken)
	require.Zero(t, s.Pid())
	s.launch()
	require.NotEqual(t, other.Addr(), s.Addr())
	require.NoError(t, s.Client(t).Ping(t.Context()).Err())
}

func TestRestartWaitsForItsPort(t *testing.T) {
	s := Start(t)
	s.Stop()
	l, err := net.Listen("tcp", s.Addr())
	require.NoError(t, err)
	timer := time.AfterFunc(100*time.Millisecond, func() { _ = l.Close() })
	defer timer.Stop()
	s.Restart()
	require.NoError(t, s.Client(t).Ping(t.Context()).Err())
}

func TestBadArgumentShowsTheLog(t *testing.T) {
	s := newServer(t)
	s.args = s.plainArgs("--no-such-setting", "1")
	s.port, _ = freePort(false)
	require.ErrorContains(t, s.run(), "no-such-setting")
}

func TestFreePort(t *testing.T) {
	for range 50 {
		port, err := freePort(true)
		require.NoError(t, err)
		require.NotEqual(t, 6379, port)
		require.LessOrEqual(t, port+10000, 65535)
	}
}

// outcome is a testing.TB that notes how a test ended.
type outcome struct {
	testing.TB
	failed, skipped string
}

func (o *outcome) Helper()      {}
func (o *outcome) Name() string { return "TestOther" }
func (o *outcome) Fatalf(format string, args ...any) {
	o.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
func (o *outcome) Skipf(format string, args ...any) {
	o.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestSomethingMissing(t *testing.T) {
	server := newServer(t).bin
	t.Setenv("PATH", t.TempDir())
	missesWhat(t, "redis-server", "apt-get install redis-server")
	require.NoError(t, os.Symlink(server, os.Getenv("PATH")+"/redis-server"))
	if runtime.GOOS == "linux" {
		missesWhat(t, "a C compiler", "apt-get install gcc", WithClock(begin))
	}
}

// missesWhat starts a server, which must skip the test or, where that is
// forbidden, fail it, and name what is missing and how to get it.
func missesWhat(t *testing.T, what, remedy string, opts ...Option) {
	t.Helper()
	try := func(require string) *outcome {
		t.Setenv(requireEnv, require)
		o := &outcome{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Start(o, opts...)
		}()
		<-done
		return o
	}
	o := try("")
	require.Empty(t, o.failed)
	for _, part := range []string{"TestOther", what, remedy, requireEnv} {
		require.Contains(t, o.skipped, part)
	}
	o = try("1")
	require.Empty(t, o.skipped)
	for _, part := range []string{"TestOther", what, remedy, requireEnv} {
		require.Contains(t, o.failed, part)
	}
}
