package httplimit_test

import (
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/httplimit"
	"github.com/rationgo/ration/rationtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// service is a real server behind the middleware, and a client of it.
type service struct {
	t      testing.TB
	url    string
	client *http.Client
	log    *logBuffer
}

type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func serve(t testing.TB, h http.Handler) *service {
	t.Helper()
	s := &service{t: t, log: &logBuffer{}}
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(s.log, "", 0)
	server.Start()
	s.url, s.client = server.URL, server.Client()
	t.Cleanup(server.Close)
	return s
}

// answer is a response with its body read.
type answer struct {
	*http.Response
	body string
}

func (s *service) do(r *http.Request) answer {
	s.t.Helper()
	resp, err := s.client.Do(r)
	require.NoError(s.t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	require.NoError(s.t, resp.Body.Close())
	return answer{resp, string(body)}
}

// get asks for a path with header fields given as name and value in turns.
func (s *service) get(path string, header ...string) answer {
	s.t.Helper()
	r, err := http.NewRequest(http.MethodGet, s.url+path, nil)
	require.NoError(s.t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return s.do(r)
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })

func middleware(t testing.TB, l ration.Limiter, key httplimit.KeyFunc, opts ...httplimit.Option) func(http.Handler) http.Handler {
	t.Helper()
	m, err := httplimit.New(l, key, opts...)
	require.NoError(t, err)
	return m
}

func anyone(*http.Request) (string, error) { return "someone", nil }

// decides is a limiter that always decides the same.
func decides(d ration.Decision) ration.Limiter { return answers(d, nil) }

func answers(d ration.Decision, err error) ration.Limiter {
	return ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) { return d, err })
}

func policy(limits ...ration.Limit) ration.Policy { return ration.Policy{Name: "p", Limits: limits} }

func fixedWindow(t testing.TB, rdb *rationtest.Redis, limits ...ration.Limit) ration.Limiter {
	t.Helper()
	l, err := ration.NewFixedWindow(rdb.Store(), policy(limits...))
	require.NoError(t, err)
	return l
}

func local(t testing.TB, limits ...ration.Limit) ration.Limiter {
	t.Helper()
	l, err := ration.NewLocal(policy(limits...))
	require.NoError(t, err)
	return l
}

// deadStore is on an address where nothing listens any more.
func deadStore(t testing.TB, opts ...ration.Option) *ration.Store {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := ln.Addr().String()
	require.NoError(t, ln.Close())
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { rdb.Close() })
	store, err := ration.Open(rdb, append([]ration.Option{ration.WithTimeout(10 * time.Second)}, opts...)...)
	require.NoError(t, err)
	return store
}

func dead(t testing.TB, rule ration.FailureRule, limits ...ration.Limit) ration.Limiter {
	t.Helper()
	l, err := ration.NewFixedWindow(deadStore(t, ration.WithOnFailure(rule)), policy(limits...))
	require.NoError(t, err)
	return l
}

// rateFields are all that tell of a limit.
var rateFields = []string{
	"RateLimit", "RateLimit-Policy", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset",
	"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
}

func requireNoRateFields(t testing.TB, h http.Header) {
	t.Helper()
	for _, name := range rateFields {
		require.Empty(t, h.Values(name), name)
	}
}
