package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/httplimit"
)

const (
	liveEvery   = 500 * time.Millisecond // a stream's pace
	maxStreams  = 100                    // of clients at once, and of visitors who aren't signed in: each asks Redis at that pace
	shownLately = 8                      // refusals
)

// state is what the page shows: the visitor's own budget, and refusals of anybody, which say nothing
// about whose they are.
type state struct {
	Client   string        `json:"client,omitempty"` // the visitor's own name, if signed in
	Policy   string        `json:"policy"`
	Degraded bool          `json:"degraded"` // Redis is away: this instance decides alone
	Limits   []limitStatus `json:"limits"`
	Refusals []refusal     `json:"refusals"` // of this instance, newest first
}

// limitStatus is one limit of the budget.
type limitStatus struct {
	Units     int64  `json:"units"`
	Window    string `json:"window"`
	Remaining int64  `json:"remaining"`
	ResetMS   int64  `json:"resetMs"` // until all of it is there again
}

// refusal is a request that was answered 429.
type refusal struct {
	Time   time.Time `json:"time"`
	Policy string    `json:"policy"`
	Units  int64     `json:"units"` // of the limit that refused longest,
	Window string    `json:"window"`
	Path   string    `json:"path"` // as in the route: what a client wrote in its URL isn't shown to others
}

// lately keeps the last refusals.
type lately struct {
	mu   sync.Mutex
	list []refusal
}

func (l *lately) add(r refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == shownLately {
		l.list = slices.Delete(l.list, 0, 1)
	}
	l.list = append(l.list, r)
}

// newest gives a copy, newest first and never nil.
func (l *lately) newest() []refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := append([]refusal{}, l.list...)
	slices.Reverse(list)
	return list
}

// look gives the state for a visitor. It peeks: that costs the visitor nothing.
func (s *server) look(ctx context.Context, r *http.Request) (state, error) {
	st := state{Policy: "login"}
	limiter := s.dir.login
	key, err := httplimit.RemoteIP()(r)
	if c := s.visitor(r); c != nil {
		st.Client, st.Policy, limiter = c.name, c.plan.name, c.plan.limiter
		key, err = c.name, nil
	}
	if err != nil {
		return state{}, err
	}
	d, err := limiter.Peek(ctx, key)
	if err != nil {
		return state{}, err
	}
	st.Degraded = d.Degraded
	if d.Limits == nil { // a policy of one limit
		d.Limits = []ration.LimitState{{Limit: d.Limit, Remaining: d.Remaining, ResetAfter: d.ResetAfter}}
	}
	for _, l := range d.Limits {
		st.Limits = append(st.Limits, limitStatus{
			Units: l.Limit.Units, Window: l.Limit.Window.String(), Remaining: l.Remaining, ResetMS: l.ResetAfter.Milliseconds(),
		})
	}
	st.Refusals = s.lately.newest()
	return st, nil
}

// budget is GET /api/budget: the state, once.
func (s *server) budget(w http.ResponseWriter, r *http.Request) {
	st, err := s.look(r.Context(), r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusOK, st)
}

// live is GET /live: the state as server-sent events, until the visitor leaves or the server stops.
func (s *server) live(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead { // there is no body that could fail
		w.Header().Set("Content-Type", "text/event-stream")
		return
	}
	room := s.guests
	if s.visitor(r) != nil {
		room = s.streams
	}
	select {
	case room <- struct{}{}:
		defer func() { <-room }()
	default:
		writeProblem(w, http.StatusServiceUnavailable, "Too many viewers.")
		return
	}
	rc := http.NewResponseController(w)
	if err := rc.SetReadDeadline(time.Time{}); err != nil { // the server's is for requests
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	for {
		if err := s.send(w, rc, r); err != nil {
			s.log.Debug("live stream ends", "cause", err)
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		case <-s.stopping:
			return
		}
	}
}

// send writes one event. Who doesn't read is dropped after a while.
func (s *server) send(w http.ResponseWriter, rc *http.ResponseController, r *http.Request) error {
	st, err := s.look(r.Context(), r)
	if err != nil {
		return err
	}
	data, err := json.Marshal(st)
	if err != nil {
		return err
	}
	if err := rc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "retry: 1000\ndata: %s\n\n", data); err != nil {
		return err
	}
	return rc.Flush()
}
