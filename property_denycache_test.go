package ration_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rationgo/ration"
)

// TestPropertyDenyCache plays random histories on a store with the cache and on one without: where nobody
// else uses Redis, every call has the same verdict. The clock is a bubble's, so that it's one for both
// Redis and the cache.
func TestPropertyDenyCache(t *testing.T) {
	for strategy := range strategies {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				hits := 0
				// A bubble has no Deadline, which rapid would ask for.
				rapid.Check(struct{ testing.TB }{w.T}, oneIn(12)(func(t *rapid.T) {
					p := newCachePair(t, w, strategy)
					defer p.close()
					t.Repeat(map[string]func(*rapid.T){
						"call": p.call, "refused call": p.useUp, "call again": p.call, "move": p.move, "limits": p.changeLimits,
					})
					hits += p.hits
				}))
				w.Logf("%d hits", hits)
				require.Greater(w, hits, 10, "the cache was hardly used")
			})
		})
	}
}

// cachePair is two stores that see the same calls, one of them with a cache.
type cachePair struct {
	stores [2]*ration.Store
	// Of each store a limiter whose limits change, and one whose don't.
	limiters [2][2]ration.Limiter
	limits   []ration.Limit
	hits     int
}

var cachePlans = [][]ration.Limit{
	{ration.PerSecond(3)}, {ration.PerSecond(5)}, {ration.Per(2, 1200*time.Millisecond)}, {ration.PerSecond(0)},
	{ration.PerSecond(3), ration.PerMinute(6)}, {ration.PerMinute(6), ration.PerSecond(2)}, {ration.PerMinute(1)}, {ration.PerMinute(7)},
	{ration.Per(2, time.Minute+time.Microsecond)}, {ration.Per(2, time.Minute+2*time.Microsecond)}, // cut alike by the buckets
}

func newCachePair(t *rapid.T, w *world, strategy string) *cachePair {
	p := &cachePair{}
	p.changeLimits(t)
	fixed := rapid.SampledFrom(cachePlans).Draw(t, "fixed limits")
	entries := rapid.SampledFrom([]int{1, 2, 100}).Draw(t, "entries")
	for i, opt := range []ration.Option{nil, ration.WithDenyCache(entries)} {
		store, err := ration.Open(w.rdb, ration.WithPrefix(freshPrefix()), ration.WithTimeout(time.Minute), opt)
		require.NoError(t, err)
		p.stores[i] = store
		p.limiters[i] = [2]ration.Limiter{
			w.of(strategy, store, ration.Policy{Name: "p", LimitsFor: func(context.Context, string) ([]ration.Limit, error) { return p.limits, nil }}),
			w.of(strategy, store, ration.Policy{Name: "p", Limits: fixed}),
		}
	}
	return p
}

func (p *cachePair) close() {
	for _, s := range p.stores {
		_ = s.Close()
	}
}

func (p *cachePair) changeLimits(t *rapid.T) {
	p.limits = rapid.SampledFrom(cachePlans).Draw(t, "limits")
}

func (p *cachePair) move(t *rapid.T) {
	pass(time.Duration(rapid.SampledFrom([]int64{1, 999, 50_000, 200_000, 333_333, 700_000, 1_000_000, 30_000_000}).Draw(t, "µs")) * time.Microsecond)
}

func (p *cachePair) call(t *rapid.T) {
	p.ask(t, ration.Request{
		Op:  rapid.SampledFrom([]ration.Op{ration.OpAllow, ration.OpAllow, ration.OpAllowUpTo, ration.OpPeek, ration.OpRefund, ration.OpReset}).Draw(t, "op"),
		N:   rapid.SampledFrom([]int64{0, 1, 1, 2, 3, 6, math.MaxInt64}).Draw(t, "n"),
		Key: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"),
	})
}

// useUp takes what is left, so that refusals follow.
func (p *cachePair) useUp(t *rapid.T) {
	p.ask(t, ration.Request{Op: ration.OpAllowUpTo, N: 100, Key: "a"})
	for range 4 {
		p.ask(t, ration.Request{Op: ration.OpAllow, N: rapid.Int64Range(1, 3).Draw(t, "n"), Key: "a"})
	}
}

// ask makes a call on both stores and compares the answers.
func (p *cachePair) ask(t *rapid.T, r ration.Request) {
	which := rapid.IntRange(0, 1).Draw(t, "which")
	want, err := r.Do(ctx, p.limiters[0][which])
	require.NoError(t, err)
	got, err := r.Do(ctx, p.limiters[1][which])
	require.NoError(t, err)
	if got.Source != ration.DenyCache {
		require.Equal(t, want, got)
		return
	}
	p.hits++
	require.False(t, want.Allowed)
	require.False(t, got.Allowed || got.Degraded || got.Granted > 0)
	require.Positive(t, got.RetryAfter)
	require.LessOrEqual(t, got.RetryAfter, want.RetryAfter)
	require.Equal(t, want.RetryAfter == ration.Never, got.RetryAfter == ration.Never)
	require.Len(t, got.Limits, len(want.Limits))
	requireSettled(t, got)
}

func TestDenyCacheAfterClose(t *testing.T) {
	store, err := ration.Open(backends["miniredis"](t).rdb, ration.WithDenyCache(10))
	require.NoError(t, err)
	l, err := ration.NewFixedWindow(store, minute(1))
	require.NoError(t, err)
	must(l.Allow(ctx, "u"))
	must(l.Allow(ctx, "u"))
	require.Equal(t, ration.DenyCache, must(l.Allow(ctx, "u")).Source)
	require.NoError(t, store.Close())
	_, err = l.Allow(ctx, "u")
	require.ErrorIs(t, err, ration.ErrClosed)
}
