package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/httplimit"
	"github.com/rationgo/ration/rationtest"
)

// Two strategies may have equal limits; the fields are those of the one that decided.
func TestEqualLimitsOfTwoStrategies(t *testing.T) {
	r := rationtest.NewRedis(t)
	store := r.Store()
	p := ration.Policy{Name: "a", Limits: []ration.Limit{ration.PerMinute(5)}}
	fixed, err := ration.NewFixedWindow(store, p)
	require.NoError(t, err)
	log, err := ration.NewSlidingLog(store, p)
	require.NoError(t, err)
	both, err := ration.Combine(fixed, log)
	require.NoError(t, err)
	limit, err := httplimit.New(both, func(*http.Request) (string, error) { return "u", nil }, httplimit.WithHeaders(httplimit.XRateLimit|httplimit.Draft06))
	require.NoError(t, err)
	h := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r.Advance(59 * time.Second)
	for range 5 {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	r.Advance(2 * time.Second) // a new fixed window; the log is full
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	t.Log(w.Code, w.Header())
	require.Equal(t, 429, w.Code)
	require.Equal(t, "0", w.Header().Get("X-Ratelimit-Remaining"))
	require.Equal(t, w.Header().Get("Retry-After"), w.Header().Get("Ratelimit-Reset"))
}

// What a shadow let through wasn't charged, or not all of it: nothing is given back for it.
func TestNoRefundOfAShadow(t *testing.T) {
	r := rationtest.NewRedis(t)
	log, err := ration.NewSlidingLog(r.Store(), ration.Policy{Name: "a", Limits: []ration.Limit{ration.PerMinute(2)}})
	require.NoError(t, err)
	shadow, err := ration.NewShadow(log)
	require.NoError(t, err)
	status := 200
	limit, err := httplimit.New(shadow, func(*http.Request) (string, error) { return "u", nil },
		httplimit.WithRefund(func(_ *http.Request, s int) bool { return s >= 500 }))
	require.NoError(t, err)
	h := limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	for _, status = range []int{200, 200, 500, 500} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	d, err := log.Peek(t.Context(), "u")
	require.NoError(t, err)
	require.EqualValues(t, 0, d.Remaining)
}

// A nil pointer in a Limiter is no limiter, either.
func TestTypedNilLimiter(t *testing.T) {
	_, err := httplimit.New((*rationtest.Fake)(nil), httplimit.RemoteIP())
	require.ErrorIs(t, err, ration.ErrInvalidClient)
}
