package otellimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/otellimit"
	"github.com/rationgo/ration/rationtest"
)

// spans records spans.
type spans struct {
	recorder *tracetest.SpanRecorder
	provider *sdktrace.TracerProvider
}

func newSpans() *spans {
	r := tracetest.NewSpanRecorder()
	return &spans{r, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))}
}

func (s *spans) trace(t *testing.T, l ration.Limiter, opts ...otellimit.TraceOption) ration.Limiter {
	t.Helper()
	traced, err := otellimit.Trace(l, append(opts, otellimit.WithTracerProvider(s.provider))...)
	require.NoError(t, err)
	return traced
}

// only is the span that has ended since the last call.
func (s *spans) only(t *testing.T) sdktrace.ReadOnlySpan {
	t.Helper()
	ended := s.recorder.Ended()
	s.recorder.Reset()
	require.Len(t, ended, 1)
	require.NotContains(t, fmt.Sprintf("%+v", tracetest.SpanStubFromReadOnlySpan(ended[0])), hidden)
	return ended[0]
}

func attributesOf(span sdktrace.ReadOnlySpan) map[string]any {
	all := map[string]any{}
	for _, kv := range span.Attributes() {
		all[string(kv.Key)] = kv.Value.AsInterface()
	}
	return all
}

// Each operation is a span of its own, a child of the caller's.
func TestSpans(t *testing.T) {
	s := newSpans()
	rdb := rationtest.NewRedis(t)
	l, err := ration.NewSlidingLog(rdb.Store(), policy("login", ration.PerMinute(5)))
	require.NoError(t, err)
	l = s.trace(t, l, otellimit.WithPolicy("login"))
	parent, span := s.provider.Tracer("test").Start(ctx, "request")
	defer span.End()
	type kv = map[string]any
	for _, step := range []struct {
		op   ration.Op
		n    int64
		name string
		want kv
	}{
		{ration.OpAllow, 4, "ration allow", kv{"ration.verdict": "allowed", "ration.units": int64(4), "ration.granted": int64(4), "ration.remaining": int64(1)}},
		{ration.OpAllow, 2, "ration allow", kv{"ration.verdict": "refused", "ration.units": int64(2), "ration.granted": int64(0), "ration.remaining": int64(1), "ration.retry_after": 60.0}},
		{ration.OpAllow, 6, "ration allow", kv{"ration.verdict": "refused", "ration.units": int64(6), "ration.granted": int64(0), "ration.remaining": int64(1), "ration.retry_after": -1.0}},
		{ration.OpAllowUpTo, 3, "ration allow_up_to", kv{"ration.verdict": "allowed", "ration.units": int64(3), "ration.granted": int64(1), "ration.remaining": int64(0)}},
		{ration.OpPeek, 0, "ration peek", kv{"ration.verdict": "refused", "ration.remaining": int64(0), "ration.retry_after": 60.0}},
		{ration.OpRefund, 2, "ration refund", kv{"ration.verdict": "done", "ration.units": int64(2), "ration.granted": int64(2), "ration.remaining": int64(2)}},
	} {
		_, err := ration.Request{Op: step.op, Key: hidden, N: step.n}.Do(parent, l)
		require.NoError(t, err)
		got := s.only(t)
		step.want["ration.policy"], step.want["ration.operation"] = "login", step.name[len("ration "):]
		step.want["ration.source"], step.want["ration.degraded"], step.want["ration.limit"] = "redis", false, "5/1m0s"
		require.Equal(t, step.name, got.Name())
		require.Equal(t, step.want, attributesOf(got))
		require.Equal(t, span.SpanContext().SpanID(), got.Parent().SpanID())
		require.Equal(t, codes.Unset, got.Status().Code)
		require.Equal(t, otellimit.ScopeName, got.InstrumentationScope().Name)
		require.Equal(t, otellimit.Version, got.InstrumentationScope().Version)
		require.Empty(t, got.Events())
	}
	require.NoError(t, l.Reset(parent, hidden))
	got := s.only(t)
	require.Equal(t, "ration reset", got.Name())
	require.Equal(t, kv{"ration.policy": "login", "ration.operation": "reset", "ration.verdict": "done"}, attributesOf(got))
}

// The limiter below has the span in its context, so that the Redis client's spans are its children.
func TestSpanIsInTheContext(t *testing.T) {
	s := newSpans()
	var below trace.SpanContext
	l := s.trace(t, ration.LimiterFunc(func(ctx context.Context, _ ration.Request) (ration.Decision, error) {
		below = trace.SpanContextFromContext(ctx)
		return ration.Decision{}, nil
	}))
	_, _ = l.Allow(ctx, hidden)
	require.True(t, below.IsValid())
	require.Equal(t, s.only(t).SpanContext().SpanID(), below.SpanID())
}

// Errors: which are the span's, and whose text is recorded.
func TestSpanErrors(t *testing.T) {
	s := newSpans()
	rdb := rationtest.NewRedis(t)
	store := rdb.Store()
	cause := errors.New("no plan of " + hidden)
	real, err := ration.NewSlidingLog(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(5)}, LimitsFor: func(_ context.Context, key string) ([]ration.Limit, error) {
		return nil, cause
	}})
	require.NoError(t, err)
	fake := func(err error) ration.Limiter {
		return ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) { return ration.Decision{}, err })
	}
	failing := rationtest.NewRedis(t)
	broken, err := ration.NewSlidingLog(failing.Store(), policy("p", ration.PerMinute(5)))
	require.NoError(t, err)
	require.NoError(t, failing.Client().Close())
	const status, unset = codes.Error, codes.Unset
	for name, c := range map[string]struct {
		limiter ration.Limiter
		key     string
		kind    string
		code    codes.Code
		text    string // that is recorded
	}{
		"an outage":           {broken, hidden, "connection", status, "ration: no answer from Redis: redis: client is closed"},
		"a mistake":           {broken, "", "invalid_key", status, "ration: invalid key: the key is empty"},
		"LimitsFor":           {real, hidden, "_OTHER", status, ""},
		"not ration's":        {fake(fmt.Errorf("%s: %w", hidden, ration.ErrUnavailable)), hidden, "unavailable", status, ""},
		"the caller's time":   {fake(context.DeadlineExceeded), hidden, "deadline_exceeded", status, "context deadline exceeded"},
		"the caller has gone": {fake(context.Canceled), hidden, "canceled", unset, ""},
		"closed":              {fake(ration.ErrClosed), hidden, "closed", status, "ration: store is closed"},
	} {
		_, err := s.trace(t, c.limiter).Allow(ctx, c.key)
		require.Error(t, err, name)
		got := s.only(t)
		require.Equal(t, map[string]any{
			"ration.operation": "allow", "ration.verdict": "error", "ration.units": int64(1), "ration.granted": int64(0), "error.type": c.kind,
		}, attributesOf(got), name)
		require.Equal(t, c.code, got.Status().Code, name)
		if c.text == "" {
			require.Empty(t, got.Events(), name)
			continue
		}
		require.Equal(t, c.text, got.Status().Description, name)
		require.Len(t, got.Events(), 1, name)
		require.Equal(t, "exception", got.Events()[0].Name)
	}
}

// What a failure rule decided is no error; the span says why it's degraded.
func TestSpanDegraded(t *testing.T) {
	s := newSpans()
	rdb := rationtest.NewRedis(t)
	l, err := ration.NewSlidingLog(rdb.Store(ration.WithOnFailure(ration.FailClosed)), policy("p", ration.PerMinute(5)))
	require.NoError(t, err)
	require.NoError(t, rdb.Client().Close())
	d, err := s.trace(t, l).Allow(ctx, hidden)
	require.NoError(t, err)
	got := s.only(t)
	require.Equal(t, map[string]any{
		"ration.operation": "allow", "ration.verdict": "refused", "ration.units": int64(1), "ration.granted": int64(0), "ration.remaining": int64(0),
		"ration.retry_after": d.RetryAfter.Seconds(), "ration.source": "failure", "ration.degraded": true, "error.type": "connection",
	}, attributesOf(got))
	require.Equal(t, codes.Unset, got.Status().Code)
	require.Empty(t, got.Events())
}

// A traced limiter is a limiter like the one below.
func TestTraceIsALimiter(t *testing.T) {
	s := newSpans()
	rationtest.Exercise(t, func(t *testing.T) rationtest.Harness {
		rdb := rationtest.NewRedis(t)
		store := rdb.Store()
		return rationtest.Harness{
			New: func(p ration.Policy) (ration.Limiter, error) {
				l, err := ration.NewSlidingLog(store, p)
				if err != nil {
					return nil, err
				}
				return otellimit.Trace(l, otellimit.WithTracerProvider(s.provider))
			},
			Now: rdb.Now, Advance: rdb.Advance, Shared: true, Keys: rdb.Keys, Source: ration.Redis,
		}
	})
	require.NotEmpty(t, s.recorder.Ended())
	require.Len(t, s.recorder.Ended(), len(s.recorder.Started()))
}

func TestTraceOptions(t *testing.T) {
	below := ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) {
		return ration.Decision{Allowed: true}, nil
	})
	for _, l := range []ration.Limiter{nil, ration.LimiterFunc(nil)} {
		_, err := otellimit.Trace(l)
		require.ErrorIs(t, err, ration.ErrInvalidClient)
	}
	for _, p := range []trace.TracerProvider{nil, (*sdktrace.TracerProvider)(nil)} {
		l, err := otellimit.Trace(below, otellimit.WithTracerProvider(p))
		require.ErrorIs(t, err, ration.ErrInvalidOption)
		require.Nil(t, l)
	}
	for _, opts := range [][]otellimit.TraceOption{nil, {nil}, {otellimit.WithTracerProvider(noop.NewTracerProvider()), otellimit.WithPolicy("")}} {
		l, err := otellimit.Trace(below, opts...)
		require.NoError(t, err)
		d, err := l.Allow(ctx, hidden)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
}
