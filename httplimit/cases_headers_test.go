package httplimit_test

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/httplimit"
	"github.com/rationgo/ration/rationtest"
)

var allForms = httplimit.WithHeaders(httplimit.Draft11, httplimit.Draft06, httplimit.XRateLimit)

// Redis that is down isn't told as an exceeded limit, whichever way the store refuses.
func TestB90AnOutageIsNotARefusal(t *testing.T) {
	for _, rule := range []ration.FailureRule{ration.FailError, ration.FailClosed} {
		t.Run(rule.String(), func(t *testing.T) {
			refused := func(http.ResponseWriter, *http.Request, ration.Decision) { t.Error("told as a refusal") }
			limit := middleware(t, dead(t, rule, ration.PerMinute(5)), anyone, allForms, httplimit.WithRefusalHandler(refused))
			s := serve(t, limit(ok))
			for range 5 { // the breaker answers later ones
				a := s.get("/")
				require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
				requireNoRateFields(t, a.Header)
				require.Equal(t, "application/problem+json", a.Header.Get("Content-Type"))
				require.Equal(t, "no-store", a.Header.Get("Cache-Control"))
				require.JSONEq(t, `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
					"title":"Temporary Reduced Capacity","status":503}`, a.body)
				if rule == ration.FailError {
					require.Empty(t, a.Header.Values("Retry-After"))
				} else {
					n, err := strconv.Atoi(a.Header.Get("Retry-After"))
					require.NoError(t, err)
					require.True(t, n >= 1 && n <= 3, n)
				}
			}
		})
	}
	for _, rule := range []ration.FailureRule{ration.FailOpen, ration.FailLocal(1)} {
		s := serve(t, middleware(t, dead(t, rule, ration.PerMinute(5)), anyone)(ok))
		require.Equal(t, http.StatusOK, s.get("/").StatusCode, rule)
	}
	open := serve(t, middleware(t, dead(t, ration.FailOpen, ration.PerMinute(5)), anyone, allForms)(ok))
	requireNoRateFields(t, open.get("/").Header) // nothing is counted, so there's nothing to tell

	// What FailLocal's ring refuses is over the limit, and told so.
	few := serve(t, middleware(t, dead(t, ration.FailLocal(1), ration.PerMinute(1)), anyone)(ok))
	require.Equal(t, http.StatusOK, few.get("/").StatusCode)
	require.Equal(t, http.StatusTooManyRequests, few.get("/").StatusCode)
}

// The configured error handler is asked instead, with the cause.
func TestB90Configurable(t *testing.T) {
	for _, rule := range []ration.FailureRule{ration.FailError, ration.FailClosed} {
		s := serve(t, middleware(t, dead(t, rule, ration.PerMinute(5)), anyone,
			httplimit.WithErrorHandler(func(w http.ResponseWriter, _ *http.Request, err error) {
				if ration.ClassOf(err) == ration.ClassConnection {
					w.WriteHeader(http.StatusBadGateway)
				}
			}))(ok))
		require.Equal(t, http.StatusBadGateway, s.get("/").StatusCode, rule)
	}
}

func TestB96RetryAfterRoundsUp(t *testing.T) {
	var d ration.Decision
	limiter := ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) { return d, nil })
	s := serve(t, middleware(t, limiter, anyone)(ok))
	for _, c := range []struct {
		wait time.Duration
		want string
	}{
		{time.Nanosecond, "1"}, {time.Millisecond, "1"}, {200 * time.Millisecond, "1"}, {time.Second, "1"},
		{1001 * time.Millisecond, "2"}, {59100 * time.Millisecond, "60"}, {0, "1"}, {-time.Second, "1"},
	} {
		d = ration.Decision{Limit: ration.PerMinute(5), RetryAfter: c.wait}
		a := s.get("/")
		require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
		require.Equal(t, []string{c.want}, a.Header.Values("Retry-After"), c.wait)
	}
	d = ration.Decision{Limit: ration.PerMinute(5), RetryAfter: ration.Never}
	a := s.get("/")
	require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
	require.Empty(t, a.Header.Values("Retry-After"), "it can't succeed later")
	d = ration.Decision{Allowed: true, Granted: 1, Limit: ration.PerMinute(5), Remaining: 4, ResetAfter: time.Minute}
	require.Empty(t, s.get("/").Header.Values("Retry-After"))
}

// Who waits exactly as long as the field says is let in.
func TestB96ExactlyAsTold(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	l, err := ration.NewSlidingLog(rdb.Store(), policy(ration.Per(1, 2500*time.Millisecond)))
	require.NoError(t, err)
	s := serve(t, middleware(t, l, anyone)(ok))
	require.Equal(t, 200, s.get("/").StatusCode)
	rdb.Advance(400 * time.Millisecond)
	for range 20 {
		a := s.get("/")
		require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
		n, err := strconv.Atoi(a.Header.Get("Retry-After"))
		require.NoError(t, err)
		rdb.Advance(time.Duration(n) * time.Second)
		require.Equal(t, 200, s.get("/").StatusCode)
	}
}

// bounds checks all numbers of an answer against a limit.
func bounds(t *testing.T, a answer, l ration.Limit, now time.Time) {
	t.Helper()
	window := int64((l.Window + time.Second - 1) / time.Second)
	number := func(name string) int64 {
		n, err := strconv.ParseInt(a.Header.Get(name), 10, 64)
		require.NoError(t, err, name)
		return n
	}
	in := func(n, from, to int64) {
		t.Helper()
		require.True(t, from <= n && n <= to, "%d not in %d to %d", n, from, to)
	}
	in(number("RateLimit-Reset"), 0, window)
	in(number("RateLimit-Remaining"), 0, l.Units)
	in(number("X-RateLimit-Reset"), now.Unix(), now.Unix()+window+1)
	list, err := httpsfv.UnmarshalList(a.Header.Values("RateLimit"))
	require.NoError(t, err)
	require.Len(t, list, 1)
	reset, _ := list[0].(httpsfv.Item).Params.Get("t")
	in(reset.(int64), 0, window)
	if a.StatusCode == http.StatusTooManyRequests {
		in(number("Retry-After"), 1, math.MaxInt64)
	} else {
		require.Empty(t, a.Header.Values("Retry-After"))
	}
}

func TestB97NoNegativeOrAbsurdNumbers(t *testing.T) {
	var d ration.Decision
	limiter := ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) { return d, nil })
	now := time.Unix(1_800_000_000, 0)
	s := serve(t, middleware(t, limiter, anyone, allForms, httplimit.WithNow(func() time.Time { return now }))(ok))
	limit := ration.PerMinute(5)
	odd := []time.Duration{-1, -2, -time.Millisecond, -2 * time.Second, math.MinInt64, 0, 1, time.Minute, 61 * time.Second, math.MaxInt64 - 1, ration.Never,
		-1_800_000_000 * time.Second}
	for _, wait := range odd {
		for _, reset := range odd {
			for _, left := range []int64{-1, math.MinInt64, 0, 5} {
				d = ration.Decision{Limit: limit, Remaining: left, RetryAfter: wait, ResetAfter: reset}
				a := s.get("/")
				require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
				if wait != ration.Never {
					bounds(t, a, limit, now)
				}
				d.Allowed = true
				require.Equal(t, http.StatusOK, s.get("/").StatusCode)
			}
		}
	}
}

// The numbers stay in bounds at the turns of windows, where the counter's lifetime runs out.
func TestB97AtWindowTurns(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	rdb := rationtest.NewRedis(t)
	limit := ration.Per(2, 3*time.Second)
	s := serve(t, middleware(t, fixedWindow(t, rdb, limit), anyone, allForms, httplimit.WithNow(rdb.Now))(ok))
	turn := rationtest.Epoch
	for range 500 {
		turn = turn.Add(limit.Window)
		for _, step := range []time.Duration{-1, 0, 0, 1} {
			rdb.SetTime(turn.Add(step*time.Microsecond + time.Duration(random.IntN(3)-1)*time.Microsecond))
			bounds(t, s.get("/"), limit, rdb.Now())
		}
	}
}

// And for 10,000 refusals on the real clock, around the turns of a short window.
func TestB97InRealTime(t *testing.T) {
	limit := ration.Per(1, 5*time.Millisecond)
	ring, err := ration.NewLocal(policy(limit))
	require.NoError(t, err)
	h := middleware(t, ring, anyone, allForms)(ok)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	deadline := time.Now().Add(time.Minute)
	for refused := 0; refused < 10_000; {
		w := httptest.NewRecorder()
		began := time.Now()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusTooManyRequests {
			require.Equal(t, http.StatusOK, w.Code)
			require.True(t, time.Now().Before(deadline), "%d refusals", refused)
			continue
		}
		refused++
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		require.Equal(t, "1", w.Header().Get("RateLimit-Reset"))
		at, err := strconv.ParseInt(w.Header().Get("X-RateLimit-Reset"), 10, 64)
		require.NoError(t, err)
		require.GreaterOrEqual(t, at, began.Unix())
		require.LessOrEqual(t, at, time.Now().Add(limit.Window).Unix()+1)
	}
}

// Reset is seconds from now in the RateLimit form and Unix time in the X- form, wherever the
// decision was made.
func TestB99DeltaAndEpoch(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	clock := func() time.Time { return now }
	rdb := rationtest.NewRedis(t)
	rdb.SetTime(now)
	ring, err := ration.NewLocal(policy(ration.PerMinute(5)), ration.WithClock(clock))
	require.NoError(t, err)
	for name, l := range map[string]ration.Limiter{
		"redis":    fixedWindow(t, rdb, ration.PerMinute(5)),
		"local":    ring,
		"fallback": dead(t, ration.FailLocal(1), ration.PerMinute(5)),
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, middleware(t, l, anyone, allForms, httplimit.WithNow(clock))(ok))
			for i := range int64(6) {
				a := s.get("/")
				bounds(t, a, ration.PerMinute(5), now)
				delta, _ := strconv.ParseInt(a.Header.Get("RateLimit-Reset"), 10, 64)
				unix, _ := strconv.ParseInt(a.Header.Get("X-RateLimit-Reset"), 10, 64)
				require.True(t, delta > 0, "a used window has still to end")
				require.InDelta(t, now.Unix()+delta, unix, 0, "the same instant in both forms")
				require.Equal(t, "5", a.Header.Get("X-RateLimit-Limit"))
				require.Equal(t, strconv.FormatInt(max(0, 4-i), 10), a.Header.Get("X-RateLimit-Remaining"))
			}
		})
	}
}

// A refusal's t is when this limit lets the request in, and the Unix time isn't before it.
func TestB99ResetOfARefusal(t *testing.T) {
	now := time.Unix(1_800_000_000, 500)
	d := ration.Decision{Limit: ration.PerMinute(5), RetryAfter: 7 * time.Second, ResetAfter: 50 * time.Second}
	h := serve(t, middleware(t, decides(d), anyone, allForms, httplimit.WithNow(func() time.Time { return now }))(ok)).get("/").Header
	require.Equal(t, `"5/1m0s";r=0;t=7`, h.Get("RateLimit"))
	require.Equal(t, "7", h.Get("RateLimit-Reset"))
	require.Equal(t, "1800000008", h.Get("X-RateLimit-Reset"))
}

func TestB100ZeroIsWritten(t *testing.T) {
	s := serve(t, middleware(t, decides(ration.Decision{Limit: ration.PerMinute(5), RetryAfter: ration.Never}), anyone, allForms)(ok))
	a := s.get("/")
	require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
	require.Equal(t, `"5/1m0s";r=0;t=0`, a.Header.Get("RateLimit"))
	for _, name := range []string{"RateLimit-Remaining", "RateLimit-Reset", "X-RateLimit-Remaining"} {
		require.Equal(t, []string{"0"}, a.Header.Values(name), name)
	}
	var body map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.body), &body))
	require.Equal(t, map[string]any{
		"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "title": "Quota Exceeded",
		"status": 429.0, "violated-policies": []any{"5/1m0s"}, "remaining": 0.0,
	}, body)
	zero := serve(t, middleware(t, decides(ration.Decision{RetryAfter: ration.Never, Limit: ration.PerDay(0)}), anyone)(ok)).get("/")
	require.Equal(t, `"0/24h0m0s";q=0;w=86400`, zero.Header.Get("RateLimit-Policy"))
}

func TestB101StackedLimiters(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	named := func(name string, units int64) ration.Limiter {
		l, err := ration.NewFixedWindow(rdb.Store(), ration.Policy{Name: name,
			Limits: []ration.Limit{{Name: name, Units: units, Window: time.Minute}}})
		require.NoError(t, err)
		return l
	}
	outer := middleware(t, named("outer", 100), anyone, allForms)
	inner := middleware(t, named("inner", 1), anyone, allForms)
	s := serve(t, outer(inner(ok)))
	for i, want := range []struct {
		status             int
		retryAfter         []string
		limits             string
		limit, left, reset string
	}{
		{200, nil, `"outer";r=99;t=60, "inner";r=0;t=60`, "1", "0", "60"},
		{429, []string{"60"}, `"outer";r=98;t=60, "inner";r=0;t=60`, "1", "0", "60"},
	} {
		a := s.get("/")
		require.Equal(t, want.status, a.StatusCode, i)
		require.Equal(t, want.retryAfter, a.Header["Retry-After"])
		require.Equal(t, []string{want.limits}, a.Header.Values("RateLimit"))
		require.Equal(t, []string{`"outer";q=100;w=60, "inner";q=1;w=60`}, a.Header.Values("RateLimit-Policy"))
		require.Equal(t, []string{want.limit}, a.Header.Values("RateLimit-Limit"))
		require.Equal(t, []string{want.left}, a.Header.Values("RateLimit-Remaining"))
		require.Equal(t, []string{want.reset}, a.Header.Values("RateLimit-Reset"))
	}
	// A refusal shows the limit that refuses, even if the outer one has less left.
	less := ration.Decision{Allowed: true, Granted: 1, Limit: ration.PerMinute(9), Remaining: 1}
	refusal := ration.Decision{Limit: ration.PerMinute(5), Remaining: 3, RetryAfter: ration.Never}
	s = serve(t, middleware(t, decides(less), anyone, allForms)(middleware(t, decides(refusal), anyone, allForms)(ok)))
	require.Equal(t, []string{"5"}, s.get("/").Header.Values("RateLimit-Limit"))
	// The other way round the outer one is tighter, and stays.
	s = serve(t, middleware(t, named("tight", 3), anyone, allForms)(middleware(t, named("wide", 50), anyone, allForms)(ok)))
	a := s.get("/")
	require.Equal(t, 200, a.StatusCode)
	require.Equal(t, []string{"3"}, a.Header.Values("RateLimit-Limit"))
	require.Equal(t, []string{"2"}, a.Header.Values("X-RateLimit-Remaining"))
}

// Several limits inside and outside: each member once, and the triple is of the one that decided.
func TestB101StackedSeveralLimits(t *testing.T) {
	wide, tight := ration.Limit{Name: "wide", Units: 9, Window: time.Hour}, ration.Limit{Name: "tight", Units: 3, Window: time.Minute}
	d := ration.Decision{Allowed: true, Granted: 1, Limit: tight, Remaining: 2, Limits: []ration.LimitState{
		{Limit: wide, Remaining: 8, ResetAfter: time.Hour}, {Limit: tight, Remaining: 2, ResetAfter: time.Minute},
	}}
	outer := ration.Decision{Allowed: true, Granted: 1, Limit: ration.PerDay(50), Remaining: 49}
	h := serve(t, middleware(t, decides(outer), anyone)(middleware(t, decides(d), anyone, allForms)(ok))).get("/").Header
	require.Equal(t, []string{`"50/24h0m0s";r=49;t=0, "wide";r=8;t=3600, "tight";r=2;t=60`}, h.Values("RateLimit"))
	require.Equal(t, []string{`"50/24h0m0s";q=50;w=86400, "wide";q=9;w=3600, "tight";q=3;w=60`}, h.Values("RateLimit-Policy"))
	require.Equal(t, "3 2 60", h.Get("RateLimit-Limit")+" "+h.Get("RateLimit-Remaining")+" "+h.Get("RateLimit-Reset"))
}

// An allowed answer says nothing of a wait.
func TestB127NothingNegativeOnAllowed(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	var seen ration.Decision
	below := fixedWindow(t, rdb, ration.PerMinute(5), ration.PerHour(50))
	watching := ration.LimiterFunc(func(ctx context.Context, r ration.Request) (ration.Decision, error) {
		d, err := r.Do(ctx, below)
		seen = d
		return d, err
	})
	s := serve(t, middleware(t, watching, anyone, allForms)(ok))
	for range 5 {
		a := s.get("/")
		require.Equal(t, 200, a.StatusCode)
		require.Zero(t, seen.RetryAfter)
		require.Empty(t, a.Header.Values("Retry-After"))
		for name, values := range a.Header {
			for _, v := range values {
				if name != "Date" && name != "Content-Type" {
					require.NotContains(t, v, "-", name)
				}
			}
		}
	}
}
