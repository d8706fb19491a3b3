package ration_test

// Each TestB… is a fault from public bug reports of rate limiters, under
// the number it has in the project's list of cases.

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

var ctx = context.Background()

// timeline is one limiter and a clock whose second 0 lies on a turn of its window.
type timeline struct {
	t      *testing.T
	b      backend
	start  time.Time
	l      ration.Limiter
	store  *ration.Store
	prefix string
	make   func(*ration.Store, ration.Policy) (ration.Limiter, error)
}

// newTimeline makes a limiter of the strategy on keys of its own.
func newTimeline(t *testing.T, b backend, strategy string, limits ...ration.Limit) *timeline {
	t.Helper()
	return policyTimeline(t, b, strategy, ration.Policy{Name: "p", Limits: limits})
}

func policyTimeline(t *testing.T, b backend, strategy string, p ration.Policy) *timeline {
	t.Helper()
	tl := &timeline{t: t, b: b, prefix: freshPrefix(), make: strategies[strategy]}
	tl.store = b.store(t, ration.WithPrefix(tl.prefix))
	tl.l = tl.limiter(p)
	window := p.Limits[len(p.Limits)-1].Window
	past := b.Now().UnixMicro() % window.Microseconds()
	tl.start = b.Now().Add(2*window - time.Duration(past)*time.Microsecond)
	tl.at(0)
	return tl
}

func (tl *timeline) limiter(p ration.Policy) ration.Limiter {
	tl.t.Helper()
	l, err := tl.make(tl.store, p)
	require.NoError(tl.t, err)
	return l
}

// at moves the clock to a second of the timeline.
func (tl *timeline) at(seconds float64) {
	tl.b.SetTime(tl.start.Add(time.Duration(seconds * 1e6 * float64(time.Microsecond)).Round(time.Microsecond)))
}

// seconds is the inverse of at.
func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Microsecond)
}

// letters asks once a letter and demands its verdict: A allowed, D refused. It returns the last answer.
func (tl *timeline) letters(want string) ration.Decision {
	tl.t.Helper()
	return tl.costs(1, want)
}

func (tl *timeline) costs(n int64, want string) (d ration.Decision) {
	tl.t.Helper()
	var got strings.Builder
	for range want {
		var err error
		d, err = tl.l.AllowN(ctx, "u", n)
		require.NoError(tl.t, err)
		got.WriteByte(letter(d))
	}
	require.Equal(tl.t, want, got.String(), "at second %v of the timeline", tl.b.Now().Sub(tl.start))
	return d
}

func letter(d ration.Decision) byte {
	if d.Allowed {
		return 'A'
	}
	return 'D'
}

// keys lists the timeline's keys.
func (tl *timeline) keys() []string {
	keys, err := tl.b.rdb.Keys(ctx, tl.prefix+":*").Result()
	require.NoError(tl.t, err)
	return keys
}

// requireLifetimes demands that every key has a lifetime of at most longest.
func (tl *timeline) requireLifetimes(longest time.Duration) {
	tl.t.Helper()
	for _, key := range tl.keys() {
		ttl, err := tl.b.rdb.PTTL(ctx, key).Result()
		require.NoError(tl.t, err)
		require.Greater(tl.t, ttl, time.Duration(0), "key %s", key)
		require.LessOrEqual(tl.t, ttl, longest, "key %s", key)
	}
}

// on runs a test on every server for the strategies named.
func on(t *testing.T, names string, run func(t *testing.T, b backend, strategy string)) {
	onEach(t, backends, func(t *testing.T, start func(testing.TB) backend) {
		b := start(t)
		for _, strategy := range strings.Fields(names) {
			t.Run(strategy, func(t *testing.T) { run(t, b, strategy) })
		}
	})
}

// onEach runs a test on servers side by side, and returns when all have ended.
func onEach(t *testing.T, servers map[string]func(testing.TB) backend, run func(t *testing.T, start func(testing.TB) backend)) {
	t.Run("on", func(t *testing.T) {
		for server, start := range servers {
			t.Run(server, func(t *testing.T) {
				t.Parallel()
				run(t, start)
			})
		}
	})
}

const (
	every  = leased + " compact counter token"
	leased = "fixed log buckets" // those that NewTwoTier takes
)

func must(d ration.Decision, err error) ration.Decision {
	if err != nil {
		panic(err) // a test's own server failed
	}
	return d
}
