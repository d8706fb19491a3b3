package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

const smallConfig = `{
	"plans": {"free": ["5/1s", "8/1m"], "pro": ["50/1s"]},
	"login": ["2/1m"],
	"clients": [{"name": "ann", "key": "free-key", "plan": "free"}, {"name": "ben", "key": "pro-key", "plan": "pro"}]
}`

// service is a server in this process, on a Redis whose clock stands until the test moves it.
type service struct {
	*httptest.Server
	t   *testing.T
	rdb *rationtest.Redis
	s   *server
	log bytes.Buffer
}

func serve(t *testing.T) *service {
	t.Helper()
	v := &service{t: t, rdb: rationtest.NewRedis(t)}
	file := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(file, []byte(smallConfig), 0o600))
	conf, err := readConfig(file)
	require.NoError(t, err)
	// Among so many instances no block is worth while: each call is decided in Redis.
	dir, err := newDirectory(v.rdb.Store(), conf, 1000)
	require.NoError(t, err)
	v.s, err = newServer(dir, http.NotFoundHandler(), slog.New(slog.NewTextHandler(&v.log, nil)))
	require.NoError(t, err)
	v.Server = httptest.NewServer(v.s.handler)
	t.Cleanup(v.Close)
	return v
}

// do sends a request with header fields given as name and value in turns, and reads the body.
func (v *service) do(method, path, body string, header ...string) (*http.Response, string) {
	v.t.Helper()
	r, err := http.NewRequestWithContext(v.t.Context(), method, v.URL+path, strings.NewReader(body))
	require.NoError(v.t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := v.Client().Do(r)
	require.NoError(v.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(v.t, err)
	return resp, string(text)
}

func (v *service) get(path string, header ...string) (*http.Response, string) {
	v.t.Helper()
	return v.do(http.MethodGet, path, "", header...)
}

func (v *service) login(key string) (*http.Response, string) {
	v.t.Helper()
	return v.do(http.MethodPost, "/api/login", url.Values{"key": {key}}.Encode(), "Content-Type", "application/x-www-form-urlencoded")
}

// Both limits of a plan hold, and the fields tell of both.
func TestBothLimitsHold(t *testing.T) {
	v := serve(t)
	for range 5 {
		resp, body := v.get("/api/quote", keyHeader, "free-key")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Contains(t, body, "quote")
	}
	resp, body := v.get("/api/quote", keyHeader, "free-key")
	require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	require.Equal(t, `"5/1s";q=5;w=1, "8/1m0s";q=8;w=60`, resp.Header.Get("RateLimit-Policy"))
	require.Equal(t, `"5/1s";r=0;t=1, "8/1m0s";r=3;t=60`, resp.Header.Get("RateLimit"))
	require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	require.JSONEq(t, `{"title": "Too Many Requests", "status": 429, "detail": "The limit 5/1s of free is used up."}`, body)

	v.rdb.Advance(time.Second)
	for range 3 {
		resp, _ := v.get("/api/quote", keyHeader, "free-key")
		require.Equal(t, http.StatusOK, resp.StatusCode)
	}
	resp, body = v.get("/api/quote", keyHeader, "free-key")
	require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	require.Equal(t, "59", resp.Header.Get("Retry-After"))
	require.Contains(t, body, "8/1m0s")
}

func TestSearchCostsFive(t *testing.T) {
	v := serve(t)
	resp, body := v.get("/api/search?q=DIJKSTRA", keyHeader, "pro-key")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, `"50/1s";r=45;t=1`, resp.Header.Get("RateLimit"))
	var found map[string][]string
	require.NoError(t, json.Unmarshal([]byte(body), &found))
	require.Equal(t, map[string][]string{"quotes": {quotes[0]}}, found)
	_, body = v.get("/api/search?q=nothing+like+it", keyHeader, "pro-key")
	require.JSONEq(t, `{"quotes": []}`, body)
}

func (v *service) unauthorized(path string, header ...string) {
	v.t.Helper()
	resp, body := v.get(path, header...)
	require.Equal(v.t, http.StatusUnauthorized, resp.StatusCode)
	require.Empty(v.t, resp.Header.Get("RateLimit"))
	require.NotContains(v.t, body, "guess")
}

func TestUnknownKeys(t *testing.T) {
	v := serve(t)
	for _, header := range [][]string{nil, {keyHeader, ""}, {"Authorization", "free-key"}} {
		for _, path := range []string{"/api/quote", "/api/search"} {
			v.unauthorized(path, header...)
		}
	}
	require.Empty(t, v.rdb.Keys(), "nothing is charged")
	v.unauthorized("/api/quote", keyHeader, "guess")
	v.unauthorized("/api/search", "Cookie", "key=guess")
	resp, _ := v.get("/api/nothing")
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	resp, _ = v.do(http.MethodPost, "/api/quote", "")
	require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
}

// A good login is given back and sets a cookie that scripts can't read; failed ones are counted.
func TestLoginCountsFailures(t *testing.T) {
	v := serve(t)
	for range 5 {
		resp, body := v.login("pro-key")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.JSONEq(t, `{"client": "ben", "plan": "pro"}`, body)
		c := resp.Cookies()[0]
		require.True(t, c.HttpOnly && c.SameSite == http.SameSiteStrictMode, c)
		resp, _ = v.get("/api/quote", "Cookie", c.Name+"="+c.Value)
		require.Equal(t, http.StatusOK, resp.StatusCode)
	}
	for _, want := range []int{401, 401, 429, 429} {
		resp, _ := v.login("guess")
		require.Equal(t, want, resp.StatusCode)
	}
	resp, _ := v.login("pro-key")
	require.Equal(t, 429, resp.StatusCode)
	resp, _ = v.login(strings.Repeat("x", maxBody+1))
	require.Equal(t, 429, resp.StatusCode)
	v.rdb.Advance(time.Minute)
	resp, _ = v.login(strings.Repeat("x", maxBody+1))
	require.Equal(t, 401, resp.StatusCode)

	resp, _ = v.do(http.MethodPost, "/api/login", "", "Sec-Fetch-Site", "cross-site")
	require.Equal(t, http.StatusForbidden, resp.StatusCode, "another site can't log a visitor in")
	resp, _ = v.do(http.MethodPost, "/api/logout", "")
	require.Equal(t, -1, resp.Cookies()[0].MaxAge)
}

// What a visitor is shown of others: policy, limit, route and time.
func TestBudgetShowsNothingOfOthers(t *testing.T) {
	v := serve(t)
	for range 6 {
		v.get(`/api/quote?token=%3Cscript%3Ealert(1)%3C/script%3E`, keyHeader, "free-key")
	}
	before := len(v.rdb.Keys())
	for range 3 {
		resp, body := v.get("/api/budget", keyHeader, "pro-key")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
		for _, secret := range []string{"ann", "free-key", "pro-key", "token", "script", "127.0.0.1"} {
			require.NotContains(t, body, secret)
		}
		var st state
		require.NoError(t, json.Unmarshal([]byte(body), &st))
		require.Equal(t, []limitStatus{{Units: 50, Window: "1s", Remaining: 50}}, st.Limits, "looking costs nothing")
		require.Equal(t, "ben", st.Client)
		require.Len(t, st.Refusals, 1)
		r := st.Refusals[0]
		require.WithinDuration(t, time.Now(), r.Time, time.Minute)
		require.Equal(t, refusal{Time: r.Time, Policy: "free", Units: 5, Window: "1s", Path: "/api/quote"}, r)
	}
	require.Len(t, v.rdb.Keys(), before, "and leaves no trace")

	_, body := v.get("/api/budget")
	var st state
	require.NoError(t, json.Unmarshal([]byte(body), &st))
	require.Empty(t, st.Client)
	require.Equal(t, "login", st.Policy)
	require.Equal(t, []limitStatus{{Units: 2, Window: "1m0s", Remaining: 2}}, st.Limits)
}

func TestRefusalsAreBounded(t *testing.T) {
	var l lately
	require.Equal(t, []refusal{}, l.newest())
	for i := range 3 * shownLately {
		l.add(refusal{Units: int64(i)})
	}
	list := l.newest()
	require.Len(t, list, shownLately)
	require.EqualValues(t, 3*shownLately-1, list[0].Units)
	require.EqualValues(t, 2*shownLately, list[shownLately-1].Units)
}

// A stream tells what happens, outlives the timeouts of other requests, and ends when the server stops.
func TestLive(t *testing.T) {
	v := serve(t)
	impatient := httptest.NewUnstartedServer(v.s.handler)
	impatient.Config.ReadTimeout, impatient.Config.WriteTimeout = liveEvery*4/5, liveEvery*4/5
	impatient.Start()
	defer impatient.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, impatient.URL+"/live", nil)
	require.NoError(t, err)
	r.Header.Set(keyHeader, "free-key")
	resp, err := impatient.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	events := bufio.NewScanner(resp.Body)
	next := func() (st state) {
		for events.Scan() {
			if data, ok := strings.CutPrefix(events.Text(), "data: "); ok {
				require.NoError(t, json.Unmarshal([]byte(data), &st))
				return st
			}
		}
		t.Fatal("the stream has ended", events.Err())
		return st
	}
	st := next()
	require.Equal(t, "ann", st.Client)
	require.Equal(t, "free", st.Policy)
	require.EqualValues(t, 5, st.Limits[0].Remaining)
	for range 6 {
		v.get("/api/quote", keyHeader, "free-key")
	}
	for len(st.Refusals) == 0 {
		st = next()
	}
	require.Zero(t, st.Limits[0].Remaining)
	require.EqualValues(t, 3, st.Limits[1].Remaining)
	require.EqualValues(t, 60_000, st.Limits[1].ResetMS)

	v.s.stop()
	for events.Scan() {
	}
	require.NoError(t, events.Err())
}

func TestStreamsAreBounded(t *testing.T) {
	v := serve(t)
	for range maxStreams {
		v.s.guests <- struct{}{}
	}
	resp, _ := v.get("/live")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	<-v.s.guests
	v.s.stop()
	resp, _ = v.get("/live")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Len(t, v.s.guests, maxStreams-1, "a stream that has ended leaves its room")
}

// The page needs nothing that isn't here, and the browser is told to load nothing else.
func TestPage(t *testing.T) {
	v := serve(t)
	for path, kind := range map[string]string{
		"/": "text/html", "/static/app.css": "text/css", "/static/app.js": "text/javascript", "/static/icon.svg": "image/svg+xml",
	} {
		resp, body := v.get(path)
		require.Equal(t, http.StatusOK, resp.StatusCode, path)
		require.Contains(t, resp.Header.Get("Content-Type"), kind)
		require.Contains(t, resp.Header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'")
		require.NotContains(t, strings.ReplaceAll(body, "http://www.w3.org/2000/svg", ""), "//"+"www")
		for _, way := range []string{"innerHTML", "insertAdjacentHTML", "document.write", "eval("} {
			require.NotContains(t, body, way)
		}
	}
	resp, _ := v.get("/elsewhere")
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
}

// Without an answer from Redis there's no budget to show; the log says why, and not whose it is.
func TestBudgetWithoutRedis(t *testing.T) {
	v := serve(t)
	away := ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) {
		return ration.Decision{}, fmt.Errorf("%w: OOM", ration.ErrUnavailable)
	})
	v.s.dir.find("free-key").plan.limiter = away
	resp, body := v.get("/api/budget", keyHeader, "free-key")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.NotContains(t, body, "OOM")
	v.Close()
	require.Contains(t, v.log.String(), "OOM")
	require.NotContains(t, v.log.String(), "ann")
	require.NotContains(t, v.log.String(), "free-key")
}

// exit runs the program until it ends by itself, or with a context that is over.
func exit(ctx context.Context, args ...string) (code int, out, errs string) {
	var stdout, stderr bytes.Buffer
	code = run(ctx, args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestExitCodes(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	for _, c := range []struct {
		code int
		args []string
		want string
	}{
		{0, []string{"-h"}, "HOST:PORT"},
		{2, []string{"-wrong"}, "-wrong"},
		{2, []string{"extra"}, "extra"},
		{1, []string{"-addr", taken.Addr().String()}, "address already in use"},
		{1, []string{"-config", "none.json"}, "none.json"},
		{1, []string{"-instances", "0"}, "invalid option"},
		{1, []string{"-redis-timeout", "0"}, "invalid option"},
	} {
		code, out, errs := exit(t.Context(), c.args...)
		require.Equal(t, c.code, code, errs)
		require.Empty(t, out)
		require.Contains(t, errs, c.want)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	code, out, errs := exit(over, "-addr", "127.0.0.1:0")
	require.Zero(t, code, errs)
	require.Regexp(t, `^listening on http://127\.0\.0\.1:\d+\n$`, out)
}
