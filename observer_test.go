package ration_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

// recorder keeps all events.
type recorder struct {
	ration.NopObserver
	mu        sync.Mutex
	decisions []ration.DecisionEvent
	failures  []ration.FailureEvent
	changes   []ration.BreakerEvent
	caches    []ration.CacheEvent
}

func record[E any](r *recorder, to *[]E, e E) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*to = append(*to, e)
}

func (r *recorder) Decided(e ration.DecisionEvent)       { record(r, &r.decisions, e) }
func (r *recorder) Failed(e ration.FailureEvent)         { record(r, &r.failures, e) }
func (r *recorder) BreakerChanged(e ration.BreakerEvent) { record(r, &r.changes, e) }
func (r *recorder) Cached(e ration.CacheEvent)           { record(r, &r.caches, e) }

// take gives what was recorded since the last take, and checks that no subject is in it.
func (r *recorder) take(t *testing.T) *recorder {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := &recorder{decisions: r.decisions, failures: r.failures, changes: r.changes, caches: r.caches}
	r.decisions, r.failures, r.changes, r.caches = nil, nil, nil, nil
	for _, text := range []string{
		fmt.Sprintf("%+v %#v", taken.decisions, taken.decisions), fmt.Sprintf("%+v %#v", taken.failures, taken.failures),
		fmt.Sprintf("%+v", taken.changes), fmt.Sprintf("%+v", taken.caches),
	} {
		require.NotContains(t, text, hidden)
	}
	return taken
}

// Each call makes one decision event that is its answer, whoever answered it.
func TestObserverHearsEachDecision(t *testing.T) {
	for _, rule := range rules {
		for name, f := range map[string]fault{"": nil, "refused": refused, "forbidden key": outages["forbidden key"].fault, "panic": outages["panic"].fault} {
			inBubble(t, func(w *world) {
				rec := &recorder{}
				store := w.store(ration.WithObserver(rec), ration.WithOnFailure(rule), ration.WithDenyCache(100))
				l := w.of("log", store, ration.Policy{Name: "login", Limits: []ration.Limit{ration.PerMinute(4), ration.PerHour(5)}})
				w.spoil(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
					pass(7 * time.Millisecond)
					if f == nil {
						return next(ctx, cmd)
					}
					return f(ctx, cmd, next)
				})
				for range 2 {
					for _, r := range append(everyRequest, ration.Request{Op: ration.OpAllow, N: -1}) {
						r.Key = hidden
						began := time.Now()
						d, err := r.Do(ctx, l)
						got := rec.take(w.T).decisions
						require.Equal(w, []ration.DecisionEvent{{
							Policy: "login", Op: r.Op, N: r.N, Allowed: d.Allowed, Granted: d.Granted, Limit: d.Limit,
							Source: d.Source, Degraded: d.Degraded, Latency: time.Since(began), Err: err,
						}}, got, "%s %v", name, rule)
					}
				}
			})
		}
	}
}

// A failed run makes one event, however many calls shared it, and calls that the breaker keeps back none.
func TestObserverHearsOfFailedRuns(t *testing.T) {
	for name, o := range outages {
		if name == "silence" {
			continue // those that wait meanwhile are out of time too, and aren't sent
		}
		inBubble(t, func(w *world) {
			rec := &recorder{}
			l := w.limiter(w.store(ration.WithObserver(rec), ration.WithBatch(ration.Batch{Runs: 1}), ration.WithOnFailure(ration.FailOpen)), ration.PerHour(1000))
			release := make(chan struct{})
			w.spoil(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				<-release
				return o.fault(ctx, cmd, next)
			})
			var all sync.WaitGroup
			call := func(key string) {
				all.Go(func() { _, _ = l.Allow(ctx, key) })
				synctest.Wait()
			}
			call(hidden) // alone in its run; the others gather
			for i := range 50 {
				call(fmt.Sprint(hidden, i%5))
			}
			close(release)
			all.Wait()
			synctest.Wait() // the events may come after the answers
			got := rec.take(w.T)
			require.Len(w, got.decisions, 51)
			require.Len(w, got.failures, 2, name)
			for i, calls := range []int{1, 50} {
				require.Equal(w, calls, got.failures[i].Calls)
				require.Equal(w, o.class, got.failures[i].Class)
				require.ErrorIs(w, got.failures[i].Err, ration.ErrUnavailable)
				require.Equal(w, o.class, ration.ClassOf(got.failures[i].Err))
			}
			askFor(50*time.Millisecond, l)
			synctest.Wait()
			got = rec.take(w.T)
			switch {
			case o.class == ration.ClassMisconfigured:
				require.Len(w, got.failures, 50)
				require.Empty(w, got.changes)
			default:
				require.Len(w, got.failures, 1)
				require.Equal(w, []ration.BreakerEvent{{From: ration.BreakerClosed, To: ration.BreakerOpen, Cooldown: 100 * time.Millisecond}}, got.changes)
			}
		})
	}
}

// The breaker's changes come in their order, each with its cool-down.
func TestObserverHearsTheBreaker(t *testing.T) {
	inBubble(t, func(w *world) {
		rec := &recorder{}
		l := w.limiter(w.store(ration.WithObserver(rec)), ration.PerHour(1e6))
		const closed, open, probing = ration.BreakerClosed, ration.BreakerOpen, ration.BreakerProbing
		for range 2 {
			w.spoil(refused)
			askFor(310*time.Millisecond, l)
			w.spoil(nil)
			askFor(400*time.Millisecond, l)
			synctest.Wait()
			require.Equal(w, []ration.BreakerEvent{
				{closed, open, 100 * time.Millisecond}, {open, probing, 0}, {probing, open, 200 * time.Millisecond},
				{open, probing, 0}, {probing, open, 400 * time.Millisecond}, {open, probing, 0}, {probing, closed, 0},
			}, rec.take(w.T).changes)
		}
	})
}

// So they do where many goroutines bring them about, with an observer that takes its time.
func TestObserverHearsTheBreakerInOrder(t *testing.T) {
	w := offline(t, nil)
	var sent atomic.Int64
	w.spoil(func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
		if sent.Add(1)%3 == 0 {
			cmd.(interface{ SetVal(any) }).SetVal([]any{int64(0), int64(1), int64(0), int64(1)})
			return nil
		}
		return errors.New("told to")
	})
	rec := &slowRecorder{}
	store := w.store(ration.WithObserver(rec), ration.WithTimeout(time.Minute), ration.WithBreaker(ration.Breaker{Failures: 1, Cooldown: 1, MaxCooldown: 1}))
	l := w.limiter(store, ration.PerHour(5))
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for range 500 {
				_, _ = l.Peek(ctx, fmt.Sprint(i))
			}
		})
	}
	all.Wait()
	require.NoError(t, store.Close())
	changes := rec.take(t).changes
	require.Greater(t, len(changes), 20)
	state := ration.BreakerClosed
	for i, e := range changes {
		require.Equal(t, state, e.From, "event %d of %d", i, len(changes))
		state = e.To
	}
}

type slowRecorder struct {
	recorder
	n atomic.Int64
}

func (r *slowRecorder) BreakerChanged(e ration.BreakerEvent) {
	if r.n.Add(1)%3 == 0 {
		for range 100 { // others may overtake
			runtime.Gosched()
		}
	}
	r.recorder.BreakerChanged(e)
}

// The cache's changes tell how full it is.
func TestObserverHearsTheCache(t *testing.T) {
	inBubble(t, func(w *world) {
		rec := &recorder{}
		l := w.limiter(w.store(ration.WithObserver(rec), ration.WithDenyCache(2)), ration.PerHour(0), ration.PerMinute(1))
		require.False(w, must(l.Allow(ctx, hidden)).Allowed) // for ever: nothing to remember
		require.Empty(w, rec.take(w.T).caches)
		l = w.limiter(w.store(ration.WithObserver(rec), ration.WithDenyCache(1)), ration.PerMinute(1))
		change := 1 // the others take its place
		for i := range 3 {
			key := fmt.Sprint(hidden, i)
			for range 3 {
				must(l.Allow(ctx, key))
			}
			require.Equal(w, []ration.CacheEvent{{Policy: "p", Entries: 1, Change: change, Stored: true, Evicted: i > 0}}, rec.take(w.T).caches)
			change = 0
		}
		pass(ration.DenyCacheTime)
		must(l.Allow(ctx, hidden+"0"))
		require.Equal(w, []ration.CacheEvent{{Policy: "p", Entries: 1, Stored: true}}, rec.take(w.T).caches, "the other had run out")
		require.NoError(w, l.Reset(ctx, hidden+"0"))
		require.NoError(w, l.Reset(ctx, hidden+"1"))
		require.Equal(w, []ration.CacheEvent{{Policy: "p", Entries: 0, Change: -1}}, rec.take(w.T).caches)
	})
}

// An observer may call the limiter it observes.
type nosy struct {
	ration.NopObserver
	l     ration.Limiter
	calls atomic.Int64
}

func (n *nosy) ask() {
	if n.l != nil && n.calls.Add(1) < 100 {
		_, _ = n.l.Allow(ctx, "nosy")
		_ = n.l.Reset(ctx, "nosy")
	}
}

func (n *nosy) Decided(ration.DecisionEvent)       { n.ask() }
func (n *nosy) Failed(ration.FailureEvent)         { n.ask() }
func (n *nosy) BreakerChanged(ration.BreakerEvent) { n.ask() }
func (n *nosy) Cached(ration.CacheEvent)           { n.ask() }

func TestObserverMayCall(t *testing.T) {
	inBubble(t, func(w *world) {
		n := &nosy{}
		l := w.limiter(w.store(ration.WithObserver(n), ration.WithDenyCache(9)), ration.PerHour(1))
		n.l = l
		for range 3 {
			must(l.Allow(ctx, "u"))
		}
		n.calls.Store(0)
		w.spoil(refused)
		askFor(500*time.Millisecond, l)
		require.GreaterOrEqual(w, n.calls.Load(), int64(100))
	})
}

// Close waits until the observer has heard of all: nothing is told after it.
func TestCloseWaitsForTheObserver(t *testing.T) {
	inBubble(t, func(w *world) {
		rec := &recorder{}
		store := w.store(ration.WithObserver(sleepy{rec}))
		l := w.limiter(store, ration.PerHour(5))
		w.spoil(refused)
		for range 3 {
			require.Error(w, allow(ctx, l))
		}
		require.NoError(w, store.Close())
		got := rec.take(w.T)
		require.Len(w, got.failures, 3)
		require.Len(w, got.changes, 1)
	})
}

// sleepy takes a second to hear of a failure.
type sleepy struct{ *recorder }

func (s sleepy) Failed(e ration.FailureEvent) {
	pass(time.Second)
	s.recorder.Failed(e)
}

func TestObserverOptions(t *testing.T) {
	w := offline(t, refused)
	for _, o := range []ration.Observer{(*recorder)(nil), (*ration.NopObserver)(nil)} {
		_, err := ration.Open(w.rdb, ration.WithObserver(o))
		require.ErrorIs(t, err, ration.ErrInvalidOption)
	}
	l := w.limiter(w.store(ration.WithObserver(nil)), ration.PerHour(1))
	require.Error(t, allow(ctx, l))
	l = w.limiter(w.store(ration.WithObserver(ration.NopObserver{}), ration.WithOnFailure(ration.FailOpen)), ration.PerHour(1))
	require.NoError(t, allow(ctx, l))
}

// With no observer the quick answers allocate nothing.
func TestQuickAnswersAllocateNothing(t *testing.T) {
	r := rationtest.NewRedis(t)
	for strategy, newLimiter := range strategies {
		l, err := newLimiter(r.Store(ration.WithDenyCache(10)), ration.Policy{Name: strategy, Limits: []ration.Limit{ration.PerHour(1)}})
		require.NoError(t, err)
		must(l.Allow(ctx, "u"))
		must(l.Allow(ctx, "u"))
		require.Zero(t, testing.AllocsPerRun(100, func() { must(l.Allow(ctx, "u")) }))
		require.Equal(t, ration.DenyCache, must(l.Allow(ctx, "u")).Source)

		w := offline(t, refused)
		down := w.of(strategy, w.store(ration.WithOnFailure(ration.FailClosed), ration.WithBreaker(ration.Breaker{Cooldown: time.Hour})),
			ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(1)}})
		for range 3 {
			must(down.Allow(ctx, "u"))
		}
		require.Zero(t, testing.AllocsPerRun(100, func() { must(down.Allow(ctx, "u")) }))
	}
}
