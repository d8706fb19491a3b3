package benchmarks

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-chi/httprate"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/httplimit"
)

// reused is a ResponseWriter that costs nothing, so that the middlewares alone are measured.
type reused struct{ h http.Header }

func (w reused) Header() http.Header         { return w.h }
func (w reused) Write(p []byte) (int, error) { return len(p), nil }
func (w reused) WriteHeader(int)             {}

// noCounter counts nothing, for httprate.
type noCounter struct{}

func (noCounter) Config(int, time.Duration)                          {}
func (noCounter) Increment(string, time.Time) error                  { return nil }
func (noCounter) IncrementBy(string, time.Time, int) error           { return nil }
func (noCounter) Get(string, time.Time, time.Time) (int, int, error) { return 1, 1, nil }

// BenchmarkHTTP is what a middleware adds to a request by the client's address (one key function for all), over a limiter that
// does nothing and over one in this process:
//
//	go test -run '^$' -bench HTTP .
func BenchmarkHTTP(b *testing.B) {
	const units = 1 << 30
	limit := ration.PerMinute(units)
	admit := func(d ration.Decision) ration.Limiter {
		return ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) { return d, nil })
	}
	one := ration.Decision{Allowed: true, Granted: 1, Limit: limit, Remaining: units - 1, ResetAfter: time.Minute}
	two := one
	two.Limits = []ration.LimitState{{Limit: limit, Remaining: units - 1}, {Limit: ration.PerDay(units), Remaining: units - 1}}
	refusal := ration.Decision{Limit: limit, RetryAfter: time.Second, ResetAfter: time.Minute}
	ring := must(ration.NewLocal(ration.Policy{Name: "bench", Limits: []ration.Limit{limit}}))
	key := httplimit.RemoteIP()
	for _, c := range []struct {
		name       string
		middleware func(http.Handler) http.Handler
	}{
		{"none", func(h http.Handler) http.Handler { return h }},
		{"httplimit/no-op", must(httplimit.New(admit(one), key))},
		{"httplimit/no-op two limits", must(httplimit.New(admit(two), key))},
		{"httplimit/no-op all headers", must(httplimit.New(admit(one), key, httplimit.WithHeaders(httplimit.Draft11, httplimit.Draft06, httplimit.XRateLimit)))},
		{"httplimit/no-op refusal", must(httplimit.New(admit(refusal), key))},
		{"httplimit/ring", must(httplimit.New(ring, key))},
		{"httprate/no-op", httprate.LimitBy(units, time.Minute, httprate.KeyFunc(key), httprate.WithLimitCounter(noCounter{}))},
		{"httprate/memory", httprate.LimitBy(units, time.Minute, httprate.KeyFunc(key))},
	} {
		b.Run(c.name, func(b *testing.B) {
			h := c.middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			w, r := reused{http.Header{}}, httptest.NewRequest(http.MethodGet, "/", nil)
			b.ReportAllocs()
			for b.Loop() {
				clear(w.h)
				h.ServeHTTP(w, r)
			}
		})
	}
}
