package ration_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// gaps are the times between.
func gaps(times []time.Time) (gaps []time.Duration) {
	for i := 1; i < len(times); i++ {
		gaps = append(gaps, times[i].Sub(times[i-1]))
	}
	return gaps
}

func ms(numbers ...int64) (times []time.Duration) {
	for _, n := range numbers {
		times = append(times, time.Duration(n)*time.Millisecond)
	}
	return times
}

// askFor asks every millisecond for some time.
func askFor(d time.Duration, l ration.Limiter) {
	for began := time.Now(); time.Since(began) < d; time.Sleep(time.Millisecond) {
		_, _ = l.Allow(ctx, "u")
	}
}

// The breaker opens after so many failed runs in a row; then one call goes to Redis a cool-down, which
// doubles up to a bound. That holds to the millisecond, in which calls come.
func TestBreakerSchedule(t *testing.T) {
	for name, c := range map[string]struct {
		breaker ration.Breaker
		fault   fault
		want    []time.Duration // between the commands
	}{
		"default, refused": {ration.Breaker{}, refused, ms(1, 1, 100, 200, 400, 800, 1600, 2000, 2000, 2000)},
		// A silent server costs each call the budget of 100 ms, and the next millisecond comes a millisecond later.
		"default, silence":      {ration.Breaker{}, silence, ms(101, 101, 200, 300, 500, 900, 1700, 2100, 2100)},
		"one failure":           {ration.Breaker{Failures: 1}, refused, ms(100, 200, 400)},
		"five failures":         {ration.Breaker{Failures: 5}, refused, ms(1, 1, 1, 1, 100, 200)},
		"own times":             {ration.Breaker{Cooldown: 30 * time.Millisecond, MaxCooldown: 70 * time.Millisecond}, refused, ms(1, 1, 30, 60, 70, 70)},
		"a long cool-down":      {ration.Breaker{Cooldown: 3 * time.Second}, refused, ms(1, 1, 3000, 3000)},
		"a longest cool-down":   {ration.Breaker{MaxCooldown: 150 * time.Millisecond}, refused, ms(1, 1, 100, 150, 150)},
		"a shortest cool-down":  {ration.Breaker{Cooldown: 1, MaxCooldown: 1}, refused, ms(1, 1, 1, 1, 1, 1)},
		"an endless cool-down":  {ration.Breaker{Cooldown: math.MaxInt64}, refused, ms(1, 1)},
		"endless in the end":    {ration.Breaker{Cooldown: time.Second, MaxCooldown: math.MaxInt64}, refused, ms(1, 1, 1000, 2000, 4000)},
		"never, by settings":    {ration.Breaker{Failures: math.MaxInt32}, refused, ms(slices.Repeat([]int64{1}, 50)...)},
		"never, misconfigured":  {ration.Breaker{}, outages["forbidden"].fault, ms(slices.Repeat([]int64{1}, 1000)...)},
		"a panic in the client": {ration.Breaker{}, outages["panic"].fault, ms(1, 1, 100, 200)},
		"odd replies":           {ration.Breaker{}, outages["too short"].fault, ms(1, 1, 100, 200)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, rule := range rules {
				inBubble(t, func(w *world) {
					l := w.limiter(w.store(ration.WithBreaker(c.breaker), ration.WithOnFailure(rule)), ration.PerHour(5))
					w.spoil(c.fault)
					total := time.Millisecond
					for _, gap := range c.want {
						total += gap
					}
					askFor(total, l)
					require.Equal(w, c.want, gaps(w.take()))
				})
			}
		})
	}
}

// Each success ends a row of failures.
func TestBreakerCountsFailuresInARow(t *testing.T) {
	inBubble(t, func(w *world) {
		l := w.limiter(w.store(), ration.PerHour(1000))
		for range 10 {
			w.spoil(refused)
			for range 2 {
				require.ErrorIs(w, allow(ctx, l), ration.ErrUnavailable)
			}
			w.spoil(nil)
			require.NoError(w, allow(ctx, l))
		}
		require.Len(w, w.take(), 30)
		for range 2 {
			w.spoil(refused)
			require.Error(w, allow(ctx, l))
			w.spoil(outages["forbidden"].fault) // Redis is there
			require.Error(w, allow(ctx, l))
		}
		w.spoil(nil)
		require.NoError(w, allow(ctx, l))
	})
}

// Of all that come at once after a cool-down one goes to Redis, whatever becomes of it, and the others are
// answered at once; with a success all go again.
func TestBreakerLetsOneThrough(t *testing.T) {
	for name, broken := range map[string]fault{"refused": refused, "silence": silence} {
		for _, kind := range []ration.Option{nil, ration.WithoutBatching(), ration.WithBatch(ration.Batch{Runs: 1, Items: 1})} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(w *world) {
					l := w.limiter(w.store(ration.WithOnFailure(ration.FailClosed), kind), ration.PerHour(1000))
					w.spoil(broken)
					askFor(400*time.Millisecond, l)
					w.take()
					for _, cooldown := range ms(800, 1600, 2000) {
						time.Sleep(cooldown + 200*time.Millisecond)
						crowd(w, l, 200, 1)
						require.Len(w, w.take(), 1)
						time.Sleep(200 * time.Millisecond) // the probe's failure
					}
					w.spoil(nil)
					time.Sleep(2200 * time.Millisecond)
					crowd(w, l, 200, 200)
					for range 20 {
						require.False(w, must(l.Allow(ctx, "u")).Degraded)
					}
				})
			})
		}
	}
}

// crowd has callers call at once; but for probes they are to be answered in no time.
func crowd(w *world, l ration.Limiter, callers, probes int) {
	w.Helper()
	var waited atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for i := range callers {
		all.Go(func() {
			d, err := l.Allow(ctx, fmt.Sprint(i))
			if err != nil {
				w.Error(err)
			}
			if time.Since(began) > 0 || !d.Degraded {
				waited.Add(1)
			}
		})
	}
	all.Wait()
	require.LessOrEqual(w, waited.Load(), int64(probes))
}

// The RetryAfter of a refusal by FailClosed is when Redis is asked again: to the microsecond while the
// breaker is open, at once before.
func TestFailClosedSaysWhenRedisIsAskedAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		l := w.limiter(w.store(ration.WithOnFailure(ration.FailClosed)), ration.PerHour(5))
		w.spoil(refused)
		for _, want := range ms(1, 1, 100, 200, 400, 800, 1600, 2000, 2000) {
			d := must(l.Allow(ctx, "u"))
			require.Equal(w, want, d.RetryAfter)
			time.Sleep(want / 2)
			if want > time.Millisecond {
				require.Equal(w, want-want/2, must(l.Allow(ctx, "u")).RetryAfter)
			}
			time.Sleep(d.RetryAfter - want/2)
		}
		require.Len(w, w.take(), 9)
	})
}

// With a success the breaker starts anew: failures are counted from none, the cool-down from its least.
func TestBreakerStartsAnew(t *testing.T) {
	for name, mended := range map[string]fault{"an answer": nil, "a refusal that is a matter of settings": outages["forbidden"].fault} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				l := w.limiter(w.store(), ration.PerHour(1e6))
				for range 3 {
					w.spoil(refused)
					askFor(900*time.Millisecond, l)
					require.Equal(w, ms(1, 1, 100, 200, 400), gaps(w.take()))
					w.spoil(mended)
					askFor(900*time.Millisecond, l) // of which 602 the last cool-down goes on
					between := gaps(w.take())
					require.Len(w, between, 297)
					require.Equal(w, time.Millisecond, slices.Max(between))
				}
			})
		})
	}
}

// Callers that leave say nothing about Redis: neither those of a run that's answered, nor those whose
// runs were withdrawn. The probe's caller may leave too.
func TestBreakerAndCallersThatLeave(t *testing.T) {
	inBubble(t, func(w *world) {
		l := w.limiter(w.store(ration.WithOnFailure(ration.FailClosed)), ration.PerHour(1e6))
		slow := func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			time.Sleep(20 * time.Millisecond)
			cmd.(interface{ SetVal(any) }).SetVal([]any{int64(1), int64(1), int64(0), int64(1)})
			return nil
		}
		w.spoil(slow)
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				leaver, leave := context.WithTimeout(ctx, 5*time.Millisecond)
				if i%2 == 0 {
					leaver, leave = context.WithCancel(ctx)
					time.AfterFunc(15*time.Millisecond, leave)
				}
				defer leave()
				if d, err := l.Allow(leaver, fmt.Sprint(i)); !errors.Is(err, leaver.Err()) || d.Degraded {
					w.Errorf("%+v, %v", d, err)
				}
			})
		}
		all.Wait()
		require.False(w, must(l.Allow(ctx, "u")).Degraded)

		w.spoil(refused)
		askFor(50*time.Millisecond, l)
		w.spoil(slow)
		time.Sleep(100 * time.Millisecond)
		leaver, leave := context.WithTimeout(ctx, time.Millisecond)
		defer leave()
		_, err := l.Allow(leaver, "u")
		require.Equal(w, context.DeadlineExceeded, err)
		require.True(w, must(l.Allow(ctx, "u")).Degraded)
		time.Sleep(20 * time.Millisecond)
		require.False(w, must(l.Allow(ctx, "u")).Degraded)
	})
}

// What comes back after its budget tells the breaker nothing more, good or bad: it was counted once.
func TestBreakerHearsOfARunOnce(t *testing.T) {
	for name, late := range map[string]error{"an answer": nil, "a failure": errors.New("reset by test")} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				l := w.limiter(w.store(ration.WithOnFailure(ration.FailOpen), ration.WithBreaker(ration.Breaker{Failures: 2})), ration.PerHour(1e6))
				release := make(chan struct{})
				w.spoil(func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
					<-release // whatever the context says
					cmd.(interface{ SetVal(any) }).SetVal([]any{int64(1), int64(1), int64(0), int64(1)})
					return late
				})
				began := time.Now()
				require.True(w, must(l.Allow(ctx, "u")).Degraded)
				require.Equal(w, 100*time.Millisecond, time.Since(began))
				if late == nil {
					require.True(w, must(l.Allow(ctx, "u")).Degraded)
				}
				close(release)
				synctest.Wait()
				w.spoil(nil)
				d := must(l.Allow(ctx, "u"))
				require.Equal(w, late == nil, d.Degraded, "open after two failures, not after one that was reported twice")
			})
		})
	}
}

// What waits when the breaker opens isn't sent any more.
func TestBreakerKeepsBackWhatWaits(t *testing.T) {
	inBubble(t, func(w *world) {
		store := w.store(ration.WithOnFailure(ration.FailClosed), ration.WithBatch(ration.Batch{Runs: 1, Items: 8}), ration.WithBreaker(ration.Breaker{Failures: 1}))
		l := w.limiter(store, ration.PerHour(5))
		w.spoil(silence)
		began := time.Now()
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				d := must(l.Allow(ctx, fmt.Sprint(i)))
				require.Equal(w, ration.ClassTimeout, ration.ClassOf(d.Cause))
				require.Equal(w, 100*time.Millisecond, time.Since(began))
			})
		}
		all.Wait()
		require.Len(w, w.take(), 1)
	})
}

// A run of which a part was answered is no failed one: Redis is there.
func TestBreakerAndRunsThatFailInPart(t *testing.T) {
	inBubble(t, func(w *world) {
		rec := &recorder{}
		store := w.store(ration.WithOnFailure(ration.FailOpen), ration.WithBatch(ration.Batch{Runs: 1}), ration.WithObserver(rec), ration.WithBreaker(ration.Breaker{Failures: 1}))
		well, ill := w.limiter(store, ration.PerHour(5)), w.of("log", store, ration.Policy{Name: "ill", Limits: []ration.Limit{ration.PerHour(5)}})
		w.spoil(func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			time.Sleep(time.Millisecond)
			if strings.Contains(cmd.Args()[3].(string), "ill") {
				return redisError("ERR told to")
			}
			return replies([]any{int64(0), int64(1), int64(0), int64(1)})(ctx, cmd, nil)
		})
		for range 10 {
			var all sync.WaitGroup
			all.Go(func() { require.False(w, must(well.Peek(ctx, "first")).Degraded) })
			synctest.Wait()
			all.Go(func() { require.True(w, must(ill.Peek(ctx, "u")).Degraded) })
			synctest.Wait()
			all.Go(func() { require.False(w, must(well.Peek(ctx, "u")).Degraded) })
			all.Wait()
		}
		synctest.Wait()
		got := rec.take(w.T)
		require.Len(w, got.failures, 10)
		require.Equal(w, 2, got.failures[0].Calls)
		require.Empty(w, got.changes)
		must(ill.Peek(ctx, "u")) // a run of its own is
		synctest.Wait()
		require.Len(w, rec.take(w.T).changes, 1)
	})
}

// From Close on calls hear ErrClosed, whatever the breaker says and the run under way makes it say.
func TestBreakerOfAClosedStore(t *testing.T) {
	inBubble(t, func(w *world) {
		store := w.store(ration.WithOnFailure(ration.FailOpen))
		l := w.limiter(store, ration.PerHour(5))
		w.spoil(refused)
		askFor(100*time.Millisecond, l)
		w.spoil(silence)
		time.Sleep(100 * time.Millisecond)
		var all sync.WaitGroup
		all.Go(func() { must(l.Allow(ctx, "u")) }) // the probe
		synctest.Wait()
		all.Go(func() { require.NoError(w, store.Close()) })
		synctest.Wait()
		require.ErrorIs(w, allow(ctx, l), ration.ErrClosed)
		all.Wait()
		require.ErrorIs(w, allow(ctx, l), ration.ErrClosed)
	})
}
