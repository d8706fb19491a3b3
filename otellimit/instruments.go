package otellimit

import (
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/rationgo/ration"
)

// buckets are the boundaries of the latencies, in seconds: 1 µs to 1 s. A decision from memory takes
// a microsecond or less, one by Redis some hundred, and the longest a call's budget.
var buckets = []float64{
	1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4,
	1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1,
}

type instruments struct {
	decisions             metric.Int64Counter
	duration              metric.Float64Histogram
	granted, refunded     metric.Int64Counter
	failures, failedCalls metric.Int64Counter
	changes               metric.Int64Counter
	breakers              metric.Int64UpDownCounter
	leases                metric.Int64Counter
	taken, unused, lost   metric.Int64Counter
	entries               metric.Int64UpDownCounter
	stored, evicted       metric.Int64Counter
	spared, compared      metric.Int64Counter
}

func newInstruments(p metric.MeterProvider) (*instruments, error) {
	meter := p.Meter(ScopeName, metric.WithInstrumentationVersion(Version))
	var errs []error
	counter := func(name, unit, text string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(text))
		errs = append(errs, err)
		return c
	}
	updown := func(name, unit, text string) metric.Int64UpDownCounter {
		c, err := meter.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(text))
		errs = append(errs, err)
		return c
	}
	duration, err := meter.Float64Histogram("ration.decision.duration", metric.WithUnit("s"),
		metric.WithDescription("Time that a call took."), metric.WithExplicitBucketBoundaries(buckets...))
	errs = append(errs, err)
	in := &instruments{
		duration:    duration,
		decisions:   counter("ration.decisions", "{decision}", "Calls that were answered, also with an error."),
		granted:     counter("ration.units.granted", "{unit}", "Units let through."),
		refunded:    counter("ration.units.refunded", "{unit}", "Units given back by refunds."),
		failures:    counter("ration.redis.failures", "{failure}", "Runs that got no usable answer from Redis."),
		failedCalls: counter("ration.redis.failed_calls", "{call}", "Calls that shared the failed runs."),
		changes:     counter("ration.breaker.changes", "{change}", "Changes of a circuit breaker, by the state it came to."),
		breakers:    updown("ration.breaker.count", "{breaker}", "Circuit breakers, one a Redis server, that are not closed now."),
		leases:      counter("ration.lease.count", "{lease}", "Blocks of units taken from Redis."),
		taken:       counter("ration.lease.taken", "{unit}", "Units of the blocks taken from Redis."),
		unused:      counter("ration.lease.unused", "{unit}", "Units of blocks that were not used when the hold ended."),
		lost:        counter("ration.lease.lost", "{unit}", "Unused units that could not be given back to Redis."),
		entries:     updown("ration.denycache.entries", "{entry}", "Refusals in the denied-key cache now."),
		stored:      counter("ration.denycache.stored", "{refusal}", "Refusals stored in the denied-key cache."),
		evicted:     counter("ration.denycache.evicted", "{refusal}", "Good entries that had to make room in the denied-key cache."),
		spared:      counter("ration.shadow.let_through", "{decision}", "Calls that a shadow let through against its limiter."),
		compared:    counter("ration.compare.decisions", "{decision}", "Calls that two limiters were asked, by how their verdicts differ."),
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, state := range []ration.BreakerState{ration.BreakerOpen, ration.BreakerProbing} {
		in.breakers.Add(background, 0, breakerState(state)...) // there to be seen before a breaker opens
	}
	return in, nil
}

func breakerState(s ration.BreakerState) []metric.AddOption {
	return addOptions(breakerKey.String(string(s)))
}
