package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/rationgo/ration"
)

// Transport is an http.RoundTripper for an API that limits its callers. Before a request it waits its
// turn under Limiter, whose budget all instances share, and it holds requests back for as long as earlier
// answers said: a 429 or 503 with Retry-After, or any answer whose RateLimit says that nothing remains.
//
//	client := &http.Client{Transport: &httplimit.Transport{Limiter: limiter}}
//
// Waiting ends with the request's context, whose error it gives; a request that can't be sent before
// its context's deadline gives a [LimitedError] at once, unsent. What is held back is a key's
// requests of this Transport; other instances learn of it by their own answers.
//
// The zero value has no limiter and only goes by the answers. It's safe for concurrent use and
// has no goroutine; its fields must not be changed, nor the Transport copied, once it's in use.
type Transport struct {
	// Base sends the requests; nil means http.DefaultTransport.
	Base http.RoundTripper
	// Limiter is asked by ration.Wait before each request, also before one that is sent again. nil
	// means no limit of one's own.
	Limiter ration.Limiter
	// Key is what the API counts by; nil means the URL's host and port. A missing key is [ErrKey].
	Key KeyFunc
	// Cost is the units of Limiter that a request takes; nil means 1 each. 0 doesn't ask it.
	Cost func(*http.Request) int64
	// MaxHold is the longest that one answer can hold requests back; 0 means 10 minutes. It bounds what
	// a mistaken answer does.
	MaxHold time.Duration
	// Retries is how often a request may be sent again when the answer says when: 0, the default,
	// leaves that to the caller. A 429 is sent again, since it wasn't done; a 503 only if the method is
	// idempotent (GET, HEAD, OPTIONS, TRACE, PUT, DELETE); neither if the request has a body without GetBody.
	// If there is no time for it before the deadline, or no more Retries, the caller gets the answer.
	Retries int

	holds holds
}

// LimitedError is a request that wasn't sent, because the limits don't let it in before its
// context's deadline.
type LimitedError struct {
	// RetryAfter is how long it would have to wait; ration.Never if it costs more than a limit has.
	RetryAfter time.Duration
}

// Error doesn't name the key.
func (e *LimitedError) Error() string {
	if e.RetryAfter == ration.Never {
		return "httplimit: not sent: it costs more than the limit ever lets through"
	}
	return fmt.Sprintf("httplimit: not sent: limited for %v, beyond the deadline", e.RetryAfter)
}

const (
	defaultMaxHold = 10 * time.Minute
	maxDrain       = 64 << 10 // of an answer's body, to keep its connection
)

// RoundTrip waits, sends the request, and notes what the answer says about the next ones.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key, err := t.keyOf(r)
	if err == nil {
		err = t.wait(r, key)
	}
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	resp, err := t.send(r, key)
	for left := t.Retries; left > 0 && err == nil && t.again(r, resp, key); left-- {
		var limited *LimitedError
		switch err = t.wait(r, key); {
		case errors.As(err, &limited):
			return resp, nil // no time: the caller gets the answer there is
		case err != nil:
			resp.Body.Close()
			return nil, err
		}
		drain(resp)
		next, rewound := rewind(r)
		if rewound != nil {
			return nil, rewound
		}
		resp, err = t.send(next, key)
	}
	return resp, err
}

// CloseIdleConnections does so below, if the Base can.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return http.DefaultTransport
}

func (t *Transport) keyOf(r *http.Request) (string, error) {
	if t.Key != nil {
		return call(t.Key, r)
	}
	if r.URL == nil || r.URL.Host == "" {
		return "", fmt.Errorf("%w: the request has no host", ErrKey)
	}
	return strings.ToLower(r.URL.Host), nil
}

// wait waits until the key isn't held back and Limiter has let the request in.
func (t *Transport) wait(r *http.Request, key string) error {
	ctx := r.Context()
	if err := t.holds.wait(ctx, key); err != nil {
		return err
	}
	cost := int64(1)
	if t.Cost != nil {
		cost = t.Cost(r)
	}
	if t.Limiter == nil || cost == 0 {
		return ctx.Err()
	}
	d, err := ration.Wait(ctx, t.Limiter, key, cost)
	if err != nil {
		return err
	}
	if !d.Allowed {
		return &LimitedError{d.RetryAfter}
	}
	// An answer to another request may have come meanwhile. The unit is charged by now,
	// so it isn't asked for again.
	return t.holds.wait(ctx, key)
}

func (t *Transport) send(r *http.Request, key string) (*http.Response, error) {
	resp, err := t.base().RoundTrip(r)
	if err != nil {
		return resp, err
	}
	longest := t.MaxHold
	if longest <= 0 {
		longest = defaultMaxHold
	}
	if d := min(heldBack(resp), longest); d > 0 {
		t.holds.until(key, time.Now().Add(d))
	}
	return resp, nil
}

// again tells whether the request may be sent once more instead of giving the answer away.
func (t *Transport) again(r *http.Request, resp *http.Response, key string) bool {
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
	case resp.StatusCode == http.StatusServiceUnavailable && idempotent(r.Method):
	default:
		return false
	}
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return false
	}
	left := t.holds.left(key)
	return left > 0 && inTime(r.Context(), left)
}

func idempotent(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// rewind is the request with a fresh body: the base has used the first and closed it.
func rewind(r *http.Request) (*http.Request, error) {
	next := r.Clone(r.Context())
	if r.Body == nil || r.Body == http.NoBody {
		return next, nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, fmt.Errorf("httplimit: rewinding the body: %w", err)
	}
	next.Body = body
	return next, nil
}

// drain is for an answer that nobody gets. A short one is read, so that its connection can be used again.
func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
	resp.Body.Close()
}

// inTime tells whether the context's deadline leaves as long as d.
func inTime(ctx context.Context, d time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() == nil && (!ok || time.Until(deadline) >= d)
}
