package otellimit_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/otellimit"
)

func providers() map[string]metric.MeterProvider {
	return map[string]metric.MeterProvider{
		"noop": noop.NewMeterProvider(),
		"sdk":  sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())),
	}
}

var decisions = map[string]ration.DecisionEvent{
	"allowed": {Policy: "login", Op: ration.OpAllow, N: 1, Allowed: true, Granted: 1, Source: ration.Redis, Latency: 150e3},
	"refused": {Policy: "login", Op: ration.OpAllow, N: 1, Source: ration.DenyCache, Latency: 300},
	"error":   {Policy: "login", Op: ration.OpAllow, N: 1, Err: ration.ErrUnavailable, Latency: 300},
}

func BenchmarkDecided(b *testing.B) {
	for name, p := range providers() {
		o, err := otellimit.NewObserver(otellimit.WithMeterProvider(p))
		require.NoError(b, err)
		for verdict, e := range decisions {
			b.Run(name+"/"+verdict, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					o.Decided(e)
				}
			})
		}
		b.Run(name+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					o.Decided(decisions["allowed"])
				}
			})
		})
	}
}

// A decision allocates nothing once its like was there, with the SDK too; an error's class is asked for
// by errors.As, which needs one allocation.
func TestDecidedAllocatesNothing(t *testing.T) {
	for name, p := range providers() {
		o, err := otellimit.NewObserver(otellimit.WithMeterProvider(p))
		require.NoError(t, err)
		for verdict, most := range map[string]float64{"allowed": 0, "refused": 0, "error": 1} {
			require.LessOrEqual(t, testing.AllocsPerRun(100, func() { o.Decided(decisions[verdict]) }), most, "%s %s", name, verdict)
		}
	}
}

func BenchmarkTrace(b *testing.B) {
	below := ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) {
		return ration.Decision{Allowed: true, Granted: 1, Limit: ration.PerMinute(5), Source: ration.Redis}, nil
	})
	for name, p := range map[string]trace.TracerProvider{
		"noop": nooptrace.NewTracerProvider(), "sdk": sdktrace.NewTracerProvider(),
		"unsampled": sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())),
	} {
		l, err := otellimit.Trace(below, otellimit.WithTracerProvider(p), otellimit.WithPolicy("login"))
		require.NoError(b, err)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = l.Allow(ctx, "u")
			}
		})
	}
}
