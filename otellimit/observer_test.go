package otellimit_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/otellimit"
)

// oneOfEach are events that make every metric.
func oneOfEach(o ration.Observer) {
	o.Decided(ration.DecisionEvent{Policy: "p", Op: ration.OpAllow, N: 1, Allowed: true, Granted: 1, Source: ration.Redis})
	o.Decided(ration.DecisionEvent{Policy: "p", Op: ration.OpRefund, N: 1, Granted: 1, Source: ration.Redis})
	o.Failed(ration.FailureEvent{Class: ration.ClassTimeout, Err: ration.ErrUnavailable, Calls: 5})
	o.BreakerChanged(ration.BreakerEvent{From: ration.BreakerClosed, To: ration.BreakerOpen})
	o.Leased(ration.LeaseEvent{Policy: "p", Taken: 1})
	o.Leased(ration.LeaseEvent{Policy: "p", Unused: 1, Lost: 1})
	o.Cached(ration.CacheEvent{Policy: "p", Entries: 1, Stored: true, Evicted: true})
	o.Shadowed(ration.ShadowEvent{Name: "p", N: 1})
	o.Compared(ration.CompareEvent{Name: "p", N: 1})
}

// The instruments are as the package comment has them, in the scope that is exported.
func TestInstruments(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	o, err := otellimit.NewObserver(otellimit.WithMeterProvider(provider))
	require.NoError(t, err)
	oneOfEach(o)
	var got metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(ctx, &got))
	require.Len(t, got.ScopeMetrics, 1)
	require.Equal(t, otellimit.ScopeName, got.ScopeMetrics[0].Scope.Name)
	require.Equal(t, otellimit.Version, got.ScopeMetrics[0].Scope.Version)
	units := map[string]string{}
	for _, m := range got.ScopeMetrics[0].Metrics {
		require.NotEmpty(t, m.Description, m.Name)
		kind := "counter"
		switch data := m.Data.(type) {
		case metricdata.Histogram[float64]:
			kind = "histogram"
		case metricdata.Sum[int64]:
			if !data.IsMonotonic {
				kind = "updowncounter"
			}
		default:
			t.Errorf("%s is a %T", m.Name, data)
		}
		units[m.Name] = kind + " " + m.Unit
	}
	require.Equal(t, map[string]string{
		"ration.decisions":          "counter {decision}",
		"ration.decision.duration":  "histogram s",
		"ration.units.granted":      "counter {unit}",
		"ration.units.refunded":     "counter {unit}",
		"ration.redis.failures":     "counter {failure}",
		"ration.redis.failed_calls": "counter {call}",
		"ration.breaker.changes":    "counter {change}",
		"ration.breaker.count":      "updowncounter {breaker}",
		"ration.lease.count":        "counter {lease}",
		"ration.lease.taken":        "counter {unit}",
		"ration.lease.unused":       "counter {unit}",
		"ration.lease.lost":         "counter {unit}",
		"ration.denycache.entries":  "updowncounter {entry}",
		"ration.denycache.stored":   "counter {refusal}",
		"ration.denycache.evicted":  "counter {refusal}",
		"ration.shadow.let_through": "counter {decision}",
		"ration.compare.decisions":  "counter {decision}",
	}, units)
}

// Calls that shared a failed run are counted beside the run.
func TestFailedCalls(t *testing.T) {
	s := newScraper(t)
	o := s.observer()
	o.Failed(ration.FailureEvent{Class: ration.ClassTimeout, Err: ration.ErrUnavailable, Calls: 5})
	o.Failed(ration.FailureEvent{Class: ration.ClassTimeout, Err: ration.ErrUnavailable, Calls: 2})
	o.Failed(ration.FailureEvent{Class: ration.ClassMemory, Err: errors.New(hidden), Calls: 1})
	require.Equal(t, trimmed(`
		ration_redis_failures_total{error_type="timeout"} 2
		ration_redis_failures_total{error_type="memory"} 1
		ration_redis_failed_calls_total{error_type="timeout"} 7
		ration_redis_failed_calls_total{error_type="memory"} 1
	`), s.lines("ration_redis"))
}

// Many goroutines, on policies and outcomes that are new to the observer, and scrapes meanwhile: nothing is
// lost or counted twice. Two observers of one provider add up.
func TestConcurrentEvents(t *testing.T) {
	s := newScraper(t)
	observers := []*otellimit.Observer{s.observer(), s.observer()}
	const goroutines, rounds, policies = 8, 200, 5
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			o := observers[g%2]
			for i := range rounds {
				e := ration.DecisionEvent{Policy: fmt.Sprint("p", i%policies), Op: ration.OpAllow, N: 2, Source: ration.Redis}
				o.Decided(e)
				e.Allowed, e.Granted, e.Source = true, 2, ration.Lease
				o.Decided(e)
				o.BreakerChanged(ration.BreakerEvent{From: ration.BreakerClosed, To: ration.BreakerOpen})
				o.BreakerChanged(ration.BreakerEvent{From: ration.BreakerOpen, To: ration.BreakerProbing})
				o.BreakerChanged(ration.BreakerEvent{From: ration.BreakerProbing, To: ration.BreakerClosed})
				o.Cached(ration.CacheEvent{Policy: "p", Change: 1, Stored: true})
			}
		})
	}
	all.Go(func() {
		for range 20 {
			_ = s.text()
		}
	})
	all.Wait()
	var want strings.Builder
	each := goroutines * rounds / policies
	for i := range policies {
		fmt.Fprintf(&want, "ration_decisions_total{ration_degraded=\"false\",ration_operation=\"allow\",ration_policy=\"p%d\",ration_source=\"redis\",ration_verdict=\"refused\"} %d\n", i, each)
		fmt.Fprintf(&want, "ration_decisions_total{ration_degraded=\"false\",ration_operation=\"allow\",ration_policy=\"p%d\",ration_source=\"lease\",ration_verdict=\"allowed\"} %d\n", i, each)
		fmt.Fprintf(&want, "ration_units_granted_total{ration_degraded=\"false\",ration_policy=\"p%d\",ration_source=\"lease\"} %d\n", i, 2*each)
	}
	fmt.Fprintf(&want, "ration_breaker_count{ration_breaker_state=\"open\"} 0\nration_breaker_count{ration_breaker_state=\"probing\"} 0\n")
	fmt.Fprintf(&want, "ration_denycache_entries{ration_policy=\"p\"} %d\n", goroutines*rounds)
	require.Equal(t, trimmed(want.String()), s.lines("ration_decisions", "ration_units", "ration_breaker_count", "ration_denycache_entries"))
}

// failing is a provider whose meter makes no instruments of one sort.
type failing struct {
	noop.MeterProvider
	sort string
}

type failingMeter struct {
	noop.Meter
	sort string
}

var errInstrument = errors.New("no such instrument")

func (f failing) Meter(string, ...metric.MeterOption) metric.Meter { return failingMeter{sort: f.sort} }

func (f failingMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return noop.Int64Counter{}, f.fail("counter")
}

func (f failingMeter) Int64UpDownCounter(string, ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	return noop.Int64UpDownCounter{}, f.fail("updown")
}

func (f failingMeter) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return noop.Float64Histogram{}, f.fail("histogram")
}

func (f failingMeter) fail(sort string) error {
	if f.sort == sort {
		return errInstrument
	}
	return nil
}

// Without options the global providers are used.
func TestGlobalProviders(t *testing.T) {
	s, recorded := newScraper(t), newSpans()
	meters, tracers := otel.GetMeterProvider(), otel.GetTracerProvider()
	otel.SetMeterProvider(s.provider)
	otel.SetTracerProvider(recorded.provider)
	t.Cleanup(func() {
		otel.SetMeterProvider(meters)
		otel.SetTracerProvider(tracers)
	})
	o, err := otellimit.NewObserver()
	require.NoError(t, err)
	o.Failed(ration.FailureEvent{Class: ration.ClassTimeout, Err: ration.ErrUnavailable, Calls: 5})
	require.Equal(t, `ration_redis_failed_calls_total{error_type="timeout"} 5`, s.lines("ration_redis_failed_calls"))
	local, err := ration.NewLocal(policy("p", ration.PerMinute(1)))
	require.NoError(t, err)
	l, err := otellimit.Trace(local)
	require.NoError(t, err)
	_, err = l.Allow(ctx, hidden)
	require.NoError(t, err)
	require.Equal(t, "ration allow", recorded.only(t).Name())
}

func TestObserverOptions(t *testing.T) {
	for _, p := range []metric.MeterProvider{nil, (*sdkmetric.MeterProvider)(nil)} {
		o, err := otellimit.NewObserver(otellimit.WithMeterProvider(p))
		require.ErrorIs(t, err, ration.ErrInvalidOption)
		require.Nil(t, o)
	}
	for _, sort := range []string{"counter", "updown", "histogram"} {
		o, err := otellimit.NewObserver(otellimit.WithMeterProvider(failing{sort: sort}))
		require.ErrorIs(t, err, errInstrument, sort)
		require.Nil(t, o)
	}
	for _, opts := range [][]otellimit.Option{nil, {nil}, {otellimit.WithMeterProvider(noop.NewMeterProvider())}} {
		o, err := otellimit.NewObserver(opts...)
		require.NoError(t, err)
		oneOfEach(o)
	}
	oneOfEach(&otellimit.Observer{})
}
