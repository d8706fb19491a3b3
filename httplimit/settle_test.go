package httplimit_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/httplimit"
	"github.com/rationgo/ration/rationtest"
)

var failedOnly = httplimit.WithRefund(func(_ *http.Request, status int) bool { return status < 400 })

// answering is a handler that answers with the status of the field X-Want.
var answering = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	status, err := strconv.Atoi(r.Header.Get("X-Want"))
	if err != nil {
		return // writes nothing
	}
	w.WriteHeader(status)
	io.WriteString(w, "answer")
})

func TestOnlyFailedLoginsCount(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	l := fixedWindow(t, rdb, ration.PerMinute(3))
	s := serve(t, middleware(t, l, anyone, failedOnly)(answering))
	left := func() int64 {
		d, err := l.Peek(ctx, "someone")
		require.NoError(t, err)
		return d.Remaining
	}
	for _, c := range []struct {
		want string
		left int64
	}{{"200", 3}, {"401", 2}, {"204", 2}, {"", 2}, {"401", 1}, {"302", 1}, {"500", 0}} {
		a := s.get("/", "X-Want", c.want)
		require.Equal(t, c.left, left(), "after %q, answered %d", c.want, a.StatusCode)
	}
	require.Equal(t, 429, s.get("/", "X-Want", "200").StatusCode)
	require.Zero(t, left(), "a refusal has nothing to give back")
}

// A panic is a 500 as long as nothing was written, and goes on.
func TestRefundAfterAPanic(t *testing.T) {
	for _, c := range []struct {
		before string
		want   int
	}{{"", 500}, {"200", 200}} {
		var got int
		limit := middleware(t, local(t, ration.PerDay(9)), anyone,
			httplimit.WithRefund(func(_ *http.Request, status int) bool { got = status; return false }))
		h := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answering(w, r)
			panic(http.ErrAbortHandler)
		}))
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-Want", c.before)
		require.PanicsWithValue(t, http.ErrAbortHandler, func() { h.ServeHTTP(httptest.NewRecorder(), r) })
		require.Equal(t, c.want, got)
	}
}

// The refund outlives the request, but not for ever.
func TestRefundOutlivesTheRequest(t *testing.T) {
	gone, hangUp := context.WithCancel(context.WithValue(ctx, http.ServerContextKey, "value"))
	var refunded []ration.Request
	l := ration.LimiterFunc(func(ctx context.Context, r ration.Request) (ration.Decision, error) {
		if r.Op == ration.OpRefund {
			refunded = append(refunded, r)
			require.NoError(t, ctx.Err())
			require.Equal(t, "value", ctx.Value(http.ServerContextKey))
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			require.Less(t, time.Until(deadline), 2*time.Second)
		}
		return ration.Decision{Allowed: true, Granted: 7, Limit: ration.PerDay(9)}, nil
	})
	h := middleware(t, l, anyone, failedOnly)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hangUp() }))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, "GET", "/", nil))
	require.Equal(t, []ration.Request{{Op: ration.OpRefund, Key: "someone", N: 7}}, refunded)
}

// What Redis hasn't counted isn't taken from what it has.
func TestNoRefundOfADegradedDecision(t *testing.T) {
	l := ration.LimiterFunc(func(_ context.Context, r ration.Request) (ration.Decision, error) {
		require.NotEqual(t, ration.OpRefund, r.Op)
		return ration.Decision{Allowed: true, Granted: 1, Limit: ration.PerDay(9), Degraded: true}, nil
	})
	require.Equal(t, 200, serve(t, middleware(t, l, anyone, failedOnly)(ok)).get("/").StatusCode)
}

// Nor is what ration.NewShadow let through, and no client is told of a limit that holds nobody back.
func TestNoRefundOfAShadowedDecision(t *testing.T) {
	refunds := 0
	one := local(t, ration.PerDay(1))
	shadow, err := ration.NewShadow(ration.LimiterFunc(func(ctx context.Context, r ration.Request) (ration.Decision, error) {
		if r.Op == ration.OpRefund {
			refunds++
		}
		return r.Do(ctx, one)
	}))
	require.NoError(t, err)
	s := serve(t, middleware(t, shadow, anyone, httplimit.WithRefund(func(*http.Request, int) bool { return false }))(ok))
	require.Equal(t, 200, s.get("/").StatusCode)
	s = serve(t, middleware(t, shadow, anyone, httplimit.WithRefund(func(*http.Request, int) bool { return true }), allForms)(ok))
	for range 3 {
		a := s.get("/")
		require.Equal(t, 200, a.StatusCode)
		requireNoRateFields(t, a.Header)
	}
	require.Zero(t, refunds)
}

// capable is a service whose handlers use all that a writer can do.
func capable(t *testing.T, file string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, file) })
	mux.HandleFunc("/copy", func(w http.ResponseWriter, _ *http.Request) {
		n, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("copied"))
		require.NoError(t, err)
		require.EqualValues(t, 6, n)
	})
	mux.HandleFunc("/flush", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "early")
		w.(http.Flusher).Flush()
		require.NoError(t, http.NewResponseController(w).Flush())
		require.NoError(t, http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)))
		<-r.Context().Done() // the client has read it and gone
	})
	mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusTeapot)
	})
	hijack := func(take func(http.ResponseWriter) (io.ReadWriteCloser, *bufio.ReadWriter, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, rw, err := take(w)
			require.NoError(t, err)
			io.WriteString(rw, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
			rw.Flush()
			conn.Close()
		}
	}
	mux.HandleFunc("/hijack", hijack(func(w http.ResponseWriter) (io.ReadWriteCloser, *bufio.ReadWriter, error) {
		return w.(http.Hijacker).Hijack()
	}))
	mux.HandleFunc("/control", hijack(func(w http.ResponseWriter) (io.ReadWriteCloser, *bufio.ReadWriter, error) {
		return http.NewResponseController(w).Hijack()
	}))
	return mux
}

// What a handler could do without settling it can do with it.
func TestSettlingKeepsTheWriterWhole(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("x", 100_000)), 0o600))
	statuses := make(chan int, 1)
	s := serve(t, middleware(t, local(t, ration.PerDay(99)), anyone,
		httplimit.WithRefund(func(_ *http.Request, status int) bool { statuses <- status; return false }))(capable(t, file)))

	for path, want := range map[string]struct {
		body   string
		status int
	}{
		"/file": {strings.Repeat("x", 100_000), 200}, "/copy": {"copied", 200}, "/hints": {"", 418},
		"/hijack": {"hi", 101}, "/control": {"hi", 101}, "/nowhere": {"404 page not found\n", 404},
	} {
		a := s.get(path)
		require.Equal(t, want.body, a.body, path)
		require.Equal(t, want.status, <-statuses, path)
	}

	resp, err := s.client.Get(s.url + "/flush")
	require.NoError(t, err)
	early := make([]byte, 5)
	_, err = io.ReadFull(resp.Body, early)
	require.NoError(t, err)
	require.Equal(t, "early", string(early))
	resp.Body.Close()
	require.Equal(t, 200, <-statuses)
	require.Empty(t, s.log.String())
}

// bare is a writer that can do nothing else.
type bare struct{ http.ResponseWriter }

// A writer that can't flush or hijack doesn't seem to.
func TestSettlingAddsNoMethods(t *testing.T) {
	type both struct {
		http.ResponseWriter
		http.Hijacker
	}
	for name, c := range map[string]struct {
		w             http.ResponseWriter
		flush, hijack bool
	}{
		"none":   {bare{httptest.NewRecorder()}, false, false},
		"flush":  {httptest.NewRecorder(), true, false},
		"hijack": {both{ResponseWriter: bare{httptest.NewRecorder()}}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := middleware(t, local(t, ration.PerDay(9)), anyone, failedOnly)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, flush := w.(http.Flusher)
				_, hijack := w.(http.Hijacker)
				require.Equal(t, c.flush, flush)
				require.Equal(t, c.hijack, hijack)
			}))
			h.ServeHTTP(c.w, httptest.NewRequest("GET", "/", nil))
		})
	}
}
