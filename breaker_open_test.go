package ration_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// While it's open a call sends nothing and opens no connection, of any op and under any rule, and
// takes less than 5 µs.
func TestOpenBreakerSendsNothing(t *testing.T) {
	for _, rule := range rules {
		w := offline(t, refused)
		l := w.limiter(w.store(ration.WithOnFailure(rule), ration.WithBreaker(ration.Breaker{Cooldown: math.MaxInt64})), ration.PerHour(1e9))
		for range 3 {
			_, _ = l.Allow(ctx, "u")
		}
		if d, _ := l.Allow(ctx, "u"); rule == ration.FailClosed {
			require.Greater(t, d.RetryAfter, 10000*time.Hour)
		}
		require.Len(t, w.take(), 3)
		var batches []time.Duration
		for range 200 {
			began := time.Now()
			for range 100 {
				_, _ = l.Allow(ctx, "u")
			}
			batches = append(batches, time.Since(began)/100)
		}
		for _, r := range everyRequest {
			r.Key = "u"
			_, _ = r.Do(ctx, l)
		}
		require.Empty(t, w.take())
		require.Zero(t, w.dials.Load())
		slices.Sort(batches)
		t.Logf("%v: %v", rule, batches[len(batches)/2])
		require.Less(t, batches[len(batches)/2], 5*time.Microsecond, rule)
	}
}

func TestBreakerOptions(t *testing.T) {
	w := offline(t, refused)
	for _, b := range []ration.Breaker{
		{Failures: -1}, {Failures: math.MaxInt32 + 1}, {Cooldown: -1}, {MaxCooldown: -1}, {Failures: math.MinInt},
		{Cooldown: 2, MaxCooldown: 1}, {MaxCooldown: 99 * time.Millisecond},
	} {
		_, err := ration.Open(w.rdb, ration.WithBreaker(b))
		require.ErrorIs(t, err, ration.ErrInvalidOption, "%+v", b)
	}
}

func BenchmarkOpenBreaker(b *testing.B) {
	for _, rule := range rules {
		b.Run(rule.String(), func(b *testing.B) {
			rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
			defer rdb.Close()
			down := &line{}
			down.spoil(refused)
			rdb.AddHook(down)
			store, err := ration.Open(rdb, ration.WithOnFailure(rule), ration.WithBreaker(ration.Breaker{Failures: 1, Cooldown: time.Hour}))
			require.NoError(b, err)
			l, err := ration.NewFixedWindow(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(10)}})
			require.NoError(b, err)
			_, _ = l.Allow(ctx, "u")
			b.ReportAllocs()
			for b.Loop() {
				_, _ = l.Allow(ctx, "u")
			}
		})
	}
}
