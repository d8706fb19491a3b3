package rationtest_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// recorder is a test that notes what it's told instead of failing.
type recorder struct {
	testing.TB // for what isn't recorded

	mu       sync.Mutex
	errors   []string
	fatals   []string
	cleanups []func()
}

// record runs f as a test, cleanup included.
func record(t *testing.T, f func(t testing.TB)) *recorder {
	r := &recorder{TB: t}
	var test sync.WaitGroup
	test.Go(func() { f(r) })
	test.Wait()
	r.finish()
	return r
}

// finish runs the cleanup, last come first served.
func (r *recorder) finish() {
	for len(r.cleanups) > 0 {
		last := len(r.cleanups) - 1
		f := r.cleanups[last]
		r.cleanups = r.cleanups[:last]
		f()
	}
}

func (r *recorder) Helper()                  {}
func (r *recorder) Context() context.Context { return context.Background() }
func (r *recorder) Cleanup(f func())         { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.mu.Lock()
	r.fatals = append(r.fatals, fmt.Sprintf(format, args...))
	r.mu.Unlock()
	runtime.Goexit()
}

// requireFatal demands that f ends its test, with this message.
func requireFatal(t *testing.T, message string, f func(t testing.TB)) {
	t.Helper()
	r := record(t, func(t testing.TB) {
		f(t)
		t.Errorf("it went on")
	})
	require.Equal(t, []string{message}, r.fatals)
	require.Empty(t, r.errors)
}

// requireSilent demands that f's test passes.
func requireSilent(t *testing.T, f func(t testing.TB)) {
	t.Helper()
	r := record(t, f)
	require.Empty(t, r.fatals)
	require.Empty(t, r.errors)
}

// local is a limiter of one limit whose clock stands still.
func local(t testing.TB, l ration.Limit) ration.Limiter {
	limiter, err := ration.NewLocal(ration.Policy{Name: "p", Limits: []ration.Limit{l}},
		ration.WithClock(func() time.Time { return epoch }))
	require.NoError(t, err)
	return limiter
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
