package httplimit

import (
	"net/http"
	"time"

	"github.com/rationgo/ration"
)

// Option changes how [New] sets up a middleware. Functions given to options are called
// concurrently, from the requests' goroutines; nil means the default.
type Option func(*config)

type config struct {
	limiter ration.Limiter
	key     KeyFunc

	skip      func(*http.Request) bool
	cost      func(*http.Request) int64
	limiterOf func(*http.Request) ration.Limiter
	shadow    bool
	report    func(*http.Request, ration.Decision, error)
	refund    func(*http.Request, int) bool
	onRefusal func(http.ResponseWriter, *http.Request, ration.Decision)
	onError   func(http.ResponseWriter, *http.Request, error)

	headers HeaderForm
	members members
	now     func() time.Time // for the Unix time of XRateLimit
}

// WithSkip exempts the requests for which skip is true: no key is asked for, nothing is charged,
// no fields are set. It's asked before all else. By default none is exempt.
func WithSkip(skip func(*http.Request) bool) Option {
	return func(c *config) { c.skip = skip }
}

// WithCost sets the units that a request costs, all or nothing. By default each costs 1. With 0
// the request passes as if skipped; a negative number is an error (ration.ErrInvalidCost, 500).
func WithCost(cost func(*http.Request) int64) Option {
	return func(c *config) { c.cost = cost }
}

// WithLimiterFor chooses the limiter by request, for plans or routes; where it gives
// nil, the limiter of [New] decides.
func WithLimiterFor(limiter func(*http.Request) ration.Limiter) Option {
	return func(c *config) { c.limiterOf = limiter }
}

// WithShadow lets every request pass, with no fields set, but decides and charges as it would
// otherwise, and tells report of each decision, or of the error there was instead. It's for trying a limit on real
// traffic. report may be nil: a ration.Observer hears of decisions anyway.
func WithShadow(report func(r *http.Request, d ration.Decision, err error)) Option {
	return func(c *config) { c.shadow, c.report = true, report }
}

// WithRefund charges at the start and gives the units back after the handler if refund is true
// for the status it answered with, such as to count failed logins only:
//
//	httplimit.WithRefund(func(_ *http.Request, status int) bool { return status < 400 })
//
// A handler that writes nothing has answered 200, one that hijacks the connection 101, one that panics
// before it has written 500. The refund is made before the middleware returns, within a second, also
// when the client has gone by then. If it fails the charge stays. A decision made without
// Redis (Degraded) is not refunded: Redis has not counted it. Nor is one that ration.NewShadow let through.
func WithRefund(refund func(r *http.Request, status int) bool) Option {
	return func(c *config) { c.refund = refund }
}

// WithRefusalHandler answers refused requests instead of 429 with a problem document. The
// rate fields, Retry-After and Cache-Control are set already. Where it sets no status, it is 429, also if it
// writes nothing at all; the next handler isn't called in any case.
func WithRefusalHandler(h func(w http.ResponseWriter, r *http.Request, d ration.Decision)) Option {
	return func(c *config) { c.onRefusal = h }
}

// WithErrorHandler answers requests that could not be decided. The error is [ErrKey], the
// limiter's (ration.ErrUnavailable, ration.ErrInvalidCost and so on; under ration.FailClosed the Decision's Cause),
// or that of the request's own context when it ended. Where the handler sets no status, it is the default: 503 for
// ErrUnavailable, ErrClosed and a deadline that passed, 499 if the client went away, else 500.
// By default the answer is a problem document that doesn't say more than that. Cache-Control is set already,
// and under ration.FailClosed Retry-After is, to when Redis is asked again.
func WithErrorHandler(h func(w http.ResponseWriter, r *http.Request, err error)) Option {
	return func(c *config) { c.onError = h }
}

// HeaderForm is a form of the fields that tell clients their limits; see [WithHeaders].
type HeaderForm uint8

// The forms, by the revision of draft-ietf-httpapi-ratelimit-headers that has them.
const (
	// Draft11 is RateLimit-Policy and RateLimit, Structured Fields of a member for each
	// limit. It's the default.
	Draft11 HeaderForm = 1 << iota
	// Draft06 is RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset (in seconds from now), of
	// the limit that decided. Of stacked middlewares the tighter shows.
	Draft06
	// XRateLimit is Draft06 with an X- before the names and the Reset in Unix seconds by this process's
	// clock, as many services have it.
	XRateLimit

	allForms = Draft11 | Draft06 | XRateLimit
)

// WithHeaders sets the forms of the rate fields; none given means no fields (Retry-After is
// always set). The default is Draft11 alone. An unknown form is ration.ErrInvalidOption.
func WithHeaders(forms ...HeaderForm) Option {
	return func(c *config) {
		c.headers = 0
		for _, f := range forms {
			c.headers |= f
		}
	}
}
