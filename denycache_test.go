package ration_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// eachCached runs a test for every strategy, in a bubble, with a policy of one limit and of several: 10
// units a minute decide.
func eachCached(t *testing.T, run func(w *world, of func(*ration.Store) ration.Limiter)) {
	for strategy := range strategies {
		for kind, limits := range map[string][]ration.Limit{
			"one limit":      {ration.PerMinute(10)},
			"several limits": {ration.PerHour(100), ration.PerMinute(10), ration.PerSecond(100)},
		} {
			t.Run(strategy+" "+kind, func(t *testing.T) {
				inBubble(t, func(w *world) {
					run(w, func(s *ration.Store) ration.Limiter {
						return w.of(strategy, s, ration.Policy{Name: "p", Limits: limits})
					})
				})
			})
		}
	}
}

// cached demands that a call is refused without a command.
func (w *world) cached(d ration.Decision, err error) ration.Decision {
	w.Helper()
	require.NoError(w, err)
	require.Empty(w, w.take(), "a command for a refusal that was remembered")
	require.Equal(w, ration.DenyCache, d.Source)
	require.False(w, d.Allowed || d.Degraded || d.Granted > 0)
	require.Positive(w, d.RetryAfter)
	return d
}

// asked demands that a call was answered by Redis.
func (w *world) asked(d ration.Decision, err error) ration.Decision {
	w.Helper()
	require.NoError(w, err)
	require.NotEmpty(w, w.take(), "no command")
	require.Equal(w, ration.Redis, d.Source)
	return d
}

// A remembered refusal is what Redis would say, to the microsecond, and after DenyCacheTime Redis is asked again.
func TestDenyCacheSaysWhatRedisWould(t *testing.T) {
	eachCached(t, func(w *world, of func(*ration.Store) ration.Limiter) {
		l, plain := of(w.store(ration.WithDenyCache(10))), of(w.store(ration.WithPrefix("plain")))
		for _, l := range []ration.Limiter{l, plain} {
			must(l.AllowN(ctx, "u", 10))
		}
		time.Sleep(2345678 * time.Microsecond)
		for range 2 {
			w.take()
			require.False(w, w.asked(l.Allow(ctx, "u")).Allowed)
			for _, at := range []time.Duration{0, time.Microsecond, 500 * time.Millisecond, 499999*time.Microsecond - 1000} {
				time.Sleep(at)
				d := w.cached(l.Allow(ctx, "u"))
				upTo := w.cached(l.AllowUpTo(ctx, "u", 3))
				require.Equal(w, d, upTo)
				want := must(plain.Allow(ctx, "u"))
				d.Source = ration.Redis
				require.Equal(w, want, d)
				w.take()
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// It ends when Redis said, were it before DenyCacheTime: at the end of the window, or of the oldest
// entry in the log, and not a window from now.
func TestDenyCacheIsNeverLongerThanRedisSaid(t *testing.T) {
	for strategy, span := range map[string]time.Duration{"fixed": 0, "log": 0, "buckets": 20 * time.Millisecond} {
		for _, latency := range []time.Duration{0, 10 * time.Millisecond} {
			inBubble(t, func(w *world) {
				l := w.of(strategy, w.store(ration.WithDenyCache(10)), ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(1, 400*time.Millisecond)}})
				w.spoil(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
					time.Sleep(latency)
					err := next(ctx, cmd)
					time.Sleep(latency)
					return err
				})
				began := time.Now()
				require.True(w, w.asked(l.Allow(ctx, "u")).Allowed)
				time.Sleep(317 * time.Millisecond)
				d := w.asked(l.Allow(ctx, "u"))
				refusedAt := time.Now().Add(-2 * latency)
				require.False(w, d.Allowed)
				end := refusedAt.Add(d.RetryAfter) // no later than Redis meant
				for time.Now().Before(end) {
					w.cached(l.Allow(ctx, "u"))
					time.Sleep(time.Millisecond)
				}
				d = w.asked(l.Allow(ctx, "u"))
				require.True(w, d.Allowed)
				if latency == 0 {
					require.Equal(w, 400*time.Millisecond+span, time.Since(began))
				}
			})
		}
	}
}

// A smaller cost than the one refused goes to Redis, and may pass; one that is larger than a limit's
// units will never pass, and isn't stored.
func TestDenyCacheKnowsCosts(t *testing.T) {
	eachCached(t, func(w *world, of func(*ration.Store) ration.Limiter) {
		l := of(w.store(ration.WithDenyCache(10)))
		must(l.AllowN(ctx, "u", 7))
		for range 2 {
			require.Equal(w, ration.Never, w.asked(l.AllowN(ctx, "u", 11)).RetryAfter)
		}
		require.False(w, w.asked(l.AllowN(ctx, "u", 5)).Allowed)
		require.EqualValues(w, 3, w.cached(l.AllowN(ctx, "u", 5)).Remaining)
		w.cached(l.AllowN(ctx, "u", 10))
		require.Equal(w, ration.Never, w.cached(l.AllowN(ctx, "u", 11)).RetryAfter)
		require.False(w, w.asked(l.AllowN(ctx, "u", 4)).Allowed)
		w.cached(l.AllowN(ctx, "u", 4)) // now that is remembered
		w.cached(l.AllowN(ctx, "u", 5))
		require.True(w, w.asked(l.AllowN(ctx, "u", 1)).Allowed)
		w.cached(l.AllowN(ctx, "u", 4))
		require.EqualValues(w, 2, w.asked(l.AllowUpTo(ctx, "u", 10)).Granted)
		require.False(w, w.asked(l.AllowUpTo(ctx, "u", 10)).Allowed)
		w.cached(l.AllowUpTo(ctx, "u", 1))
		w.cached(l.AllowUpTo(ctx, "u", 1<<60))
		w.cached(l.Allow(ctx, "u"))
		never := w.cached(l.AllowN(ctx, "u", 1<<60))
		require.Equal(w, ration.Never, never.RetryAfter)
		requireSettled(w, never)
		require.False(w, w.asked(l.Peek(ctx, "u")).Allowed)
		require.False(w, w.asked(l.AllowN(ctx, "u", 0)).Allowed)
		require.True(w, w.asked(l.Allow(ctx, "v")).Allowed)
	})
}

// requireSettled demands that a refusal's limit is the one that refuses longest.
func requireSettled(t require.TestingT, d ration.Decision) {
	longest := d.RetryAfter
	for _, s := range d.Limits {
		require.LessOrEqual(t, s.RetryAfter, longest)
		if s.Limit == d.Limit {
			require.Equal(t, longest, s.RetryAfter)
		}
	}
}

// What may make a refusal wrong ends it at once in this process, and in others within DenyCacheTime.
func TestDenyCacheEnds(t *testing.T) {
	eachCached(t, func(w *world, of func(*ration.Store) ration.Limiter) {
		store := w.store(ration.WithDenyCache(10))
		l, twin, other := of(store), of(store), of(w.store(ration.WithDenyCache(10)))
		for name, end := range map[string]func(l ration.Limiter){
			"reset":       func(l ration.Limiter) { require.NoError(w, l.Reset(ctx, "u")) },
			"refund":      func(l ration.Limiter) { require.EqualValues(w, 1, must(l.Refund(ctx, "u", 1)).Granted) },
			"refund much": func(l ration.Limiter) { require.EqualValues(w, 10, must(l.Refund(ctx, "u", 1<<60)).Granted) },
		} {
			for _, by := range []ration.Limiter{l, twin} {
				must(l.AllowUpTo(ctx, "u", 10))
				for _, l := range []ration.Limiter{l, other} {
					require.False(w, must(l.Allow(ctx, "u")).Allowed)
					w.take()
					w.cached(l.Allow(ctx, "u"))
				}
				w.cached(twin.Allow(ctx, "u"))
				end(by)
				w.take()
				require.True(w, w.asked(l.Allow(ctx, "u")).Allowed, name)
				time.Sleep(ration.DenyCacheTime - 1)
				w.cached(other.Allow(ctx, "u"))
				time.Sleep(time.Nanosecond)
				must(l.Refund(ctx, "u", 1))
				w.take()
				require.True(w, w.asked(other.Allow(ctx, "u")).Allowed, name)
			}
		}
	})
}

// Changed numbers act at once, whoever brings them: LimitsFor, or another limiter of the policy.
func TestDenyCacheAndChangedLimits(t *testing.T) {
	alike := time.Minute + time.Microsecond // 20 slots of it are as wide as those of a minute and 2 µs
	for strategy := range strategies {
		inBubble(t, func(w *world) {
			store := w.store(ration.WithDenyCache(10))
			var limits []ration.Limit
			l := w.of(strategy, store, ration.Policy{Name: "p", LimitsFor: func(context.Context, string) ([]ration.Limit, error) { return limits, nil }})
			for _, c := range []struct {
				limits []ration.Limit
				want   string // answers: a allowed, r refused by Redis, c from the cache
			}{
				{[]ration.Limit{ration.PerMinute(1)}, "arcc"},
				{[]ration.Limit{ration.PerMinute(3)}, "aarcc"},
				{[]ration.Limit{ration.PerMinute(1)}, "rc"},
				{[]ration.Limit{ration.PerHour(1)}, "arc"},
				{[]ration.Limit{ration.PerHour(2), ration.PerMinute(4)}, "arc"},
				{[]ration.Limit{ration.PerMinute(4), ration.PerHour(2)}, "rc"},
				{[]ration.Limit{ration.Per(1, alike)}, "arc"},
				{[]ration.Limit{ration.Per(1, alike+time.Microsecond)}, "arc"},
			} {
				limits = c.limits
				fixed := w.of(strategy, store, ration.Policy{Name: "p", Limits: c.limits})
				for i, answer := range c.want {
					asked := l
					if i%2 == 1 {
						asked = fixed
					}
					d := must(asked.Allow(ctx, "u"))
					require.Equal(w, map[rune]ration.Source{'a': ration.Redis, 'r': ration.Redis, 'c': ration.DenyCache}[answer], d.Source, "%s: %v", strategy, c)
					require.Equal(w, answer == 'a', d.Allowed, "%s: %v", strategy, c)
				}
			}
		})
	}
}

// A refusal takes the place of one that no longer holds, though that was of a smaller cost.
func TestDenyCacheReplacesWhatNoLongerHolds(t *testing.T) {
	inBubble(t, func(w *world) {
		units := int64(10)
		l := w.of("log", w.store(ration.WithDenyCache(10)), ration.Policy{Name: "p", LimitsFor: func(context.Context, string) ([]ration.Limit, error) {
			return []ration.Limit{ration.PerMinute(units)}, nil
		}})
		must(l.AllowN(ctx, "u", 10))
		require.False(w, must(l.Allow(ctx, "u")).Allowed)
		units = 12
		require.False(w, must(l.AllowN(ctx, "u", 3)).Allowed)
		w.take()
		w.cached(l.AllowN(ctx, "u", 3))
	})
}

// Strategies that share a policy's name remember each for itself.
func TestDenyCacheIsAStrategys(t *testing.T) {
	inBubble(t, func(w *world) {
		store := w.store(ration.WithDenyCache(1))
		var limiters []ration.Limiter
		for strategy := range strategies {
			limiters = append(limiters, w.of(strategy, store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(1)}}))
		}
		for _, l := range limiters {
			require.True(w, w.asked(l.Allow(ctx, "u")).Allowed)
			require.False(w, w.asked(l.Allow(ctx, "u")).Allowed)
		}
		for _, l := range limiters {
			w.cached(l.Allow(ctx, "u"))
		}
	})
}

// A refusal that was on its way while a Reset or a Refund ran isn't remembered, whichever
// the server heard first.
func TestDenyCacheAndRefusalsUnderWay(t *testing.T) {
	for name, end := range map[string]func(l ration.Limiter){
		"reset":  func(l ration.Limiter) { _ = l.Reset(ctx, "u") },
		"refund": func(l ration.Limiter) { must(l.Refund(ctx, "u", 1)) },
	} {
		for _, held := range []string{"the refusal", "the other"} {
			t.Run(name+", held is "+held, func(t *testing.T) {
				inBubble(t, func(w *world) {
					l := w.limiter(w.store(ration.WithDenyCache(10), ration.WithTimeout(time.Minute)), ration.PerHour(1))
					must(l.Allow(ctx, "u"))
					first, second := func() { must(l.Allow(ctx, "u")) }, func() { end(l) }
					if held == "the other" {
						first, second = second, first
					}
					release := make(chan struct{})
					var once sync.Once
					w.spoil(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) (err error) {
						mine := false
						once.Do(func() { mine = true })
						if mine && held == "the other" {
							<-release // it reaches the server after the refusal
							return next(ctx, cmd)
						}
						err = next(ctx, cmd)
						if mine {
							<-release
						}
						return err
					})
					var all sync.WaitGroup
					all.Go(first)
					synctest.Wait()
					second()
					close(release)
					all.Wait()
					w.take()
					require.True(w, w.asked(l.Allow(ctx, "u")).Allowed)
				})
			})
		}
	}
}

// While Redis fails a remembered refusal stays what it is, and what was decided without Redis isn't remembered.
func TestDenyCacheAndFailures(t *testing.T) {
	for _, rule := range rules {
		inBubble(t, func(w *world) {
			l := w.limiter(w.store(ration.WithDenyCache(10), ration.WithOnFailure(rule), noBreaker), ration.PerHour(1))
			must(l.Allow(ctx, "u"))
			must(l.Allow(ctx, "u"))
			w.take()
			w.spoil(refused)
			w.cached(l.Allow(ctx, "u"))
			for range 3 {
				_, _ = l.Allow(ctx, "v")
			}
			require.Len(w, w.take(), 3)
			w.spoil(nil)
			require.True(w, w.asked(l.Allow(ctx, "v")).Allowed)
			time.Sleep(ration.DenyCacheTime)
			w.spoil(refused)
			d, _ := l.Allow(ctx, "u")
			require.NotEqual(w, ration.DenyCache, d.Source)
		})
	}
}

func TestDenyCacheOptions(t *testing.T) {
	w := offline(t, refused)
	_, err := ration.Open(w.rdb, ration.WithDenyCache(-1))
	require.ErrorIs(t, err, ration.ErrInvalidOption)
	inBubble(t, func(w *world) {
		l := w.limiter(w.store(ration.WithDenyCache(0)), ration.PerHour(1))
		for range 3 {
			w.asked(l.Allow(ctx, "u"))
		}
	})
}
