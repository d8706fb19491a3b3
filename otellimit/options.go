package otellimit

import (
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/nils"
)

// Option changes how [NewObserver] sets up an observer. A nil Option does nothing.
type Option interface{ apply(*config) error }

type config struct{ meters metric.MeterProvider }

type optionFunc func(*config) error

func (f optionFunc) apply(c *config) error { return f(c) }

// WithMeterProvider sets where the instruments are made. The default is the global provider,
// otel.GetMeterProvider; nil is ration.ErrInvalidOption.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(c *config) error {
		if nils.Is(p) {
			return fmt.Errorf("%w: WithMeterProvider: a nil provider", ration.ErrInvalidOption)
		}
		c.meters = p
		return nil
	})
}

func newConfig(opts []Option) (config, error) {
	c := config{}
	for _, o := range opts {
		if nils.Is(o) {
			continue
		}
		if err := o.apply(&c); err != nil {
			return c, err
		}
	}
	if c.meters == nil {
		c.meters = otel.GetMeterProvider()
	}
	return c, nil
}

// TraceOption changes how [Trace] makes spans. A nil TraceOption does nothing.
type TraceOption interface{ applyTrace(*traceConfig) error }

type traceConfig struct {
	tracers trace.TracerProvider
	policy  string
}

type traceOptionFunc func(*traceConfig) error

func (f traceOptionFunc) applyTrace(c *traceConfig) error { return f(c) }

// WithTracerProvider sets whose spans they are. The default is the global provider,
// otel.GetTracerProvider; nil is ration.ErrInvalidOption.
func WithTracerProvider(p trace.TracerProvider) TraceOption {
	return traceOptionFunc(func(c *traceConfig) error {
		if nils.Is(p) {
			return fmt.Errorf("%w: WithTracerProvider: a nil provider", ration.ErrInvalidOption)
		}
		c.tracers = p
		return nil
	})
}

// WithPolicy sets the attribute ration.policy of the spans, since a ration.Limiter doesn't say what
// its policy's Name is. "", the default, means none.
func WithPolicy(name string) TraceOption {
	return traceOptionFunc(func(c *traceConfig) error {
		c.policy = name
		return nil
	})
}

func newTraceConfig(opts []TraceOption) (traceConfig, error) {
	c := traceConfig{}
	for _, o := range opts {
		if nils.Is(o) {
			continue
		}
		if err := o.applyTrace(&c); err != nil {
			return c, err
		}
	}
	if c.tracers == nil {
		c.tracers = otel.GetTracerProvider()
	}
	return c, nil
}
