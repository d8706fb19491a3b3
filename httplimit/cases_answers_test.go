package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/httplimit"
	"github.com/rationgo/ration/rationtest"
)

func TestB103ARefusalIsComplete(t *testing.T) {
	for name, refusal := range map[string]func(http.ResponseWriter, *http.Request, ration.Decision){
		"default": nil,
		"nothing": func(http.ResponseWriter, *http.Request, ration.Decision) {},
		"headers": func(w http.ResponseWriter, _ *http.Request, _ ration.Decision) { w.Header().Set("X-Mine", "1") },
		"body":    func(w http.ResponseWriter, _ *http.Request, _ ration.Decision) { w.Write([]byte("slow down")) },
		"flush":   func(w http.ResponseWriter, _ *http.Request, _ ration.Decision) { w.(http.Flusher).Flush() },
		"explicit": func(w http.ResponseWriter, _ *http.Request, _ ration.Decision) {
			w.WriteHeader(429)
			w.Write([]byte("!"))
		},
		"twice": func(w http.ResponseWriter, _ *http.Request, _ ration.Decision) {
			http.Error(w, "slow down", http.StatusTooManyRequests)
		},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := rationtest.NewRedis(t)
			var handled atomic.Int64
			next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled.Add(1) })
			limit := middleware(t, fixedWindow(t, rdb, ration.PerMinute(1)), anyone, httplimit.WithRefusalHandler(refusal))
			cors := func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Access-Control-Allow-Origin", "*")
					h.ServeHTTP(w, r)
				})
			}
			s := serve(t, cors(limit(next)))
			require.Equal(t, 200, s.get("/").StatusCode)
			for range 3 {
				a := s.get("/")
				require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
				require.Equal(t, "*", a.Header.Get("Access-Control-Allow-Origin"))
				require.Equal(t, "60", a.Header.Get("Retry-After"))
				require.Equal(t, `"1/1m0s";r=0;t=60`, a.Header.Get("RateLimit"))
				require.Equal(t, "no-store", a.Header.Get("Cache-Control"))
				if name == "headers" {
					require.Equal(t, "1", a.Header.Get("X-Mine"))
				}
			}
			require.EqualValues(t, 1, handled.Load())
			require.Empty(t, s.log.String())
		})
	}
}

func TestRefusalNamesTheLimitsThatRefuse(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	l := fixedWindow(t, rdb, ration.Limit{Name: "burst", Units: 1, Window: time.Second}, ration.Limit{Name: "daily", Units: 9, Window: 24 * time.Hour})
	s := serve(t, middleware(t, l, anyone)(ok))
	a := s.get("/")
	require.Equal(t, `"burst";q=1;w=1, "daily";q=9;w=86400`, a.Header.Get("RateLimit-Policy"))
	require.Equal(t, `"burst";r=0;t=1, "daily";r=8;t=86400`, a.Header.Get("RateLimit"))
	a = s.get("/")
	require.Equal(t, 429, a.StatusCode)
	require.Contains(t, a.body, `"violated-policies":["burst"]`)
}

func TestRefusalDropsWhatWasSetForAnotherBody(t *testing.T) {
	limit := middleware(t, decides(ration.Decision{Limit: ration.PerDay(1), RetryAfter: time.Hour}), anyone)
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "3")
		w.Header().Set("Content-Encoding", "br")
		limit(ok).ServeHTTP(w, r)
	}))
	a := s.get("/")
	require.Contains(t, a.body, "quota-exceeded")
	require.Empty(t, a.Header.Get("Content-Encoding"))
}

// A client that has hung up is no refusal, whatever the store's rule, and neither is a deadline.
func TestEndedContext(t *testing.T) {
	for _, c := range []struct {
		end  func() (context.Context, context.CancelFunc)
		want int
	}{
		{func() (context.Context, context.CancelFunc) {
			c, cancel := context.WithCancel(ctx)
			cancel()
			return c, cancel
		}, 499},
		{func() (context.Context, context.CancelFunc) { return context.WithDeadline(ctx, time.Unix(1, 0)) }, 503},
	} {
		ended, cancel := c.end()
		defer cancel()
		rdb := rationtest.NewRedis(t)
		l, err := ration.NewFixedWindow(rdb.Store(ration.WithOnFailure(ration.FailClosed)), policy(ration.PerMinute(5)))
		require.NoError(t, err)
		refused := func(http.ResponseWriter, *http.Request, ration.Decision) { t.Error("told as a refusal") }
		w := httptest.NewRecorder()
		middleware(t, l, anyone, httplimit.WithRefusalHandler(refused))(ok).ServeHTTP(w, httptest.NewRequestWithContext(ended, "GET", "/", nil))
		require.Equal(t, c.want, w.Code)
		requireNoRateFields(t, w.Header())
		require.Empty(t, w.Header().Get("Retry-After"))
		require.Empty(t, rdb.Keys())
	}
}

// Over a real connection: the client goes while the limiter is asked.
func TestClientHangsUp(t *testing.T) {
	asked, told := make(chan struct{}), make(chan error, 1)
	l := ration.LimiterFunc(func(ctx context.Context, _ ration.Request) (ration.Decision, error) {
		close(asked)
		<-ctx.Done()
		return ration.Decision{}, ctx.Err()
	})
	s := serve(t, middleware(t, l, anyone, httplimit.WithErrorHandler(
		func(_ http.ResponseWriter, _ *http.Request, err error) { told <- err }))(ok))
	gone, hangUp := context.WithCancel(ctx)
	defer hangUp()
	go func() {
		<-asked
		hangUp()
	}()
	r, err := http.NewRequestWithContext(gone, http.MethodGet, s.url, nil)
	require.NoError(t, err)
	_, err = s.client.Do(r)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, <-told, context.Canceled)
}

func TestOtherErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{{errors.New("user ann"), 500}, {ration.ErrInvalidPolicy, 500}, {ration.ErrClosed, 503}, {ration.ErrUnavailable, 503}} {
		a := serve(t, middleware(t, answers(ration.Decision{}, c.err), anyone)(ok)).get("/")
		require.Equal(t, c.want, a.StatusCode)
		require.NotContains(t, a.body, c.err.Error())
	}
	for _, err := range []error{context.Canceled, ration.ErrUnavailable} { // such as of the service's own sessions
		key := func(*http.Request) (string, error) { return "", err }
		require.Equal(t, 500, serve(t, middleware(t, local(t, ration.PerDay(1)), key)(ok)).get("/").StatusCode)
	}
	negative := httplimit.WithCost(func(*http.Request) int64 { return -1 })
	a := serve(t, middleware(t, local(t, ration.PerMinute(1)), anyone, negative)(ok)).get("/")
	require.Equal(t, 500, a.StatusCode)
	silent := httplimit.WithErrorHandler(func(http.ResponseWriter, *http.Request, error) {})
	a = serve(t, middleware(t, answers(ration.Decision{}, ration.ErrUnavailable), anyone, silent)(ok)).get("/")
	require.Equal(t, 503, a.StatusCode, "a handler that writes nothing lets nobody in")
	closed := decides(ration.Decision{Degraded: true, RetryAfter: 1500 * time.Millisecond})
	a = serve(t, middleware(t, closed, anyone)(ok)).get("/")
	require.Equal(t, 503, a.StatusCode, "also without a Cause")
	require.Equal(t, "2", a.Header.Get("Retry-After"))
}

func TestNewRefusesMistakes(t *testing.T) {
	_, err := httplimit.New(nil, httplimit.RemoteIP())
	require.ErrorIs(t, err, ration.ErrInvalidClient)
	_, err = httplimit.New(decides(ration.Decision{}), nil)
	require.ErrorIs(t, err, httplimit.ErrKey)
	require.ErrorContains(t, err, "RemoteIP")
	_, err = httplimit.New(decides(ration.Decision{}), anyone, httplimit.WithHeaders(8))
	require.ErrorIs(t, err, ration.ErrInvalidOption)
	_, err = httplimit.New(decides(ration.Decision{}), anyone, nil, httplimit.WithSkip(nil), httplimit.WithShadow(nil))
	require.NoError(t, err)
}
