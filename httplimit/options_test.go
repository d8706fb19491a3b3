package httplimit_test

import (
	"context"
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/httplimit"
	"github.com/rationgo/ration/rationtest"
)

func TestCostByRequest(t *testing.T) {
	cost := httplimit.WithCost(func(r *http.Request) int64 {
		n, _ := strconv.ParseInt(r.Header.Get("X-Cost"), 10, 64)
		return n
	})
	s := serve(t, middleware(t, local(t, ration.PerDay(10)), anyone, cost)(ok))
	require.Equal(t, `"10/24h0m0s";r=3;t=86400`, s.get("/", "X-Cost", "7").Header.Get("RateLimit"))
	require.Equal(t, 429, s.get("/", "X-Cost", "4").StatusCode)
	require.Equal(t, 200, s.get("/", "X-Cost", "3").StatusCode)
	free := s.get("/", "X-Cost", "0")
	require.Equal(t, 200, free.StatusCode, "what costs nothing passes an empty budget")
	requireNoRateFields(t, free.Header)
	never := s.get("/", "X-Cost", "11")
	require.Equal(t, 429, never.StatusCode)
	require.Empty(t, never.Header.Values("Retry-After"))
}

func TestLimiterByRequest(t *testing.T) {
	gold, basic := local(t, ration.PerDay(3)), local(t, ration.PerDay(1))
	plan := httplimit.WithLimiterFor(func(r *http.Request) ration.Limiter {
		if r.Header.Get("X-Plan") == "gold" {
			return gold
		}
		return nil
	})
	s := serve(t, middleware(t, basic, anyone, plan)(ok))
	for _, want := range []int{200, 200, 200, 429} {
		require.Equal(t, want, s.get("/", "X-Plan", "gold").StatusCode)
	}
	for _, want := range []int{200, 429} {
		require.Equal(t, want, s.get("/").StatusCode)
	}
}

func TestShadowRefusesNobody(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	var allowed, refused, failed int
	report := func(_ *http.Request, d ration.Decision, err error) {
		switch {
		case err != nil:
			failed++
		case d.Allowed:
			allowed++
		default:
			refused++
		}
	}
	s := serve(t, middleware(t, fixedWindow(t, rdb, ration.PerMinute(2)), httplimit.Header("X-User"), allForms, httplimit.WithShadow(report))(ok))
	for range 5 {
		a := s.get("/", "X-User", "ann")
		require.Equal(t, "ok", a.body)
		requireNoRateFields(t, a.Header)
		require.Empty(t, a.Header.Get("Retry-After"))
	}
	require.Equal(t, 200, s.get("/").StatusCode)
	require.Equal(t, [3]int{2, 3, 1}, [3]int{allowed, refused, failed})
	for _, l := range []ration.Limiter{dead(t, ration.FailError, ration.PerDay(1)), dead(t, ration.FailClosed, ration.PerDay(1))} {
		require.Equal(t, 200, serve(t, middleware(t, l, anyone, httplimit.WithShadow(nil))(ok)).get("/").StatusCode)
	}
}

func TestHeaderForms(t *testing.T) {
	get := func(opts ...httplimit.Option) http.Header {
		return serve(t, middleware(t, local(t, ration.PerDay(5)), anyone, opts...)(ok)).get("/").Header
	}
	requireNoRateFields(t, get(httplimit.WithHeaders()))
	h := get()
	require.Equal(t, `"5/24h0m0s";q=5;w=86400`, h.Get("RateLimit-Policy"))
	require.Empty(t, h.Values("RateLimit-Limit"))
	require.Empty(t, h.Values("X-RateLimit-Limit"))
	h = get(httplimit.WithHeaders(httplimit.Draft06))
	require.Equal(t, "4", h.Get("RateLimit-Remaining"))
	require.Empty(t, h.Values("RateLimit"))
	require.Empty(t, h.Values("X-RateLimit-Limit"))
	h = get(httplimit.WithHeaders(httplimit.XRateLimit))
	require.Equal(t, "4", h.Get("X-RateLimit-Remaining"))
	require.Empty(t, h.Values("RateLimit-Limit"))
}

// A middleware's state is of the limiter's numbers, not of who asks: subjects with numbers of
// their own get them right, also when they are more than are remembered.
func TestNumbersOfTheirOwn(t *testing.T) {
	l := ration.LimiterFunc(func(_ context.Context, r ration.Request) (ration.Decision, error) {
		n, _ := strconv.ParseInt(r.Key, 10, 64)
		return ration.Decision{Allowed: true, Granted: 1, Limit: ration.PerDay(n), Remaining: n - 1}, nil
	})
	s := serve(t, middleware(t, l, httplimit.Header("X-User"))(ok))
	for range 2 {
		for n := 1; n <= 200; n++ {
			user := strconv.Itoa(n)
			h := s.get("/", "X-User", user).Header
			require.Equal(t, `"`+user+`/24h0m0s";q=`+user+`;w=86400`, h.Get("RateLimit-Policy"))
			require.Equal(t, `"`+user+`/24h0m0s";r=`+strconv.Itoa(n-1)+`;t=0`, h.Get("RateLimit"))
		}
	}
}
