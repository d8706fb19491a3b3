package otellimit

import (
	"context"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/rationgo/ration"
)

// Observer is a [ration.Observer] that gives the metrics of the package comment. Several stores may
// share one, and several observers of one provider add up. The zero Observer does nothing. Its methods are
// safe for concurrent use and take no lock of their own once a policy's outcomes are known.
//
// The attribute sets are made once, so a decision allocates nothing (an error 8 bytes). It takes about
// 0.6 µs of processor time with version 1.47 of the SDK, nearly all of it there, and 0.05 µs with no SDK; see
// BenchmarkDecided.
type Observer struct {
	ration.NopObserver
	instruments *instruments
	policies    table[string, *attributes]
}

var _ ration.Observer = (*Observer)(nil)

// NewObserver makes an observer for [ration.WithObserver]. The error is ration.ErrInvalidOption, or the
// provider's if it can't make an instrument.
func NewObserver(opts ...Option) (*Observer, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	in, err := newInstruments(c.meters)
	if err != nil {
		return nil, fmt.Errorf("otellimit: making the instruments: %w", err)
	}
	return &Observer{instruments: in}, nil
}

// Events have no context: what measurements may take from one (exemplars, baggage) isn't there.
var background = context.Background()

// Decided counts the decision, its units and its latency.
func (o *Observer) Decided(e ration.DecisionEvent) {
	in := o.instruments
	if in == nil {
		return
	}
	s := o.policy(e.Policy).of(outcomeOf(&e))
	in.decisions.Add(background, 1, s.decision...)
	in.duration.Record(background, e.Latency.Seconds(), s.duration...)
	switch {
	case e.Granted <= 0:
	case e.Op == ration.OpRefund:
		in.refunded.Add(background, e.Granted, s.units...)
	default:
		in.granted.Add(background, e.Granted, s.units...)
	}
}

// Failed counts the failure, and the calls that shared it.
func (o *Observer) Failed(e ration.FailureEvent) {
	in := o.instruments
	if in == nil {
		return
	}
	class := addOptions(errorTypeKey.String(string(e.Class)))
	in.failures.Add(background, 1, class...)
	in.failedCalls.Add(background, int64(e.Calls), class...)
}

// BreakerChanged counts the change, and the breaker where it is now. Those that are closed
// aren't counted: a breaker is first heard of when it opens.
func (o *Observer) BreakerChanged(e ration.BreakerEvent) {
	in := o.instruments
	if in == nil {
		return
	}
	in.changes.Add(background, 1, breakerState(e.To)...)
	if e.From != ration.BreakerClosed {
		in.breakers.Add(background, -1, breakerState(e.From)...)
	}
	if e.To != ration.BreakerClosed {
		in.breakers.Add(background, 1, breakerState(e.To)...)
	}
}

// Leased counts the units of blocks.
func (o *Observer) Leased(e ration.LeaseEvent) {
	in := o.instruments
	if in == nil {
		return
	}
	policy := o.policy(e.Policy).only
	if e.Taken > 0 {
		in.leases.Add(background, 1, policy...)
		in.taken.Add(background, e.Taken, policy...)
	}
	if e.Unused > 0 {
		in.unused.Add(background, e.Unused, policy...)
	}
	if e.Lost > 0 {
		in.lost.Add(background, e.Lost, policy...)
	}
}

// Cached counts what the denied-key cache of a policy stores and holds.
func (o *Observer) Cached(e ration.CacheEvent) {
	in := o.instruments
	if in == nil {
		return
	}
	policy := o.policy(e.Policy).only
	in.entries.Add(background, int64(e.Change), policy...)
	if e.Stored {
		in.stored.Add(background, 1, policy...)
	}
	if e.Evicted {
		in.evicted.Add(background, 1, policy...)
	}
}

// Shadowed counts a call that a shadow let through.
func (o *Observer) Shadowed(e ration.ShadowEvent) {
	if o.instruments == nil {
		return
	}
	list := []attribute.KeyValue{policyKey.String(e.Name), operationKey.String(operation(e.Op))}
	if e.Err != nil {
		list = append(list, errorTypeKey.String(errorType(e.Err)))
	}
	o.instruments.spared.Add(background, 1, addOptions(list...)...)
}

// Compared counts two verdicts on a call, if they can be compared.
func (o *Observer) Compared(e ration.CompareEvent) {
	if o.instruments == nil || e.Kind() == 0 {
		return
	}
	kind := strings.ReplaceAll(e.Kind().String(), " ", "_")
	o.instruments.compared.Add(background, 1, addOptions(policyKey.String(e.Name), operationKey.String(operation(e.Op)), kindKey.String(kind))...)
}

func (o *Observer) policy(name string) *attributes {
	if a := o.policies.get(name); a != nil {
		return a
	}
	return o.policies.put(name, newAttributes(name))
}
