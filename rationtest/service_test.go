package rationtest_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/httplimit"
	"github.com/rationgo/ration/rationtest"
)

// These are tests of a small service, as a user of the library would write them: without testify. The README
// quotes them; what it quotes is what is compiled and run here.

// newService is the service under test: a login page that each address may try five times a minute.
func newService(limiter ration.Limiter) (http.Handler, error) {
	limit, err := httplimit.New(limiter, httplimit.RemoteIP())
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /login", limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})))
	return mux, nil
}

// loginPolicy is the service's own.
var loginPolicy = ration.Policy{Name: "login", Limits: []ration.Limit{{Name: "login", Units: 5, Window: time.Minute}}}

// post asks the service from one address.
func post(t testing.TB, limiter ration.Limiter) *http.Response {
	t.Helper()
	service, err := newService(limiter)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	service.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/login", nil))
	return w.Result()
}

func TestRefusedLogin(t *testing.T) {
	limiter := rationtest.NewFake(t, rationtest.Allowed(4), rationtest.Refused(30*time.Second), rationtest.Unavailable())
	for _, want := range []int{http.StatusNoContent, http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		if resp := post(t, limiter); resp.StatusCode != want {
			t.Errorf("got %s, want %d", resp.Status, want)
		}
	}
	if calls := limiter.Calls(); calls[0] != (ration.Request{Op: ration.OpAllow, Key: "192.0.2.1", N: 1}) {
		t.Errorf("asked for %+v", calls[0])
	}
}

func TestLoginAgainAfterAMinute(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	limiter, err := ration.NewSlidingLog(rdb.Store(), loginPolicy)
	if err != nil {
		t.Fatal(err)
	}
	rationtest.Exhaust(t, limiter, "192.0.2.1")
	resp := post(t, limiter)
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "60" {
		t.Fatalf("got %s, Retry-After %s", resp.Status, resp.Header.Get("Retry-After"))
	}
	rdb.Advance(time.Minute)
	if resp := post(t, limiter); resp.StatusCode != http.StatusNoContent {
		t.Fatalf("got %s a minute later", resp.Status)
	}
}

func TestLoginWithoutRedis(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	limiter, err := ration.NewSlidingLog(rdb.Store(ration.WithOnFailure(ration.FailLocal(1))), loginPolicy)
	if err != nil {
		t.Fatal(err)
	}
	rdb.Stop() // or rdb.Fail("OOM command not allowed")
	rationtest.RequireSequence(t, limiter, "192.0.2.1", "AAAAAR")
	rdb.Recover()
	d, err := limiter.Allow(t.Context(), "192.0.2.1")
	rationtest.RequireAllowed(t, d, err)
	rationtest.RequireRemaining(t, d, 4) // Redis has not heard of the others
}

// A limiter in this process goes by a clock of the test's.
func TestLocalByAClock(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	limiter, err := ration.NewLocal(loginPolicy, ration.WithClock(func() time.Time { return now }))
	if err != nil {
		t.Fatal(err)
	}
	rationtest.RequireSequence(t, limiter, "u", "AAAAAR")
	d, err := limiter.Peek(t.Context(), "u")
	rationtest.RequireRefused(t, d, err)
	rationtest.RequireRetryAfter(t, d, 63*time.Second) // the window, and one of its 20 slots
	now = now.Add(d.RetryAfter)
	rationtest.RequireSequence(t, limiter, "u", "AAAAAR")
}

// In a bubble time.Sleep moves its clock, and so do the waits of the service itself.
func TestLocalInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, err := ration.NewLocal(loginPolicy)
		if err != nil {
			t.Fatal(err)
		}
		rationtest.RequireSequence(t, limiter, "u", "AAAAAR")
		began := time.Now()
		d, err := ration.Wait(t.Context(), limiter, "u", 1)
		rationtest.RequireAllowed(t, d, err)
		if waited := time.Since(began); waited < time.Minute || waited > 63*time.Second {
			t.Fatalf("waited %v", waited)
		}
	})
}

// The README's code on this subject is the code above.
func TestReadmeQuotesTheseTests(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(readme), "\n## Testing your service\n")
	section, _, _ = strings.Cut(section, "\n## ")
	source := ""
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		source += string(text)
	}
	source += strings.ReplaceAll(source, "\n\t", "\n") // also parts of a function, one tab less
	blocks := strings.Split(section, "```go\n")[1:]
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		code, _, closed := strings.Cut(block, "```")
		require.True(t, closed)
		require.True(t, strings.Contains(source, code), "no test has this code:\n%s", code)
	}
}
