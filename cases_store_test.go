package ration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

func TestB87ClientIsBorrowed(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t, func(o *redis.Options) { o.PoolSize = 4 })
	for i := range 1000 {
		store, err := ration.Open(rdb, ration.WithTimeout(10*time.Second))
		require.NoError(t, err)
		l, err := ration.NewFixedWindow(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(5)}})
		require.NoError(t, err)
		_, err = l.Allow(ctx, fmt.Sprint(i))
		require.NoError(t, err)
		require.NoError(t, store.Close())
		require.NoError(t, store.Close())
		_, err = l.Allow(ctx, "u")
		require.ErrorIs(t, err, ration.ErrClosed)
	}
	require.LessOrEqual(t, rdb.PoolStats().TotalConns, uint32(4))
	require.NoError(t, rdb.Ping(ctx).Err())
	for _, client := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil), (*redis.Ring)(nil)} {
		store, err := ration.Open(client)
		require.ErrorIs(t, err, ration.ErrInvalidClient)
		require.Nil(t, store)
	}
	for _, newLimiter := range strategies {
		_, err := newLimiter(nil, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(5)}})
		require.ErrorIs(t, err, ration.ErrInvalidClient)
	}
	_, err := ration.Wait(ctx, nil, "u", 1)
	require.ErrorIs(t, err, ration.ErrInvalidClient)
}

func TestB88StartsWithoutRedis(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t, func(o *redis.Options) { o.DialTimeout = time.Second })
	s.Stop()
	began := time.Now()
	store, err := ration.Open(rdb, ration.WithTimeout(200*time.Millisecond))
	require.NoError(t, err)
	for _, newLimiter := range strategies {
		l, err := newLimiter(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(5)}})
		require.NoError(t, err)
		d, err := l.Allow(ctx, "u")
		require.ErrorIs(t, err, ration.ErrUnavailable)
		require.NotErrorIs(t, err, ration.ErrMisconfigured)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, d.Allowed)
	}
	require.Less(t, time.Since(began), 5*time.Second)
	s.Restart()
	l, err := ration.NewFixedWindow(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(5)}})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		d, err := l.Allow(ctx, "u")
		return err == nil && d.Allowed && d.Source == ration.Redis && !d.Degraded
	}, 10*time.Second, 10*time.Millisecond)
}

// Everything at once, for the race detector; a control subject counts right.
func TestB117ConcurrentUse(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerDay(1000))
		var units atomic.Int64
		units.Store(5)
		changing := tl.limiter(ration.Policy{Name: "q", LimitsFor: func(context.Context, string) ([]ration.Limit, error) {
			return []ration.Limit{ration.PerDay(units.Load()), ration.PerHour(3)}, nil
		}})
		var control atomic.Int64
		var callers sync.WaitGroup
		for i := range 32 {
			callers.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				for range 30 {
					if d, err := tl.l.Allow(ctx, "control"); err != nil {
						t.Error(err)
					} else {
						control.Add(d.Granted)
					}
					units.Store(rng.Int64N(9))
					r := ration.Request{Op: ration.Op(1 + rng.IntN(5)), Key: fmt.Sprint(rng.IntN(100)), N: rng.Int64N(3)}
					if _, err := r.Do(ctx, changing); err != nil {
						t.Error(err)
					}
				}
			})
		}
		callers.Wait()
		require.EqualValues(t, 32*30, control.Load())
		d, err := tl.l.Peek(ctx, "control")
		require.NoError(t, err)
		require.EqualValues(t, 1000-32*30, d.Remaining)
	})
}

func TestB118OneStepCheckAndCharge(t *testing.T) {
	s := redistest.Start(t)
	clients := []*redis.Client{s.Client(t), s.Client(t)}
	for strategy, newLimiter := range strategies {
		t.Run(strategy, func(t *testing.T) {
			var limiters []ration.Limiter
			for _, rdb := range clients {
				store, err := ration.Open(rdb, ration.WithTimeout(30*time.Second))
				require.NoError(t, err)
				l, err := newLimiter(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(50, 1000*time.Hour)}})
				require.NoError(t, err)
				limiters = append(limiters, l)
			}
			for i := range 100 {
				subject := fmt.Sprint(i)
				var admitted, failed atomic.Int64
				var callers sync.WaitGroup
				start := make(chan struct{})
				for j := range 1000 {
					callers.Go(func() {
						<-start
						d, err := limiters[j%2].Allow(ctx, subject)
						if err != nil {
							failed.Add(1)
						}
						admitted.Add(d.Granted)
					})
				}
				close(start)
				callers.Wait()
				require.Zero(t, failed.Load())
				require.EqualValues(t, 50, admitted.Load())
			}
		})
	}
}

func TestB120ServerClockSetBack(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(5))
		tl.at(1000)
		tl.letters("AAAAA")
		for s := 990.0; s < 1060; s += 5 {
			tl.at(s)
			d := must(tl.l.Allow(ctx, "u"))
			// At 1032 four fifths of the counter's minute before are left: 4 of the 5 units.
			if strategy == "fixed" && s >= 1020 || strategy == "token" && s >= 1012 || strategy == "counter" && s >= 1032 {
				require.True(t, d.Allowed)
				return
			}
			require.False(t, d.Allowed)
			longest := 70 * time.Second
			if strategy == "buckets" {
				longest += 3 * time.Second
			}
			require.LessOrEqual(t, d.RetryAfter, longest)
			require.Zero(t, d.Remaining)
		}
		tl.at(1060)
		if strategy == "buckets" {
			tl.at(1063)
		}
		tl.letters("A")
	})
	// Two days back: what was used stays used until the clock is there again;
	// Reset ends it for a subject.
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(5))
		tl.letters("AAAAA")
		tl.at(-2 * 24 * 3600)
		d := tl.letters("D")
		require.Greater(t, d.RetryAfter, 48*time.Hour)
		require.NoError(t, tl.l.Reset(ctx, "u"))
		tl.letters("AAAAAD")
		tl.at(0)
	})
}

// The instances' own clocks decide nothing: what they send has no time in it.
func TestB122ClientClocksDecideNothing(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		hook := &argHook{}
		b.rdb.AddHook(hook)
		tl := newTimeline(t, b, strategy, ration.Per(10, 10*time.Second))
		other, err := tl.make(b.store(t, ration.WithPrefix(tl.prefix)), ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(10, 10*time.Second)}})
		require.NoError(t, err)
		admitted := 0
		var last [2]ration.Decision
		for i := range 40 {
			tl.at(float64(i) / 40)
			for j, l := range []ration.Limiter{tl.l, other} {
				last[j] = must(l.Allow(ctx, "u"))
				admitted += int(last[j].Granted)
			}
		}
		require.Equal(t, 10, admitted)
		require.Equal(t, last[0], last[1])
		for _, clock := range hook.clocks {
			require.EqualValues(t, 0, clock)
		}
		require.NotEmpty(t, hook.clocks)
	})
}

// argHook records the clock that each script call brings along.
type argHook struct {
	keyHook
	clocks []any
}

func (h *argHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			h.clocks = append(h.clocks, cmd.Args()[3+cmd.Args()[2].(int)])
		}
		return next(ctx, cmd)
	}
}

func TestB125LimitZero(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(0))
		d := tl.letters("DD")
		require.Equal(t, ration.Never, d.RetryAfter)
		require.Zero(t, d.Remaining)
		require.Zero(t, d.ResetAfter)
		require.Empty(t, tl.keys())
	})
}

func TestB126WindowZero(t *testing.T) {
	b := backends["miniredis"](t)
	for _, newLimiter := range strategies {
		for _, window := range []time.Duration{0, -time.Second, time.Microsecond} {
			l, err := newLimiter(b.store(t), ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(5, window)}})
			require.ErrorIs(t, err, ration.ErrInvalidPolicy)
			require.Nil(t, l)
		}
	}
	require.Empty(t, b.keys(t))
}

func TestB127RetryAfterOfAllowedIsZero(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerSecond(1), ration.PerMinute(3))
		for s := range 3 {
			step := 1.1
			if strategy == "counter" {
				step = 2.2
			}
			tl.at(float64(s) * step)
			d := tl.letters("A")
			require.Zero(t, d.RetryAfter)
			require.GreaterOrEqual(t, d.ResetAfter, time.Duration(0))
			for _, l := range d.Limits {
				require.Zero(t, l.RetryAfter)
				require.GreaterOrEqual(t, l.ResetAfter, time.Duration(0))
			}
		}
	})
}
