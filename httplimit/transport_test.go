package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/httplimit"
)

// api is the server of a limited API without a network, for synctest bubbles. It counts what it
// was asked, when, and which bodies are still open.
type api struct {
	mu      sync.Mutex
	answer  func(n int, r *http.Request) *http.Response // n counts from 1
	times   []time.Duration
	bodies  []string
	open    int
	started time.Time
}

type tracked struct {
	io.Reader
	a      *api
	closed bool
}

func (a *api) track(s string) io.ReadCloser {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open++
	return &tracked{Reader: strings.NewReader(s), a: a}
}

func (b *tracked) Close() error {
	b.a.mu.Lock()
	defer b.a.mu.Unlock()
	if !b.closed {
		b.closed = true
		b.a.open--
	}
	return nil
}

func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		r.Body.Close()
	}
	a.mu.Lock()
	a.times = append(a.times, time.Since(a.started))
	a.bodies = append(a.bodies, string(body))
	n := len(a.times)
	a.mu.Unlock()
	resp := a.answer(n, r)
	if resp == nil {
		return nil, errors.New("no connection")
	}
	resp.Request = r
	resp.Body = a.track("answer")
	return resp, nil
}

// says makes an answer of header fields in turns.
func says(status int, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h}
}

// first gives answers in their order, then 200.
func first(answers ...*http.Response) func(int, *http.Request) *http.Response {
	return func(n int, _ *http.Request) *http.Response {
		if n <= len(answers) {
			return answers[n-1]
		}
		return says(200)
	}
}

// in runs f in a bubble, and looks whether all bodies were closed.
func in(t *testing.T, a *api, f func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		a.started = time.Now()
		f(t)
		require.Zero(t, a.open, "bodies left open")
	})
}

func get(t *testing.T, rt http.RoundTripper, url string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := rt.RoundTrip(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

func TestTransportWaitsItsTurn(t *testing.T) {
	a := &api{answer: first()}
	in(t, a, func(t *testing.T) {
		l, err := ration.NewLocal(ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(2, 10*time.Second)}, Slots: 1000})
		require.NoError(t, err)
		instances := []*httplimit.Transport{{Base: a, Limiter: l}, {Base: a, Limiter: l}}
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() { require.Equal(t, 200, get(t, instances[i%2], "http://api.example/")) })
		}
		all.Wait()
		require.Len(t, a.times, 6)
		for i := 2; i < 6; i++ { // never more than 2 in 10 s, over both
			require.GreaterOrEqual(t, a.times[i]-a.times[i-2], 10*time.Second)
			require.Less(t, a.times[i]-a.times[i-2], 11*time.Second)
		}
	})
}

func TestTransportHoldsBackAsTold(t *testing.T) {
	zone := time.FixedZone("GMT", 0)
	day := time.Date(2031, 5, 6, 7, 8, 9, 0, zone)
	for name, c := range map[string]struct {
		answer *http.Response
		want   time.Duration
	}{
		"seconds":                  {says(429, "Retry-After", "7"), 7 * time.Second},
		"of a 503":                 {says(503, "Retry-After", " 7 "), 7 * time.Second},
		"date by the answer's own": {says(429, "Retry-After", day.Add(9*time.Second).Format(http.TimeFormat), "Date", day.Format(http.TimeFormat)), 9 * time.Second},
		"date by our clock":        {says(429, "Retry-After", time.Date(2000, 1, 1, 0, 0, 8, 0, zone).Format(http.TimeFormat)), 8 * time.Second},
		"date that has passed":     {says(429, "Retry-After", "Mon, 01 Jan 1990 00:00:00 GMT"), 0},
		"RateLimit":                {says(200, "RateLimit", `"p";r=0;t=5`), 5 * time.Second},
		"the longest exhausted":    {says(200, "RateLimit", `"a";r=0;t=5, "b";r=1;t=60`, "RateLimit", `"c";r=0;t=6;pk=:AQ==:`), 6 * time.Second},
		"Retry-After goes first":   {says(429, "Retry-After", "2", "RateLimit", `"p";r=0;t=50`), 2 * time.Second},
		"something remains":        {says(200, "RateLimit", `"p";r=1;t=50`), 0},
		"from a cache":             {says(200, "RateLimit", `"p";r=0;t=50`, "Age", "3"), 0},
		"200 with Retry-After":     {says(200, "Retry-After", "7"), 0},
		"malformed":                {says(429, "Retry-After", "-7"), 0},
		"malformed list":           {says(200, "RateLimit", `p;r=0;t=, `), 0},
		"odd types":                {says(200, "RateLimit", `"p";r=0;t=1.5, "q";r=?0;t=7, ("x");r=0;t=9, "n";r=0;t=-4`), 0},
		"too long":                 {says(429, "Retry-After", "99999999999999999999999"), 10 * time.Minute},
		"too long a list":          {says(200, "RateLimit", `"p";r=0;t=999999999999999`), 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			a := &api{answer: first(c.answer)}
			in(t, a, func(t *testing.T) {
				tr := &httplimit.Transport{Base: a}
				get(t, tr, "http://api.example/")
				require.Equal(t, 200, get(t, tr, "http://other.example/"), "another host isn't held back")
				require.Equal(t, 200, get(t, tr, "http://API.example/x"))
				require.Equal(t, []time.Duration{0, 0, c.want}, a.times)
			})
		})
	}
}

// A hold that's prolonged while one waits is kept too.
func TestTransportHoldIsProlonged(t *testing.T) {
	a := &api{answer: func(n int, r *http.Request) *http.Response {
		if r.Header.Get("X-Slow") != "" {
			time.Sleep(3 * time.Second) // the answer is under way
			return says(429, "Retry-After", "10")
		}
		return first(says(429, "Retry-After", "5"))(n-1, r)
	}}
	in(t, a, func(t *testing.T) {
		tr := &httplimit.Transport{Base: a}
		var slow sync.WaitGroup
		slow.Go(func() {
			r, _ := http.NewRequestWithContext(ctx, "GET", "http://api.example/", nil)
			r.Header.Set("X-Slow", "1")
			resp, err := tr.RoundTrip(r)
			require.NoError(t, err)
			resp.Body.Close()
		})
		synctest.Wait()
		require.Equal(t, 429, get(t, tr, "http://api.example/"))
		require.Equal(t, 200, get(t, tr, "http://api.example/"))
		require.Equal(t, []time.Duration{0, 0, 13 * time.Second}, a.times)
		slow.Wait()
	})
}

func TestTransportEndsWithTheContext(t *testing.T) {
	a := &api{answer: first(says(429, "Retry-After", "30"))}
	in(t, a, func(t *testing.T) {
		tr := &httplimit.Transport{Base: a}
		get(t, tr, "http://api.example/")
		post := func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, "POST", "http://api.example/", a.track("body"))
			require.NoError(t, err)
			_, err = tr.RoundTrip(r)
			return err
		}
		began := time.Now()
		short, cancel := context.WithTimeout(ctx, 29*time.Second)
		defer cancel()
		var limited *httplimit.LimitedError
		require.ErrorAs(t, post(short), &limited)
		require.Equal(t, 30*time.Second, limited.RetryAfter)
		require.Zero(t, time.Since(began), "at once")

		canceled, cancel := context.WithCancel(ctx)
		time.AfterFunc(4*time.Second, cancel)
		require.ErrorIs(t, post(canceled), context.Canceled)
		require.Equal(t, 4*time.Second, time.Since(began))
		require.ErrorIs(t, post(canceled), context.Canceled)
		require.Len(t, a.times, 1, "nothing was sent")
	})
}

func TestTransportErrorsCloseTheBody(t *testing.T) {
	for name, c := range map[string]struct {
		tr   *httplimit.Transport
		want error
	}{
		"limiter":    {&httplimit.Transport{Limiter: answers(ration.Decision{}, ration.ErrUnavailable)}, ration.ErrUnavailable},
		"key":        {&httplimit.Transport{Key: httplimit.Header("X-None")}, httplimit.ErrKey},
		"connection": {&httplimit.Transport{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := &api{answer: func(int, *http.Request) *http.Response { return nil }}
			in(t, a, func(t *testing.T) {
				c.tr.Base = a
				r, err := http.NewRequestWithContext(ctx, "POST", "http://api.example/", a.track("body"))
				require.NoError(t, err)
				_, err = c.tr.RoundTrip(r)
				require.Error(t, err)
				if c.want != nil {
					require.ErrorIs(t, err, c.want)
				}
			})
		})
	}
	never := &httplimit.Transport{Limiter: local(t, ration.PerDay(1)), Cost: func(*http.Request) int64 { return 2 }}
	r, _ := http.NewRequestWithContext(ctx, "GET", "http://api.example/", nil)
	_, err := never.RoundTrip(r)
	var limited *httplimit.LimitedError
	require.ErrorAs(t, err, &limited)
	require.Equal(t, ration.Never, limited.RetryAfter)
	_, err = never.RoundTrip(&http.Request{})
	require.ErrorIs(t, err, httplimit.ErrKey)
}

// whole sends a request, and is the status of its answer, which must be whole.
func whole(t *testing.T, tr http.RoundTripper, r *http.Request) int {
	t.Helper()
	resp, err := tr.RoundTrip(r)
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "answer", string(text))
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

func TestTransportRetries(t *testing.T) {
	text := func(r *http.Request, _ *api) { r.Body, _ = r.GetBody() }
	once := func(r *http.Request, a *api) { r.GetBody = nil; r.Body = a.track("once") }
	for name, c := range map[string]struct {
		retries int
		method  string
		body    func(*http.Request, *api)
		limiter bool
		answers []*http.Response
		status  int
		want    []time.Duration
	}{
		"unless asked, none":    {0, "GET", nil, false, []*http.Response{says(429, "Retry-After", "3")}, 429, []time.Duration{0}},
		"as told":               {3, "GET", nil, false, []*http.Response{says(429, "Retry-After", "3")}, 200, []time.Duration{0, 3e9}},
		"with the body again":   {3, "POST", text, false, []*http.Response{says(429, "Retry-After", "3"), says(429, "RateLimit", `"p";r=0;t=4`)}, 200, []time.Duration{0, 3e9, 7e9}},
		"with the limiter":      {1, "GET", nil, true, []*http.Response{says(429, "Retry-After", "3")}, 200, []time.Duration{0, 20e9}},
		"not without GetBody":   {3, "POST", once, false, []*http.Response{says(429, "Retry-After", "3")}, 429, []time.Duration{0}},
		"not without a time":    {3, "GET", nil, false, []*http.Response{says(429)}, 429, []time.Duration{0}},
		"not past the deadline": {3, "GET", nil, false, []*http.Response{says(429, "Retry-After", "61")}, 429, []time.Duration{0}},
		"no more than asked":    {1, "GET", nil, false, []*http.Response{says(429, "Retry-After", "1"), says(429, "Retry-After", "2")}, 429, []time.Duration{0, 1e9}},
		"503 of a GET":          {1, "GET", nil, false, []*http.Response{says(503, "Retry-After", "1")}, 200, []time.Duration{0, 1e9}},
		"503 of a POST":         {1, "POST", text, false, []*http.Response{says(503, "Retry-After", "1")}, 503, []time.Duration{0}},
		"other failures":        {1, "GET", nil, false, []*http.Response{says(500, "Retry-After", "1")}, 500, []time.Duration{0}},
	} {
		t.Run(name, func(t *testing.T) {
			a := &api{answer: first(c.answers...)}
			in(t, a, func(t *testing.T) {
				tr := &httplimit.Transport{Base: a, Retries: c.retries}
				if c.limiter { // so slow that it decides
					l, err := ration.NewLocal(ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(1, 19*time.Second)}, Slots: 19})
					require.NoError(t, err)
					tr.Limiter = l
				}
				bounded, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				r, err := http.NewRequestWithContext(bounded, c.method, "http://api.example/", strings.NewReader("text"))
				require.NoError(t, err)
				if c.body != nil {
					c.body(r, a)
				}
				require.Equal(t, c.status, whole(t, tr, r))
				require.Equal(t, c.want, a.times)
				for _, b := range a.bodies[1:] {
					require.Equal(t, a.bodies[0], b)
				}
			})
		})
	}
}

// Where the limiter has no time left for another try, the caller gets the answer there is.
func TestTransportRetryWithoutTime(t *testing.T) {
	a := &api{answer: first(says(429, "Retry-After", "1"))}
	in(t, a, func(t *testing.T) {
		tr := &httplimit.Transport{Base: a, Limiter: local(t, ration.PerHour(1)), Retries: 1}
		bounded, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		require.Equal(t, 429, get(t, roundTripper(func(r *http.Request) (*http.Response, error) {
			return tr.RoundTrip(r.WithContext(bounded))
		}), "http://api.example/"))
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Many keys that were held back once are forgotten, by the time they would have been let go.
func TestTransportForgetsKeys(t *testing.T) {
	a := &api{answer: func(int, *http.Request) *http.Response { return says(429, "Retry-After", "1") }}
	in(t, a, func(t *testing.T) {
		tr := &httplimit.Transport{Base: a, Key: httplimit.Header("X-User")}
		for i := range 1000 {
			r, _ := http.NewRequestWithContext(ctx, "GET", "http://api.example/", nil)
			r.Header.Set("X-User", strings.Repeat("u", i+1))
			resp, err := tr.RoundTrip(r)
			require.NoError(t, err)
			resp.Body.Close()
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, httplimit.Held(tr), 64)
	})
}

// Middleware and Transport of this package get along: the client comes back when it's told to, and
// is let in each time.
func TestTransportAgainstTheMiddleware(t *testing.T) {
	in(t, &api{}, func(t *testing.T) {
		l, err := ration.NewLocal(ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(2, 2500*time.Millisecond)}, Slots: 1000})
		require.NoError(t, err)
		server := middleware(t, l, anyone)(ok)
		refused := 0
		tr := &httplimit.Transport{Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			server.ServeHTTP(w, r)
			if w.Code == http.StatusTooManyRequests {
				refused++
			}
			return w.Result(), nil
		})}
		began := time.Now()
		for range 20 {
			require.Equal(t, 200, get(t, tr, "http://api.example/"))
		}
		require.Zero(t, refused)
		require.InDelta(t, 9*3, time.Since(began).Seconds(), 1)
	})
}

// An answer that comes while the limiter keeps a request waiting holds it back too.
func TestTransportHoldAfterTheLimiter(t *testing.T) {
	a := &api{answer: first(says(429, "Retry-After", "10"))}
	in(t, a, func(t *testing.T) {
		var asked atomic.Int64
		l := ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) {
			if asked.Add(1) == 1 {
				return ration.Decision{RetryAfter: 2 * time.Second}, nil
			}
			return ration.Decision{Allowed: true, Granted: 1}, nil
		})
		tr := &httplimit.Transport{Base: a, Limiter: l}
		var waiting sync.WaitGroup
		waiting.Go(func() { require.Equal(t, 200, get(t, tr, "http://api.example/")) })
		synctest.Wait()
		require.Equal(t, 429, get(t, tr, "http://api.example/"))
		waiting.Wait()
		require.Equal(t, []time.Duration{0, 10 * time.Second}, a.times)
	})
}
