package ration_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every kind of client is taken and shares counts with its like.
func TestKindsOfClients(t *testing.T) {
	kinds := map[string]func(t *testing.T) func() redis.UniversalClient{
		"Client": func(t *testing.T) func() redis.UniversalClient {
			s := redistest.Start(t)
			return func() redis.UniversalClient { return s.Client(t) }
		},
		"ClusterClient": func(t *testing.T) func() redis.UniversalClient {
			c := redistest.StartCluster(t)
			return func() redis.UniversalClient { return c.Client(t) }
		},
		"Ring": func(t *testing.T) func() redis.UniversalClient {
			addrs := map[string]string{"one": redistest.Start(t).Addr(), "two": redistest.Start(t).Addr(), "three": redistest.Start(t).Addr()}
			return func() redis.UniversalClient {
				ring := redis.NewRing(&redis.RingOptions{Addrs: addrs})
				t.Cleanup(func() { ring.Close() })
				return ring
			}
		},
		"Sentinel": func(t *testing.T) func() redis.UniversalClient {
			s := redistest.StartSentinel(t)
			return func() redis.UniversalClient { return s.Client(t) }
		},
	}
	for kind, start := range kinds {
		t.Run(kind, func(t *testing.T) {
			newClient := start(t)
			for name, newLimiter := range withCombined() {
				var limiters []ration.Limiter
				for range 2 {
					store, err := ration.Open(newClient(), ration.WithTimeout(10*time.Second))
					require.NoError(t, err)
					l, err := newLimiter(store, ration.Policy{Name: name, Slots: 5, Limits: []ration.Limit{
						ration.Per(5, 1000*time.Hour), ration.Per(9, 10000*time.Hour),
					}})
					require.NoError(t, err)
					limiters = append(limiters, l)
				}
				for i := range 30 {
					subject := fmt.Sprintf("{x}%d", i)
					letters := ""
					for j := range 7 {
						letters += string(letter(must(limiters[j%2].Allow(ctx, subject))))
					}
					require.Equal(t, "AAAAADD", letters)
					require.EqualValues(t, 2, must(limiters[0].Refund(ctx, subject, 2)).Granted)
					require.EqualValues(t, 2, must(limiters[1].AllowUpTo(ctx, subject, 9)).Granted)
					require.NoError(t, limiters[1].Reset(ctx, subject))
					require.EqualValues(t, 5, must(limiters[0].Peek(ctx, subject)).Remaining)
				}
			}
		})
	}
}

// cutConn loses replies: from the moment cut is set, what is written still
// arrives, and the next read reports a broken connection once ran says that
// the server has run it.
type cutConn struct {
	net.Conn
	cut *atomic.Bool
	ran func() bool
}

func (c cutConn) Read(p []byte) (int, error) {
	if c.cut.CompareAndSwap(true, false) {
		for deadline := time.Now().Add(10 * time.Second); !c.ran() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		c.Conn.Close()
		return 0, errors.New("connection reset by test")
	}
	return c.Conn.Read(p)
}

// A call whose reply is lost was charged once, not once a retry.
func TestLostReplyChargesOnce(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	for name, newLimiter := range strategies {
		t.Run(name, func(t *testing.T) {
			var cut atomic.Bool
			runs := func() int { return scriptRuns(t, admin) }
			var before int
			rdb := s.Client(t, func(o *redis.Options) {
				o.MaxRetries, o.PoolSize = 3, 1
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
					return cutConn{conn, &cut, func() bool { return runs() > before }}, err
				}
			})
			store, err := ration.Open(rdb, ration.WithTimeout(20*time.Second))
			require.NoError(t, err)
			l, err := newLimiter(store, ration.Policy{Name: name, Limits: []ration.Limit{ration.Per(5, 1000*time.Hour)}})
			require.NoError(t, err)
			require.EqualValues(t, 4, must(l.Allow(ctx, "u")).Remaining)
			before = runs()
			cut.Store(true)
			d, err := l.Allow(ctx, "u")
			require.ErrorIs(t, err, ration.ErrUnavailable)
			require.Zero(t, d)
			require.False(t, cut.Load(), "the reply was lost")
			require.Equal(t, before+1, runs())
			require.EqualValues(t, 3, must(l.Peek(ctx, "u")).Remaining)
		})
	}
}

// scriptRuns is the number of scripts the server has run.
func scriptRuns(t *testing.T, admin *redis.Client) (runs int) {
	stats, err := admin.Info(ctx, "commandstats").Result()
	require.NoError(t, err)
	for line := range strings.Lines(stats) {
		for _, name := range []string{"eval", "evalsha"} {
			var n int
			if _, err := fmt.Sscanf(line, "cmdstat_"+name+":calls=%d", &n); err == nil {
				runs += n
			}
		}
	}
	return runs
}

// A flushed script cache costs one more command and nothing else.
func TestFlushedScripts(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	store, err := ration.Open(rdb, ration.WithTimeout(10*time.Second))
	require.NoError(t, err)
	for name, newLimiter := range strategies {
		l, err := newLimiter(store, ration.Policy{Name: name, Limits: []ration.Limit{ration.Per(100, 1000*time.Hour)}})
		require.NoError(t, err)
		for i := range 20 {
			require.NoError(t, rdb.ScriptFlush(ctx).Err())
			require.EqualValues(t, 99-i, must(l.Allow(ctx, "u")).Remaining)
		}
		require.NoError(t, rdb.ScriptFlush(ctx).Err())
		var callers sync.WaitGroup
		for range 50 {
			callers.Go(func() {
				if d, err := l.Allow(ctx, "u"); err != nil || !d.Allowed {
					t.Error(d, err)
				}
			})
		}
		callers.Wait()
		require.EqualValues(t, 100-70, must(l.Peek(ctx, "u")).Remaining)
	}
}

// A frozen Redis costs a call its budget, or its caller's deadline, and no more.
func TestFrozenRedisKeepsTheBudget(t *testing.T) {
	for _, obeys := range []bool{false, true} {
		t.Run(fmt.Sprintf("ContextTimeoutEnabled=%v", obeys), func(t *testing.T) { frozenRedis(t, obeys) })
	}
}

func frozenRedis(t *testing.T, obeys bool) {
	s := redistest.Start(t)
	rdb := s.Client(t, func(o *redis.Options) { o.ReadTimeout, o.ContextTimeoutEnabled = time.Second, obeys })
	store, err := ration.Open(rdb, ration.WithTimeout(50*time.Millisecond))
	require.NoError(t, err)
	l, err := ration.NewFixedWindow(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(1000, 1000*time.Hour)}})
	require.NoError(t, err)
	must(l.Allow(ctx, "u"))
	s.Freeze()
	within := func(d time.Duration, call func() error) error {
		t.Helper()
		began := time.Now()
		err := call()
		require.Less(t, time.Since(began), d)
		return err
	}
	err = within(100*time.Millisecond, func() error { return allow(ctx, l) })
	require.ErrorIs(t, err, ration.ErrUnavailable)
	require.NotErrorIs(t, err, context.DeadlineExceeded)

	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	err = within(50*time.Millisecond, func() error { return allow(short, l) })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, ration.ErrUnavailable)

	require.NoError(t, within(150*time.Millisecond, func() error {
		var callers sync.WaitGroup
		for range 200 {
			callers.Go(func() {
				if err := allow(ctx, l); !errors.Is(err, ration.ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		return nil
	}))
	s.Thaw()
	require.Eventually(t, func() bool { return allow(ctx, l) == nil }, 10*time.Second, time.Millisecond)
}

func allow(ctx context.Context, l ration.Limiter) error {
	d, err := l.Allow(ctx, "u")
	if err == nil && !d.Allowed {
		return errors.New("refused")
	}
	if err != nil && d.Allowed {
		return errors.New("allowed, with an error")
	}
	return err
}

// Close lets the calls under way finish.
func TestCloseWaitsForCalls(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	store, err := ration.Open(rdb, ration.WithTimeout(20*time.Second))
	require.NoError(t, err)
	l, err := ration.NewFixedWindow(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(100, 1000*time.Hour)}})
	require.NoError(t, err)
	must(l.Allow(ctx, "u"))
	s.Freeze()
	called := make(chan error, 1)
	go func() {
		_, err := l.Allow(ctx, "u")
		called <- err
	}()
	entered := func() bool { return rdb.PoolStats().TotalConns > rdb.PoolStats().IdleConns }
	require.Eventually(t, entered, 10*time.Second, time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- store.Close() }()
	require.Eventually(t, func() bool {
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		_, err := l.Allow(short, "u")
		return errors.Is(err, ration.ErrClosed)
	}, 10*time.Second, time.Millisecond)
	select {
	case <-closed:
		t.Fatal("Close returned with a call under way")
	default:
	}
	s.Thaw()
	require.NoError(t, <-called)
	require.NoError(t, <-closed)
}

// A hook that panics fails the call, not the process.
func TestPanicInTheClient(t *testing.T) {
	b := backends["miniredis"](t)
	b.rdb.AddHook(&panicHook{})
	l, err := ration.NewSlidingLog(b.store(t), ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(5)}})
	require.NoError(t, err)
	_, err = l.Allow(ctx, "u")
	require.ErrorIs(t, err, ration.ErrUnavailable)
	require.ErrorContains(t, err, "panic")
}

type panicHook struct{ keyHook }

func (*panicHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("in a hook") }
}

// Redis 7.2 and later name the key in a refusal; it must not reach an error.
func TestErrorsNameNoSubject(t *testing.T) {
	for _, text := range []string{
		"NOPERM User default has no permissions to access the 'ration:p:fw1:60000000:{secret-subject}' key",
		"WRONGTYPE Operation against ration:p:fw1:60000000:{secret-subject}",
	} {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer rdb.Close()
		rdb.AddHook(replyHook{redisError(text)})
		store, err := ration.Open(rdb)
		require.NoError(t, err)
		l, err := ration.NewFixedWindow(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(5)}})
		require.NoError(t, err)
		_, err = l.Allow(ctx, "secret-subject")
		require.ErrorIs(t, err, ration.ErrUnavailable)
		require.ErrorIs(t, err, ration.ErrMisconfigured)
		for e := error(err); e != nil; e = errors.Unwrap(e) {
			require.NotContains(t, e.Error(), "secret-subject")
		}
		require.Contains(t, err.Error(), text[:6])
	}
}

// redisError is an error reply as a server sends it.
type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}
