package ration_test

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
	"github.com/rationgo/ration/rationtest"
)

// strategies are the Redis strategies under their names.
var strategies = map[string]func(*ration.Store, ration.Policy) (ration.Limiter, error){
	"fixed":   ration.NewFixedWindow,
	"log":     ration.NewSlidingLog,
	"buckets": ration.NewSlidingBuckets,
	"compact": ration.NewCompactLog,
	"counter": ration.NewSlidingCounter,
	"token":   ration.NewTokenBucket,
}

// withCombined are the strategies and a limiter combined of one of them.
func withCombined() map[string]func(*ration.Store, ration.Policy) (ration.Limiter, error) {
	all := maps.Clone(strategies)
	all["combined"] = func(s *ration.Store, p ration.Policy) (ration.Limiter, error) {
		l, err := ration.NewSlidingLog(s, p)
		if err != nil {
			return nil, err
		}
		return ration.Combine(l)
	}
	return all
}

// oneSlot is how much longer than a window the buckets and the ring count.
func oneSlot(p ration.Policy, window time.Duration) time.Duration {
	slots := time.Duration(p.Slots)
	if slots == 0 {
		slots = 20
	}
	micros := (window + time.Microsecond - 1) / time.Microsecond
	return (micros+slots-1)/slots*time.Microsecond*(slots+1) - window
}

// oneWindow is how much longer than a window the counter counts a unit at most.
func oneWindow(_ ration.Policy, window time.Duration) time.Duration {
	return window + time.Microsecond // windows are rounded up
}

// movable is a Redis, of either kind, whose clock the test moves.
type movable interface {
	Now() time.Time
	Advance(time.Duration)
	SetTime(time.Time)
}

// backend is a movable Redis with what a test asks of it.
type backend struct {
	movable
	rdb *redis.Client
}

func (b backend) store(t testing.TB, opts ...ration.Option) *ration.Store {
	opts = append([]ration.Option{ration.WithTimeout(30 * time.Second)}, opts...)
	s, err := ration.Open(b.rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func (b backend) keys(t testing.TB) []string {
	var keys []string
	scan := b.rdb.Scan(context.Background(), 0, "*", 1000).Iterator()
	for scan.Next(context.Background()) {
		keys = append(keys, scan.Val())
	}
	require.NoError(t, scan.Err())
	return keys
}

// backends are the servers every strategy is tested on.
var backends = map[string]func(t testing.TB) backend{
	"miniredis": func(t testing.TB) backend {
		r := rationtest.NewRedis(t)
		return backend{r, r.Client()}
	},
	"miniredis-without-lifetimes": func(t testing.TB) backend {
		r := rationtest.NewRedisWithoutLifetimes(t)
		return backend{r, r.Client()}
	},
	"redis": func(t testing.TB) backend {
		s := redistest.Start(t, redistest.WithClock(rationtest.Epoch))
		return backend{s, s.Client(t)}
	},
}

func TestConformance(t *testing.T) {
	all := maps.Clone(backends)
	// A lone call goes on the caller's own goroutine there.
	all["redis-client-with-context-timeouts"] = func(t testing.TB) backend {
		s := redistest.Start(t, redistest.WithClock(rationtest.Epoch))
		return backend{s, s.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })}
	}
	onEach(t, all, func(t *testing.T, start func(testing.TB) backend) {
		b := start(t)
		for strategy, newLimiter := range withCombined() {
			t.Run(strategy, func(t *testing.T) {
				b.SetTime(rationtest.Epoch) // windows of an age add up to more than Lua counts
				rationtest.Exercise(t, func(t *testing.T) rationtest.Harness {
					return redisHarness(t, b, strategy, newLimiter)
				})
			})
		}
	})
}

// redisHarness gives each check a prefix of its own on a shared server.
func redisHarness(t *testing.T, b backend, strategy string, newLimiter func(*ration.Store, ration.Policy) (ration.Limiter, error)) rationtest.Harness {
	prefix := freshPrefix()
	store := b.store(t, ration.WithPrefix(prefix))
	h := rationtest.Harness{
		New:     func(p ration.Policy) (ration.Limiter, error) { return newLimiter(store, p) },
		Now:     b.Now,
		Advance: b.Advance,
		Grid:    strategy == "fixed" || strategy == "counter",
		Refills: strategy == "token",
		Shared:  true,
		Source:  ration.Redis,
		Keys: func() []string {
			keys, err := b.rdb.Keys(context.Background(), prefix+":*").Result()
			require.NoError(t, err)
			return keys
		},
	}
	switch strategy {
	case "buckets":
		h.Hold = oneSlot
	case "counter":
		h.Hold, h.Estimates = oneWindow, true
	}
	return h
}

var prefixes atomic.Int64

// freshPrefix is a key prefix no other test has.
func freshPrefix() string { return fmt.Sprintf("t%d", prefixes.Add(1)) }

// The ring in this process means the same.
func TestRingConformance(t *testing.T) {
	rationtest.Exercise(t, func(t *testing.T) rationtest.Harness {
		now := rationtest.Epoch
		clock := func() time.Time { return now }
		return rationtest.Harness{
			New:     func(p ration.Policy) (ration.Limiter, error) { return ration.NewLocal(p, ration.WithClock(clock)) },
			Now:     clock,
			Advance: func(d time.Duration) { now = now.Add(d) },
			Hold:    oneSlot,
			Source:  ration.Ring,
		}
	})
}
