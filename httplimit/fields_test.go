package httplimit

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rationgo/ration"
)

// Whatever the limiter says, both fields are lists as httpsfv itself would write them, with the
// numbers of each limit.
func TestPropertyFieldsAreStructured(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := rapid.Custom(func(t *rapid.T) ration.LimitState {
			return ration.LimitState{
				Limit: ration.Limit{Name: rapid.String().Draw(t, "name"), Units: rapid.Int64().Draw(t, "units"),
					Window: time.Duration(rapid.Int64().Draw(t, "window"))},
				Remaining:  rapid.Int64().Draw(t, "remaining"),
				RetryAfter: time.Duration(rapid.Int64().Draw(t, "retry")),
				ResetAfter: time.Duration(rapid.Int64().Draw(t, "reset")),
			}
		})
		states := rapid.SliceOfN(state, 1, ration.MaxLimits).Draw(t, "states")
		s := states[0]
		d := ration.Decision{Limit: s.Limit, Remaining: s.Remaining, RetryAfter: s.RetryAfter, ResetAfter: s.ResetAfter}
		if len(states) > 1 {
			d.Limits = states
		}
		h, c := http.Header{}, config{headers: Draft11}
		for range 2 { // made anew and remembered
			clear(h)
			c.setFields(h, &d)
			checkFields(t, h, states)
		}
	})
}

func checkFields(t *rapid.T, h http.Header, states []ration.LimitState) {
	for _, name := range []string{"RateLimit-Policy", "RateLimit"} {
		list, err := httpsfv.UnmarshalList(h.Values(name))
		require.NoError(t, err, h)
		require.Len(t, list, len(states))
		again, err := httpsfv.Marshal(list)
		require.NoError(t, err)
		require.Equal(t, []string{again}, h.Values(name))
		for i, m := range list {
			get := func(k string) int64 {
				v, _ := m.(httpsfv.Item).Params.Get(k)
				n, ok := v.(int64)
				require.True(t, ok, "%s of %s", k, again)
				return n
			}
			s := states[i]
			if name == "RateLimit" {
				require.Equal(t, max(0, min(s.Remaining, maxInteger)), get("r"))
				require.GreaterOrEqual(t, get("t"), int64(0))
				require.LessOrEqual(t, get("t"), seconds(s.Limit.Window))
				continue
			}
			require.Equal(t, max(0, min(s.Limit.Units, maxInteger)), get("q"))
			require.Equal(t, max(1, seconds(s.Limit.Window)), get("w"))
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"login": `"login"`, `a"b\c`: `"a\"b\\c"`, "100%": `"100%"`, "é%": `"%C3%A9%25"`, "a\r\nb": `"a%0D%0Ab"`, "\xff": `"%FF"`,
	} {
		m := newMember(ration.Limit{Name: name, Units: math.MaxInt64, Window: time.Nanosecond})
		require.Equal(t, want, m.item)
		require.Equal(t, want+fmt.Sprintf(";q=%d;w=1", maxInteger), m.policy)
	}
}

// reused is a ResponseWriter that costs nothing, so that only the middleware is measured.
type reused struct{ h http.Header }

func (w reused) Header() http.Header         { return w.h }
func (w reused) Write(p []byte) (int, error) { return len(p), nil }
func (w reused) WriteHeader(int)             {}

func constant(d ration.Decision) ration.Limiter {
	return ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) { return d, nil })
}

// The middleware adds no more than three allocations to a limiter's own.
func TestAllocations(t *testing.T) {
	one := ration.Decision{Allowed: true, Granted: 1, Limit: ration.PerMinute(100), Remaining: 99, ResetAfter: time.Minute}
	two := one
	two.Limits = []ration.LimitState{{Limit: ration.PerMinute(100), Remaining: 99}, {Limit: ration.PerDay(1000), Remaining: 999}}
	for name, d := range map[string]ration.Decision{"one limit": one, "two limits": two} {
		limit, err := New(constant(d), RemoteIP())
		require.NoError(t, err)
		h := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		w, r := reused{http.Header{}}, httptest.NewRequest("GET", "/", nil)
		got := testing.AllocsPerRun(200, func() {
			clear(w.h)
			h.ServeHTTP(w, r)
		})
		require.NotEmpty(t, w.h.Get("RateLimit"))
		require.LessOrEqual(t, got, 3.0, name)
	}
}

// A token bucket's quota is its Burst, in the time in which that comes back: what remains is never above it.
func TestFieldsOfABucket(t *testing.T) {
	for _, c := range []struct {
		lim    ration.Limit
		policy string
	}{
		{ration.Limit{Name: "b", Units: 60, Window: time.Minute, Burst: 5}, `"b";q=5;w=5`},
		{ration.Limit{Name: "b", Units: 3, Window: 10 * time.Second, Burst: 1}, `"b";q=1;w=4`},
		{ration.Limit{Name: "b", Units: 10, Window: time.Second, Burst: 1000}, `"b";q=1000;w=100`},
		{ration.Limit{Name: "b", Units: 10, Window: time.Second}, `"b";q=10;w=1`},
	} {
		h, conf := http.Header{}, config{headers: Draft11 | Draft06}
		conf.setFields(h, &ration.Decision{Limit: c.lim, Remaining: 1, RetryAfter: 0, ResetAfter: time.Hour})
		require.Equal(t, c.policy, h.Get("RateLimit-Policy"))
		_, params, _ := strings.Cut(c.policy, ";q=")
		q, w, _ := strings.Cut(params, ";w=")
		require.Equal(t, `"b";r=1;t=`+w, h.Get("RateLimit"))
		require.Equal(t, q, h.Get("RateLimit-Limit"))
	}
}
