package ration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

// rateMap is the usual limiter per subject: x/time/rate in a sync.Map.
type rateMap struct {
	subjects sync.Map
	limit    rate.Limit
	burst    int
}

func (m *rateMap) allow(key string) bool {
	v, ok := m.subjects.Load(key)
	if !ok {
		v, _ = m.subjects.LoadOrStore(key, rate.NewLimiter(m.limit, m.burst))
	}
	return v.(*rate.Limiter).AllowN(time.Now(), 1)
}

func benchSubjects(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "user:" + strconv.Itoa(i)
	}
	return keys
}

// inParallel calls allow for the subjects in turn, each goroutine from a place of its own.
func inParallel(b *testing.B, keys []string, allow func(key string) bool) {
	var start atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		i := int(start.Add(1)) * 7919 % len(keys)
		for pb.Next() {
			allow(keys[i])
			if i++; i == len(keys) {
				i = 0
			}
		}
	})
}

func ringAllow(tb testing.TB, limit Limit) func(key string) bool {
	l, err := NewLocal(Policy{Name: "bench", Limits: []Limit{limit}})
	if err != nil {
		tb.Fatal(err)
	}
	ctx := context.Background()
	return func(key string) bool {
		d, err := l.AllowN(ctx, key, 1)
		return err == nil && d.Allowed
	}
}

func BenchmarkLocal(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		keys := benchSubjects(n)
		for _, load := range []struct {
			name  string
			units int64
		}{{"admitted", 1 << 40}, {"refused", 10}} {
			name := load.name + "/subjects=" + strconv.Itoa(n)
			b.Run("ring/"+name, func(b *testing.B) {
				b.ReportAllocs()
				inParallel(b, keys, ringAllow(b, PerMinute(load.units)))
			})
			b.Run("rate/"+name, func(b *testing.B) {
				b.ReportAllocs()
				m := rateMap{limit: rate.Limit(float64(load.units) / 60), burst: int(load.units)}
				inParallel(b, keys, m.allow)
			})
		}
	}
}

// BenchmarkRingAgainstRate reports the ring's time per call by that of
// x/time/rate in a sync.Map: the medians of rounds that take turns.
func BenchmarkRingAgainstRate(b *testing.B) {
	const rounds = 41
	keys := benchSubjects(10_000)
	for _, load := range []struct {
		name  string
		units int64
	}{{"admitted", 1 << 40}, {"refused", 10}} {
		b.Run(load.name, func(b *testing.B) {
			ring := ringAllow(b, PerMinute(load.units))
			m := &rateMap{limit: rate.Limit(float64(load.units) / 60), burst: int(load.units)}
			var ringTimes, rateTimes []float64
			for range b.N {
				ringTimes, rateTimes = ringTimes[:0], rateTimes[:0]
				for range rounds {
					ringTimes = append(ringTimes, perCall(keys, ring))
					rateTimes = append(rateTimes, perCall(keys, m.allow))
				}
			}
			mine, theirs := median(ringTimes), median(rateTimes)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(mine, "ring-ns")
			b.ReportMetric(theirs, "rate-ns")
			b.ReportMetric(mine/theirs, "ratio")
		})
	}
}

// perCall is the time per call in ns of 100,000 calls in parallel.
func perCall(keys []string, allow func(key string) bool) float64 {
	const workers, calls = 2, 50_000
	var wg sync.WaitGroup
	start := time.Now()
	for w := range workers {
		wg.Go(func() {
			i := w * len(keys) / workers
			for range calls {
				allow(keys[i])
				if i++; i == len(keys) {
					i = 0
				}
			}
		})
	}
	wg.Wait()
	return float64(time.Since(start)) / (workers * calls)
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

func TestRingAllocatesNothing(t *testing.T) {
	ctx, own := t.Context(), []Limit{PerMinute(1 << 40)}
	for name, p := range map[string]Policy{
		"admitted":  oneLimit(0, PerMinute(1<<40)),
		"refused":   oneLimit(0, PerMinute(1)),
		"LimitsFor": {LimitsFor: func(context.Context, string) ([]Limit, error) { return own, nil }},
	} {
		rt := newRingTest(t, p)
		rt.must(rt.Allow(ctx, "u"))
		sec := 0.0
		for op, call := range map[string]func() error{
			"AllowN":    func() error { _, err := rt.AllowN(ctx, "u", 1); return err },
			"AllowUpTo": func() error { _, err := rt.AllowUpTo(ctx, "u", 2); return err },
			"Peek":      func() error { _, err := rt.Peek(ctx, "u"); return err },
			"stranger":  func() error { _, err := rt.Peek(ctx, "v"); return err },
		} {
			n := testing.AllocsPerRun(1000, func() {
				sec += 0.01
				rt.to(sec)
				require.NoError(t, call())
			})
			require.Zero(t, n, "%s, %s", name, op)
		}
	}
}

func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestB113RingTableIsBounded(t *testing.T) {
	const bound = 10_000
	rt := newRingTest(t, oneLimit(0, PerMinute(1)), WithMaxSubjects(bound))
	before := heapBytes()
	rt.ask(0, "first", "AD")
	admitted := 1
	for i := range 1_000_000 {
		if d, _ := rt.Allow(t.Context(), "name "+strconv.Itoa(i)); d.Allowed {
			admitted++
		}
	}
	require.Equal(t, LocalStats{Subjects: admitted, Overflowed: uint64(1_000_001 - admitted)}, rt.stats())
	require.LessOrEqual(t, admitted, bound)
	require.Greater(t, admitted, bound*8/10)
	grown := heapBytes() - before
	t.Logf("%d bytes a subject", grown/int64(admitted))
	require.Less(t, grown, int64(500*admitted))
	rt.ask(59, "first", "D") // the flood didn't free it
	rt.ask(70, "later", "A")
	require.Equal(t, 1, rt.stats().Subjects)
	require.Less(t, heapBytes()-before, int64(20*admitted))
	for i := range rt.Limiter.(*localLimiter).table.shards {
		require.LessOrEqual(t, len(*rt.Limiter.(*localLimiter).table.shards[i].index.Load()), minIndex)
	}
}

func TestRingWithoutRoom(t *testing.T) {
	rt := newRingTest(t, oneLimit(20, PerMinute(2)), nil, WithMaxSubjects(2))
	rt.ask(0, "a", "A")
	rt.ask(9, "b", "AAD")
	rt.to(12)
	// a's slot is [0s, 3s), counted until 63s, and kept a slot longer: the clock may be set back by as much.
	want := Decision{Limit: PerMinute(2), RetryAfter: 54 * time.Second, ResetAfter: 54 * time.Second, Source: Ring}
	require.Equal(t, want, rt.must(rt.Peek(t.Context(), "c")))
	require.Equal(t, want, rt.must(rt.Refund(t.Context(), "c", 1)))
	require.Equal(t, want, rt.must(rt.AllowUpTo(t.Context(), "c", 2)))
	require.Equal(t, want, rt.must(rt.Allow(t.Context(), "c")))
	require.Equal(t, Never, rt.must(rt.AllowN(t.Context(), "c", 3)).RetryAfter)
	require.Equal(t, LocalStats{Subjects: 2, Overflowed: 2}, rt.stats())
	rt.ask(12, "a", "A") // now b is the first to go
	d := rt.ask(12, "c", "D")
	rt.ask(12+d.RetryAfter.Seconds(), "c", "AAD")

	rt.ask(1000, "a", "A")
	rt.ask(1000, "b", "AA")
	rt.ask(1000, "c", "D")
	rt.must(rt.Refund(t.Context(), "b", 2))
	rt.ask(1000, "c", "AAD")
	require.NoError(t, rt.Reset(t.Context(), "c"))
	rt.ask(1000, "d", "A")
	e := rt.entry("d")
	require.False(t, rt.Limiter.(*localLimiter).apply(&Request{}, e, "of the same hash", nil, 0, nil))
	rt.ask(2000, "a", "A")
	require.True(t, e.gone)

	windows := map[string]time.Duration{"long": time.Hour, "short": time.Second, "new": time.Second}
	rt = newRingTest(t, Policy{LimitsFor: func(_ context.Context, key string) ([]Limit, error) {
		return []Limit{Per(1, windows[key])}, nil
	}}, WithMaxSubjects(2))
	rt.ask(0, "long", "A")
	require.Equal(t, 1, rt.stats().Subjects)
	rt.ask(0, "short", "AD")
	rt.ask(1, "new", "D")
	rt.ask(1.05, "new", "AD")

	_, err := NewLocal(Policy{Name: "p", Limits: []Limit{PerMinute(1)}}, WithMaxSubjects(0))
	require.ErrorIs(t, err, ErrInvalidOption)
	_, ok := ReadLocalStats(LimiterFunc(nil))
	require.False(t, ok)
}

func TestRingSubjects(t *testing.T) {
	rt := newRingTest(t, oneLimit(0, PerMinute(1)))
	long := strings.Repeat("x", 1<<20)
	names := []string{" ", "%", "%25", "\xff", "a\x00", "{}", long, long + "y", escapeSubject(long)}
	for _, name := range slices.Concat(names, []string{escapeSubject(escapeSubject(long))}) {
		rt.ask(0, name, "AD")
	}
	for i := range rt.Limiter.(*localLimiter).table.shards {
		for j := range *rt.Limiter.(*localLimiter).table.shards[i].index.Load() {
			if e := (*rt.Limiter.(*localLimiter).table.shards[i].index.Load())[j].entry.Load(); e != nil {
				require.LessOrEqual(t, len(e.key), maxSubject)
			}
		}
	}
}

func TestB116RingLeavesNothingBehind(t *testing.T) {
	goroutines, before := runtime.NumGoroutine(), heapBytes()
	for range 1000 {
		newRingTest(t, oneLimit(0, PerSecond(1))).ask(0, "u", "AD")
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	require.Less(t, heapBytes()-before, int64(1<<20))
}

// TestB117RingUnderLoad has a table too small for its subjects, limits that change, and a subject
// that must get exactly its budget all the same.
func TestB117RingUnderLoad(t *testing.T) {
	const workers, calls, budget = 64, 500, 10_000
	var units atomic.Int64
	start := time.Now()
	var step atomic.Int64
	l, err := NewLocal(Policy{Name: "test", LimitsFor: func(_ context.Context, key string) ([]Limit, error) {
		if key == "control" {
			return []Limit{PerDay(budget)}, nil
		}
		n := units.Add(1)
		return []Limit{Per(1+n%7, 100*time.Millisecond), Per(3, time.Duration(1+n%3)*time.Second)}[n%2:], nil
	}}, WithMaxSubjects(700), WithClock(func() time.Time { return start.Add(time.Duration(step.Add(1)) * time.Millisecond / 2) }))
	require.NoError(t, err)
	require.True(t, (&ringTest{T: t, Limiter: l}).must(l.Allow(t.Context(), "control")).Allowed)
	var admitted atomic.Int64
	admitted.Store(1)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 0))
			for range calls {
				if d, _ := l.Allow(t.Context(), "control"); d.Allowed {
					admitted.Add(1)
				}
				r := Request{Op: Op(1 + rng.IntN(5)), Key: fmt.Sprint(rng.IntN(1000)), N: 1 + rng.Int64N(3)}
				if d, err := r.Do(t.Context(), l); err != nil || d.Remaining < 0 {
					t.Errorf("%+v: %+v, %v", r, d, err)
				}
				if rng.IntN(500) == 0 {
					ReadLocalStats(l)
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, budget, admitted.Load())
	stats, _ := ReadLocalStats(l)
	require.LessOrEqual(t, stats.Subjects, 700)
}

func TestB118RingChecksAndChargesAtOnce(t *testing.T) {
	for range 100 {
		l, err := NewLocal(Policy{Name: "test", Limits: []Limit{PerMinute(50), PerHour(60)}})
		require.NoError(t, err)
		var admitted atomic.Int64
		var wg sync.WaitGroup
		release := make(chan struct{})
		for range 1000 {
			wg.Go(func() {
				<-release
				if d, err := l.Allow(t.Context(), "u"); err == nil && d.Allowed {
					admitted.Add(1)
				}
			})
		}
		close(release)
		wg.Wait()
		require.EqualValues(t, 50, admitted.Load())
	}
}

func TestRingInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := NewLocal(Policy{Name: "test", Limits: []Limit{PerSecond(2)}})
		require.NoError(t, err)
		rt := &ringTest{T: t, Limiter: l}
		for range 50 {
			d := rt.ask(0, "u", "AAD")
			time.Sleep(d.RetryAfter - time.Microsecond)
			rt.ask(0, "u", "D")
			time.Sleep(time.Microsecond)
		}
	})
}

// TestB25RingWaiters has 50 wait for 10 a second, and one who leaves.
func TestB25RingWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := NewLocal(Policy{Name: "test", Limits: []Limit{PerSecond(10)}})
		require.NoError(t, err)
		(&ringTest{T: t, Limiter: l}).ask(0, "u", "AAAAAAAAAA")
		times := slices.Repeat([]time.Time{time.Now()}, 10)
		ctx, leave := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, err := Wait(ctx, l, "u", 1)
			gone <- err
		}()
		synctest.Wait()
		leave()
		require.ErrorIs(t, <-gone, context.Canceled)
		start := time.Now()
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				d, err := Wait(t.Context(), l, "u", 1)
				mu.Lock()
				defer mu.Unlock()
				if times = append(times, time.Now()); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
			})
		}
		wg.Wait()
		for i := 10; i < len(times); i++ {
			require.GreaterOrEqual(t, times[i].Sub(times[i-10]), time.Second)
		}
		require.Len(t, times, 60)
		require.LessOrEqual(t, time.Since(start), 5*1050*time.Millisecond)
	})
}
