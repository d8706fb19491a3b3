package httplimit

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/middleware"
)

// The problem types of the draft.
const (
	typeQuotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	typeReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// statusClientGone is what nginx and others note for a client that didn't wait for its answer.
const statusClientGone = 499

// problem is a problem document (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
}

// quotaProblem has no omitempty: 0 remaining is what it's there to say.
type quotaProblem struct {
	problem
	Violated  []string `json:"violated-policies"`
	Remaining int64    `json:"remaining"`
}

// refuse answers a request that the limits don't let in.
func (c *config) refuse(w http.ResponseWriter, r *http.Request, d ration.Decision) {
	h := w.Header()
	c.setFields(h, &d)
	setRetryAfter(h, &d)
	h.Set("Cache-Control", "no-store")
	if c.onRefusal != nil {
		rec := &recorder{ResponseWriter: w, implied: http.StatusTooManyRequests}
		c.onRefusal(rec.wrap(), r, d)
		rec.begin()
		return
	}
	writeProblem(w, http.StatusTooManyRequests, quotaProblem{
		problem:   problem{typeQuotaExceeded, "Quota Exceeded", http.StatusTooManyRequests},
		Violated:  c.violated(&d),
		Remaining: max(0, d.Remaining),
	})
}

// violated names the limits that refuse.
func (c *config) violated(d *ration.Decision) []string {
	var names []string
	for _, s := range middleware.Refusing(d) {
		names = append(names, c.members.of(s.Limit).name)
	}
	return names
}

// setRetryAfter leaves the field out where waiting doesn't help.
func setRetryAfter(h http.Header, d *ration.Decision) {
	if d.RetryAfter != ration.Never {
		h.Set(fieldRetryAfter, strconv.FormatInt(max(1, seconds(d.RetryAfter)), 10))
	}
}

// failClosed answers a request that is refused because there is no answer from Redis. That
// is a failure, not somebody's exceeded limit.
func (c *config) failClosed(w http.ResponseWriter, r *http.Request, d ration.Decision) {
	err := d.Cause
	if err == nil {
		err = ration.ErrUnavailable
	}
	setRetryAfter(w.Header(), &d)
	c.fail(w, r, err)
}

// fail answers a request about which there is no decision. The error may tell of the insides of the
// service, so the answer doesn't have it.
func (c *config) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	w.Header().Set("Cache-Control", "no-store")
	if c.onError != nil {
		rec := &recorder{ResponseWriter: w, implied: status}
		c.onError(rec.wrap(), r, err)
		rec.begin()
		return
	}
	switch status {
	case statusClientGone:
		w.WriteHeader(status) // nobody reads more
	case http.StatusServiceUnavailable:
		writeProblem(w, status, problem{typeReducedCapacity, "Temporary Reduced Capacity", status})
	default:
		writeProblem(w, status, problem{"about:blank", http.StatusText(status), status})
	}
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, ErrKey):
		return http.StatusInternalServerError
	case errors.Is(err, ration.ErrUnavailable), errors.Is(err, ration.ErrClosed), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	case errors.Is(err, context.Canceled):
		return statusClientGone
	}
	return http.StatusInternalServerError
}

func writeProblem(w http.ResponseWriter, status int, p any) {
	body, err := json.Marshal(p)
	if err != nil { // can't be
		w.WriteHeader(status)
		return
	}
	h := w.Header()
	// They may have been set for the body that isn't written now.
	for _, name := range []string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified"} {
		h.Del(name)
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // who has hung up doesn't get it
}
