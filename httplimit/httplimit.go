package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/middleware"
	"github.com/rationgo/ration/internal/nils"
)

// ErrKey is a request whose subject isn't known: the KeyFunc gave an error, which is wrapped, or an
// empty key.
var ErrKey = errors.New("httplimit: no key")

// refundTimeout bounds a refund, which no longer has the request's own context to end it.
const refundTimeout = time.Second

// New makes a middleware that asks limiter before each request. key says whose request
// it is; there is no default, since most services sit behind proxies whose addresses all clients would share.
//
// The error is ration.ErrInvalidClient for a nil limiter, [ErrKey] for a nil key, or ration.ErrInvalidOption. The
// middleware is safe for concurrent use, has no goroutine and nothing to close, and
// may be put around any number of handlers.
func New(limiter ration.Limiter, key KeyFunc, opts ...Option) (func(http.Handler) http.Handler, error) {
	if nils.Is(limiter) {
		return nil, fmt.Errorf("%w: httplimit.New needs a limiter, not nil", ration.ErrInvalidClient)
	}
	if key == nil {
		return nil, fmt.Errorf("%w function: New needs one, such as RemoteIP()", ErrKey)
	}
	c := &config{limiter: limiter, key: key, headers: Draft11, now: time.Now}
	for _, o := range opts {
		if o != nil {
			o(c)
		}
	}
	if c.headers&^allForms != 0 {
		return nil, fmt.Errorf("%w: WithHeaders: unknown form %#x", ration.ErrInvalidOption, uint8(c.headers&^allForms))
	}
	return func(next http.Handler) http.Handler { return &handler{c, next} }, nil
}

type handler struct {
	*config
	next http.Handler
}

// ServeHTTP decides, and answers itself or lets the next handler do so.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.skip != nil && h.skip(r) {
		h.next.ServeHTTP(w, r)
		return
	}
	cost := int64(1)
	if h.cost != nil {
		cost = h.cost(r)
	}
	if cost == 0 {
		h.next.ServeHTTP(w, r)
		return
	}
	limiter := h.choose(r)
	key, d, err := h.decide(limiter, r, cost)
	switch {
	case h.shadow:
		if h.report != nil {
			h.report(r, d, err)
		}
	case err != nil:
		h.fail(w, r, err)
		return
	case middleware.Unavailable(&d):
		h.failClosed(w, r, d)
		return
	case !d.Allowed:
		h.refuse(w, r, d)
		return
	default:
		h.setFields(w.Header(), &d)
	}
	if h.refund == nil || err != nil || d.Degraded || d.Shadowed || d.Granted <= 0 {
		h.next.ServeHTTP(w, r)
		return
	}
	h.settle(w, r, limiter, key, d.Granted)
}

func (c *config) choose(r *http.Request) ration.Limiter {
	if c.limiterOf != nil {
		if l := c.limiterOf(r); l != nil {
			return l
		}
	}
	return c.limiter
}

func (c *config) decide(l ration.Limiter, r *http.Request, cost int64) (string, ration.Decision, error) {
	key, err := call(c.key, r)
	if err != nil {
		return "", ration.Decision{}, err
	}
	d, err := l.AllowN(r.Context(), key, cost)
	return key, d, err
}

// settle runs the next handler and gives n units back if its status says so. A panic
// of the handler goes on after that.
func (h *handler) settle(w http.ResponseWriter, r *http.Request, l ration.Limiter, key string, n int64) {
	rec := &recorder{ResponseWriter: w, implied: http.StatusOK}
	returned := false
	defer func() {
		if !returned && rec.status == 0 {
			rec.status = http.StatusInternalServerError
		}
		rec.begin()
		if !h.refund(r, rec.status) {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), refundTimeout)
		defer cancel()
		// The answer is made; there is nobody left to tell. The store's observer hears of it.
		_, _ = l.Refund(ctx, key, n)
	}()
	h.next.ServeHTTP(rec.wrap(), r)
	returned = true
}
