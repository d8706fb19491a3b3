package main

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/httplimit"
)

const (
	keyHeader = "X-API-Key"
	keyCookie = "key" // set by login, for the page

	quoteCost  = 1
	searchCost = 5

	maxBody = 4 << 10
)

//go:embed web
var web embed.FS

// server is the API and the page.
type server struct {
	dir      *directory
	log      *slog.Logger
	lately   lately
	streams  chan struct{} // room for those of live, of clients
	guests   chan struct{} // and of others
	stopping chan struct{}
	stop     func() // ends the streams
	handler  http.Handler
}

func newServer(dir *directory, metrics http.Handler, log *slog.Logger) (*server, error) {
	s := &server{dir: dir, log: log, streams: make(chan struct{}, maxStreams), guests: make(chan struct{}, maxStreams), stopping: make(chan struct{})}
	s.stop = sync.OnceFunc(func() { close(s.stopping) })
	quote, err := s.limited(quoteCost, s.quote)
	if err != nil {
		return nil, err
	}
	search, err := s.limited(searchCost, s.search)
	if err != nil {
		return nil, err
	}
	login, err := s.limitedLogin()
	if err != nil {
		return nil, err
	}
	guarded, err := s.guarded()
	if err != nil {
		return nil, err
	}
	files, err := fs.Sub(web, "web")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /api/quote", guarded(quote))
	mux.Handle("GET /api/search", guarded(search))
	mux.Handle("POST /api/login", login)
	mux.HandleFunc("POST /api/logout", s.logout)
	mux.Handle("GET /api/budget", guarded(http.HandlerFunc(s.budget)))
	mux.Handle("GET /live", guarded(http.HandlerFunc(s.live)))
	mux.Handle("GET /metrics", metrics) // no subject is in it; a real service has it on a port of its own
	mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(files)))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, "index.html") })
	s.handler = secure(http.NewCrossOriginProtection().Handler(mux))
	return s, nil
}

// secure keeps the page to what this server itself sends.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
			"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		next.ServeHTTP(w, r)
	})
}

type clientKey struct{} // of the *client in a request's context

// limited is a handler for clients, each under the limits of its plan.
func (s *server) limited(cost int64, h http.HandlerFunc) (http.Handler, error) {
	limit, err := httplimit.New(ration.LimiterFunc(noPlan), subject,
		httplimit.WithLimiterFor(func(r *http.Request) ration.Limiter { return clientOf(r).plan.limiter }),
		httplimit.WithCost(func(*http.Request) int64 { return cost }),
		httplimit.WithRefusalHandler(func(w http.ResponseWriter, r *http.Request, d ration.Decision) {
			s.refuse(w, r, clientOf(r).plan.name, d)
		}))
	if err != nil {
		return nil, err
	}
	return s.authenticated(limit(h)), nil
}

// noPlan would decide for a client without a plan. There is none.
func noPlan(context.Context, ration.Request) (ration.Decision, error) {
	return ration.Decision{}, errors.New("no plan")
}

func clientOf(r *http.Request) *client { return r.Context().Value(clientKey{}).(*client) }

func subject(r *http.Request) (string, error) { return clientOf(r).name, nil }

// authenticated lets clients in, and puts them into the request's context.
func (s *server) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := s.visitor(r)
		if c == nil {
			writeProblem(w, http.StatusUnauthorized, "The "+keyHeader+" field is missing or unknown.")
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), clientKey{}, c)))
	})
}

// guarded counts a wrong key as a failed login of its address, and refuses when these are used up: a key that's
// guessed at isn't told to be right or wrong for long.
func (s *server) guarded() (func(http.Handler) http.Handler, error) {
	return httplimit.New(s.dir.login, httplimit.RemoteIP(),
		httplimit.WithHeaders(), // the answer is about something else
		httplimit.WithSkip(func(r *http.Request) bool { return keyOf(r) == "" || s.visitor(r) != nil }),
		httplimit.WithRefusalHandler(func(w http.ResponseWriter, r *http.Request, d ration.Decision) {
			s.refuse(w, r, "login", d)
		}))
}

// keyOf is the key that a request has, in the header or the page's cookie.
func keyOf(r *http.Request) string {
	key := r.Header.Get(keyHeader)
	if key == "" {
		if c, err := r.Cookie(keyCookie); err == nil {
			key = c.Value
		}
	}
	return key
}

// visitor is whose key a request has, nil if nobody's.
func (s *server) visitor(r *http.Request) *client { return s.dir.find(keyOf(r)) }

// limitedLogin counts the failed logins of an address: a good one is given back.
func (s *server) limitedLogin() (http.Handler, error) {
	limit, err := httplimit.New(s.dir.login, httplimit.RemoteIP(),
		httplimit.WithRefund(func(_ *http.Request, status int) bool { return status < http.StatusBadRequest }),
		httplimit.WithRefusalHandler(func(w http.ResponseWriter, r *http.Request, d ration.Decision) {
			s.refuse(w, r, "login", d)
		}))
	if err != nil {
		return nil, err
	}
	return limit(http.HandlerFunc(s.login)), nil
}

// refuse notes a refusal and answers it. httplimit has set the status and the fields already.
func (s *server) refuse(w http.ResponseWriter, r *http.Request, policy string, d ration.Decision) {
	_, path, _ := strings.Cut(r.Pattern, " ")
	s.lately.add(refusal{Time: time.Now(), Policy: policy, Units: d.Limit.Units, Window: d.Limit.Window.String(), Path: path})
	writeProblem(w, http.StatusTooManyRequests, fmt.Sprintf("The limit %s of %s is used up.", d.Limit, policy))
}

// quote is GET /api/quote.
func (s *server) quote(w http.ResponseWriter, _ *http.Request) {
	n, err := rand.Int(rand.Reader, big.NewInt(int64(len(quotes))))
	if err != nil { // can't be
		n = new(big.Int)
	}
	writeJSON(w, http.StatusOK, map[string]string{"quote": quotes[n.Int64()]})
}

// search is GET /api/search?q=WORD.
func (s *server) search(w http.ResponseWriter, r *http.Request) {
	word := strings.ToLower(r.FormValue("q"))
	found := []string{}
	for _, q := range quotes {
		if strings.Contains(strings.ToLower(q), word) {
			found = append(found, q)
		}
	}
	writeJSON(w, http.StatusOK, map[string][]string{"quotes": found})
}

// login is POST /api/login with the form field "key": it gives the page's cookie.
func (s *server) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	key := r.PostFormValue("key")
	c := s.dir.find(key)
	if c == nil {
		writeProblem(w, http.StatusUnauthorized, "This key is unknown.")
		return
	}
	setCookie(w, r, key, 0)
	writeJSON(w, http.StatusOK, map[string]string{"client": c.name, "plan": c.plan.name})
}

// logout is POST /api/logout.
func (s *server) logout(w http.ResponseWriter, r *http.Request) {
	setCookie(w, r, "", -1)
	w.WriteHeader(http.StatusNoContent)
}

func setCookie(w http.ResponseWriter, r *http.Request, key string, maxAge int) {
	http.SetCookie(w, &http.Cookie{
		Name: keyCookie, Value: key, Path: "/", MaxAge: maxAge,
		HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	})
}

// fail answers a request for which there is no state to show. The cause is for the log only.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	s.log.Warn("request failed", "path", r.URL.Path, "cause", err)
	writeProblem(w, http.StatusServiceUnavailable, "Try again later.")
}

// writeProblem writes a problem document (RFC 9457).
func writeProblem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	writeBody(w, status, map[string]any{"title": http.StatusText(status), "status": status, "detail": detail})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	writeBody(w, status, v)
}

func writeBody(w http.ResponseWriter, status int, v any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // who has hung up doesn't get it
}

var quotes = []string{
	"Simplicity is prerequisite for reliability. — Edsger W. Dijkstra",
	"Controlling complexity is the essence of computer programming. — Brian Kernighan",
	"The cheapest, fastest, and most reliable components are those that aren't there. — Gordon Bell",
	"Premature optimization is the root of all evil. — Donald Knuth",
	"A distributed system is one in which the failure of a computer you didn't even know existed can render your own computer unusable. — Leslie Lamport",
}
