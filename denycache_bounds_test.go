package ration_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

// What a caller does with its decision and its key is no matter.
func TestDenyCacheKeepsItsOwn(t *testing.T) {
	inBubble(t, func(w *world) {
		l := w.limiter(w.store(ration.WithDenyCache(10)), ration.PerHour(5), ration.PerDay(6))
		buf := []byte("subject")
		key := unsafe.String(&buf[0], len(buf)) // as some web servers make their strings
		must(l.AllowN(ctx, "subject", 3))
		for _, cost := range []int64{5, 4, 3} { // each takes the place of the one before
			d := must(l.AllowN(ctx, key, cost))
			d.Limits[0], d.Limits[1] = ration.LimitState{}, ration.LimitState{}
		}
		copy(buf, "another")
		w.take()
		for range 2 {
			d := w.cached(l.AllowN(ctx, "subject", 3))
			require.Equal(w, ration.PerDay(6), d.Limits[1].Limit)
			d.Limits[1] = ration.LimitState{}
		}
	})
}

// It's bounded, and full as far as chance fills it; what is in it is right.
func TestDenyCacheIsBounded(t *testing.T) {
	for _, size := range []int{1, 63, 65, 200} {
		inBubble(t, func(w *world) {
			rec := &recorder{}
			l := w.limiter(w.store(ration.WithDenyCache(size), ration.WithObserver(rec)), ration.PerHour(1))
			w.spoil(replies([]any{int64(0), int64(1), int64(1e6), int64(1e6)}))
			for i := range 1600 {
				must(l.Allow(ctx, fmt.Sprint(i%800)))
			}
			most := 0
			for _, e := range rec.take(w.T).caches {
				most = max(most, e.Entries)
			}
			require.LessOrEqual(w, most, size)
			require.GreaterOrEqual(w, most, size/2)
		})
	}
}

// Everything at once, for the race detector: no more is admitted than there is, and
// a Reset of one's own subject is never followed by a refusal.
func TestDenyCacheConcurrently(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rationtest.NewRedis(t)
	store := r.Store(ration.WithDenyCache(20), ration.WithObserver(&recorder{}))
	for strategy, newLimiter := range strategies {
		l, err := newLimiter(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerDay(3)}})
		require.NoError(t, err)
		var callers sync.WaitGroup
		var admitted atomic.Int64
		for i := range 16 {
			callers.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				own := fmt.Sprint("own", i)
				for range 40 {
					d, err := l.Allow(ctx, "shared")
					if err != nil || d.Degraded {
						t.Errorf("%+v, %v", d, err)
					}
					admitted.Add(d.Granted)
					_, _ = l.AllowN(ctx, own, rng.Int64N(5))
					if rng.IntN(4) == 0 {
						_ = l.Reset(ctx, own)
						if d, _ := l.Allow(ctx, own); !d.Allowed {
							t.Errorf("refused after a Reset: %+v", d)
						}
					}
				}
			})
		}
		callers.Wait()
		require.EqualValues(t, 3, admitted.Load(), strategy)
	}
}
