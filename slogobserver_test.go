package ration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// logbook is a logger whose lines can be taken, without their time.
type logbook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logbook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logbook) logger(level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// take gives what was logged since the last take, and checks that no subject is in it.
func (b *logbook) take(t testing.TB) string {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	text := b.buf.String()
	b.buf.Reset()
	require.NotContains(t, text, hidden)
	return text
}

func slogObserver(t testing.TB, b *logbook, level slog.Leveler, opts ...ration.SlogOption) ration.Observer {
	t.Helper()
	o, err := ration.NewSlogObserver(b.logger(level), opts...)
	require.NoError(t, err)
	return o
}

// By default failures and breakers are logged, and no decisions.
func TestSlogOutage(t *testing.T) {
	inBubble(t, func(w *world) {
		var b logbook
		l := w.limiter(w.store(ration.WithObserver(slogObserver(w, &b, slog.LevelDebug))), ration.PerHour(1000))
		must(l.Allow(ctx, hidden))
		synctest.Wait()
		require.Empty(w, b.take(w))
		w.spoil(says(errors.New("cut off")))
		for range 5 { // two more than it takes to open the breaker
			_, err := l.Allow(ctx, hidden)
			require.ErrorIs(w, err, ration.ErrUnavailable)
		}
		synctest.Wait()
		failure := `level=WARN msg="ration: no answer from Redis" class=connection calls=1 err="ration: no answer from Redis: cut off"` + "\n"
		require.Equal(w, failure+failure+`level=WARN msg="ration: circuit breaker opened" from=closed cooldown=100ms`+"\n"+failure, b.take(w))
		w.spoil(nil)
		pass(100 * time.Millisecond)
		must(l.Allow(ctx, hidden))
		synctest.Wait()
		require.Equal(w, `level=DEBUG msg="ration: circuit breaker probes" from=open`+"\n"+
			`level=INFO msg="ration: circuit breaker closed" from=probing`+"\n", b.take(w))
	})
}

// No failure's text has the subject, also where the server's own names the key; one of settings is an Error.
func TestSlogFailureTexts(t *testing.T) {
	for name, o := range outages {
		inBubble(t, func(w *world) {
			var b logbook
			l := w.limiter(w.store(ration.WithObserver(slogObserver(w, &b, slog.LevelDebug, everyDecision)), ration.WithOnFailure(ration.FailError)), ration.PerHour(1000))
			w.spoil(o.fault)
			_, err := l.Allow(ctx, hidden)
			require.ErrorIs(w, err, ration.ErrUnavailable)
			synctest.Wait()
			text := b.take(w)
			require.Contains(w, text, "class="+string(o.class), name)
			require.Contains(w, text, "verdict=error", name)
			want := `level=WARN msg="ration: no answer from Redis"`
			if o.class == ration.ClassMisconfigured {
				want = `level=ERROR msg="ration: Redis refuses the commands needed"`
			}
			require.Contains(w, text, want, name)
		})
	}
}

var everyDecision = ration.WithDecisionLevels(ration.DecisionLevels{Allowed: slog.LevelDebug, Refused: slog.LevelInfo, Errors: slog.LevelWarn})

// Decisions are logged on request, each at its level.
func TestSlogDecisions(t *testing.T) {
	inBubble(t, func(w *world) {
		var b logbook
		store := w.store(ration.WithObserver(slogObserver(w, &b, slog.LevelDebug, everyDecision)), ration.WithOnFailure(ration.FailOpen))
		secret := fmt.Errorf("no plan for %s: %w", hidden, ration.ErrInvalidKey)
		l := w.of("fixed", store, ration.Policy{Name: "login", Limits: []ration.Limit{ration.PerHour(5)}, LimitsFor: func(_ context.Context, key string) ([]ration.Limit, error) {
			if key == hidden+"!" {
				return nil, secret
			}
			return nil, nil
		}})
		ended, cancel := context.WithCancel(ctx)
		cancel()
		for _, c := range []struct {
			ctx context.Context
			r   ration.Request
			log string
		}{
			{ctx, ration.Request{Op: ration.OpAllow, Key: hidden, N: 4}, `level=DEBUG msg="ration: decision" policy=login op=AllowN verdict=allowed units=4 granted=4 source=redis limit=5/1h0m0s latency=0s`},
			{ctx, ration.Request{Op: ration.OpAllow, Key: hidden, N: 2}, `level=INFO msg="ration: decision" policy=login op=AllowN verdict=refused units=2 granted=0 source=redis limit=5/1h0m0s latency=0s`},
			{ctx, ration.Request{Op: ration.OpAllowUpTo, Key: hidden, N: 2}, `level=DEBUG msg="ration: decision" policy=login op=AllowUpTo verdict=allowed units=2 granted=1 source=redis limit=5/1h0m0s latency=0s`},
			{ctx, ration.Request{Op: ration.OpPeek, Key: hidden}, `level=DEBUG msg="ration: decision" policy=login op=Peek verdict=refused source=redis limit=5/1h0m0s latency=0s`},
			{ctx, ration.Request{Op: ration.OpRefund, Key: hidden, N: 2}, `level=DEBUG msg="ration: decision" policy=login op=Refund verdict=done units=2 granted=2 source=redis limit=5/1h0m0s latency=0s`},
			{ctx, ration.Request{Op: ration.OpReset, Key: hidden}, `level=DEBUG msg="ration: decision" policy=login op=Reset verdict=done latency=0s`},
			{ctx, ration.Request{Op: ration.OpAllow, N: 1}, `level=WARN msg="ration: decision" policy=login op=AllowN verdict=error units=1 granted=0 latency=0s err="ration: invalid key: the key is empty"`},
			{ended, ration.Request{Op: ration.OpAllow, Key: hidden, N: 1}, `level=WARN msg="ration: decision" policy=login op=AllowN verdict=error units=1 granted=0 latency=0s err="context canceled"`},
			{ctx, ration.Request{Op: ration.OpAllow, Key: hidden + "!", N: 1}, `level=WARN msg="ration: decision" policy=login op=AllowN verdict=error units=1 granted=0 latency=0s err="not told, a *errors.errorString"`},
		} {
			_, _ = c.r.Do(c.ctx, l)
			require.Equal(w, c.log+"\n", b.take(w))
		}
		w.spoil(says(errors.New("cut off")))
		must(l.Allow(ctx, hidden))
		require.Contains(w, b.take(w), `level=DEBUG msg="ration: decision" policy=login op=AllowN verdict=allowed units=1 granted=1 source=failure limit=5/1h0m0s degraded=true latency=0s`)
	})
}

// Lost units and evictions are told at Debug; what's no loss isn't.
func TestSlogLosses(t *testing.T) {
	var b logbook
	o := slogObserver(t, &b, slog.LevelDebug)
	o.Leased(ration.LeaseEvent{Policy: "login", Taken: 9})
	o.Leased(ration.LeaseEvent{Policy: "login", Unused: 9})
	o.Cached(ration.CacheEvent{Policy: "login", Entries: 7, Change: 1, Stored: true})
	require.Empty(t, b.take(t))
	o.Leased(ration.LeaseEvent{Policy: "login", Unused: 9, Lost: 3})
	o.Cached(ration.CacheEvent{Policy: "login", Entries: 7, Stored: true, Evicted: true})
	require.Equal(t, `level=DEBUG msg="ration: units lost" policy=login units=3`+"\n"+
		`level=DEBUG msg="ration: denied-key cache is full" policy=login entries=7`+"\n", b.take(t))
}

func TestSlogDecorators(t *testing.T) {
	var b logbook
	o := slogObserver(t, &b, slog.LevelDebug, everyDecision)
	quiet := slogObserver(t, &b, slog.LevelDebug)
	for _, o := range []ration.Observer{quiet, o} {
		o.Shadowed(ration.ShadowEvent{Name: "login", Op: ration.OpAllow, N: 3, Limit: ration.PerMinute(5)})
		o.Shadowed(ration.ShadowEvent{Name: "login", Op: ration.OpAllow, N: 1, Err: ration.ErrClosed})
		o.Shadowed(ration.ShadowEvent{Name: "login", Op: ration.OpPeek})
		for _, second := range []bool{true, false} {
			o.Compared(ration.CompareEvent{Name: "trial", Op: ration.OpAllow, N: 2, First: ration.CompareAnswer{Allowed: true}, Second: ration.CompareAnswer{Allowed: second}})
		}
	}
	require.Equal(t, `level=INFO msg="ration: let through by a shadow" policy=login op=AllowN units=3 granted=0 limit=5/1m0s
level=INFO msg="ration: let through by a shadow" policy=login op=AllowN units=1 granted=0 err="ration: store is closed"
level=INFO msg="ration: two limiters differ" policy=trial op=AllowN units=2 allowed="only first"
`, b.take(t))
}

// oneOfEach are events of all sorts.
func oneOfEach(o ration.Observer) {
	o.Decided(ration.DecisionEvent{Policy: "p", Op: ration.OpAllow, N: 1, Allowed: true, Granted: 1, Source: ration.Redis})
	o.Decided(ration.DecisionEvent{Policy: "p", Op: ration.OpAllow, N: 1, Source: ration.DenyCache})
	o.Decided(ration.DecisionEvent{Policy: "p", Op: ration.OpAllow, Err: ration.ErrUnavailable})
	o.Failed(ration.FailureEvent{Class: ration.ClassMisconfigured, Err: ration.ErrUnavailable, Calls: 1})
	o.BreakerChanged(ration.BreakerEvent{From: ration.BreakerClosed, To: ration.BreakerOpen})
	o.Leased(ration.LeaseEvent{Policy: "p", Unused: 1, Lost: 1})
	o.Cached(ration.CacheEvent{Policy: "p", Stored: true, Evicted: true})
}

// What is disabled, by level or by default, allocates nothing; a level may change at any time.
func TestSlogDisabledCostsNothing(t *testing.T) {
	var b logbook
	var level slog.LevelVar
	level.Set(slog.LevelError + 1)
	o := slogObserver(t, &b, &level, everyDecision)
	require.Zero(t, testing.AllocsPerRun(100, func() { oneOfEach(o) }))
	require.Empty(t, b.take(t))
	level.Set(slog.LevelDebug)
	oneOfEach(o)
	require.Equal(t, 7, bytes.Count([]byte(b.take(t)), []byte("\n")))

	silent := slogObserver(t, &b, slog.LevelDebug)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		silent.Decided(ration.DecisionEvent{Policy: "p", Op: ration.OpAllow, N: 1, Source: ration.Redis})
	}))
	require.Empty(t, b.take(t))
}

func TestSlogOptions(t *testing.T) {
	logger := slog.New(slog.DiscardHandler)
	_, err := ration.NewSlogObserver(nil)
	require.ErrorIs(t, err, ration.ErrInvalidOption)
	for _, l := range []ration.DecisionLevels{{Allowed: (*slog.LevelVar)(nil)}, {Refused: (*slog.LevelVar)(nil)}, {Errors: (*slog.LevelVar)(nil)}} {
		_, err = ration.NewSlogObserver(logger, ration.WithDecisionLevels(l))
		require.ErrorIs(t, err, ration.ErrInvalidOption)
	}
	o, err := ration.NewSlogObserver(logger, nil, ration.WithDecisionLevels(ration.DecisionLevels{}))
	require.NoError(t, err)
	oneOfEach(o)
}

// All observers hear of all, in their order.
func TestSeveralObservers(t *testing.T) {
	w := offline(t, refused)
	var heard []string
	first, second := &namedObserver{"first", &heard}, &namedObserver{"second", &heard}
	store := w.store(ration.WithObserver(first, nil, second), ration.WithBreaker(ration.Breaker{Failures: 1}))
	require.Error(t, allow(ctx, w.limiter(store, ration.PerHour(1))))
	require.NoError(t, store.Close())
	require.ElementsMatch(t, []string{"first Decided", "second Decided", "first Failed", "second Failed", "first BreakerChanged", "second BreakerChanged"}, heard)

	heard = nil
	ration.Observers(store).Leased(ration.LeaseEvent{})
	ration.Observers(store).Cached(ration.CacheEvent{})
	ration.Observers(store).Shadowed(ration.ShadowEvent{})
	ration.Observers(store).Compared(ration.CompareEvent{})
	require.Equal(t, []string{
		"first Leased", "second Leased", "first Cached", "second Cached",
		"first Shadowed", "second Shadowed", "first Compared", "second Compared",
	}, heard)

	_, err := ration.Open(w.rdb, ration.WithObserver(first, (*namedObserver)(nil)))
	require.ErrorIs(t, err, ration.ErrInvalidOption)
	heard = nil
	for _, nobody := range []ration.Option{ration.WithObserver(), ration.WithObserver(nil), ration.WithObserver(nil, nil)} {
		require.Nil(t, ration.Observers(w.store(ration.WithObserver(first), nobody)))
	}
	require.Same(t, second, ration.Observers(w.store(ration.WithObserver(nil, second))))
}

var namedMu sync.Mutex

type namedObserver struct {
	name  string
	heard *[]string
}

func (n *namedObserver) hear(event string) {
	namedMu.Lock()
	defer namedMu.Unlock()
	*n.heard = append(*n.heard, n.name+" "+event)
}

func (n *namedObserver) Decided(ration.DecisionEvent)       { n.hear("Decided") }
func (n *namedObserver) Failed(ration.FailureEvent)         { n.hear("Failed") }
func (n *namedObserver) BreakerChanged(ration.BreakerEvent) { n.hear("BreakerChanged") }
func (n *namedObserver) Leased(ration.LeaseEvent)           { n.hear("Leased") }
func (n *namedObserver) Cached(ration.CacheEvent)           { n.hear("Cached") }
func (n *namedObserver) Shadowed(ration.ShadowEvent)        { n.hear("Shadowed") }
func (n *namedObserver) Compared(ration.CompareEvent)       { n.hear("Compared") }

func BenchmarkSlogDisabled(b *testing.B) {
	o, err := ration.NewSlogObserver(slog.New(slog.NewTextHandler(&logbook{}, nil)), everyDecision)
	require.NoError(b, err)
	e := ration.DecisionEvent{Policy: "p", Op: ration.OpAllow, N: 1, Allowed: true, Granted: 1, Source: ration.Redis}
	b.ReportAllocs()
	for b.Loop() {
		o.Decided(e)
	}
}
