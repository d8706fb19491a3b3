package ration

import (
	"fmt"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/rationgo/ration/internal/nils"
)

// Observer hears what a store and its limiters do, for metrics and logs; see
// [WithObserver]. [NewSlogObserver] makes one that logs, the module otellimit one that gives OpenTelemetry
// metrics. No event has a subject in it. The methods are called
// concurrently, Decided, Cached, Shadowed and Compared by the goroutine of each call before it returns, the others by
// any, those about one server in their order: they must be quick, and must neither panic nor
// close the store, which waits for them. Embed
// [NopObserver] and implement what you need, so that events added later don't break you.
type Observer interface {
	// Decided is every call that was answered, also with an error.
	Decided(DecisionEvent)
	// Failed is a run that got no usable answer from Redis: one event a run, however
	// many calls shared it, and none while the breaker keeps calls back. So
	// an outage makes a few events a second.
	Failed(FailureEvent)
	// BreakerChanged is a change of a breaker's state.
	BreakerChanged(BreakerEvent)
	// Leased is a block of units taken or given back by [NewTwoTier].
	Leased(LeaseEvent)
	// Cached is a change of a denied-key cache.
	Cached(CacheEvent)
	// Shadowed is a call that [NewShadow] let through against its limiter.
	Shadowed(ShadowEvent)
	// Compared is a call that [NewCompare] asked its two limiters.
	Compared(CompareEvent)
}

// WithObserver has observers hear what a store and its limiters do, or, as an option of [NewShadow] and
// [NewCompare], what these do: each event one after the other in the order given, so metrics and logs can be
// had together. nil ones are passed over, a nil pointer in one is ErrInvalidOption. None means nobody, which is
// the default and costs nothing.
func WithObserver(observers ...Observer) ObserverOption { return observerOption(observers) }

// ObserverOption is what [WithObserver] gives: an option of stores and of decorators.
type ObserverOption interface {
	Option
	DecoratorOption
}

type observerOption []Observer

// one is a single observer for all, nil for none.
func (o observerOption) one() (Observer, error) {
	var all several
	for _, one := range o {
		switch {
		case one == nil:
		case nils.Is(one):
			return nil, fmt.Errorf("%w: WithObserver: a nil %T", ErrInvalidOption, one)
		default:
			all = append(all, one)
		}
	}
	switch len(all) {
	case 0:
		return nil, nil
	case 1:
		return all[0], nil
	}
	return all, nil
}

func (o observerOption) apply(opts *options) (err error) {
	opts.observer, err = o.one()
	return err
}

func (o observerOption) decorate(d *decorator) (err error) {
	d.observer, err = o.one()
	return err
}

// several are observers that hear of all.
type several []Observer

func (s several) Decided(e DecisionEvent) {
	for _, o := range s {
		o.Decided(e)
	}
}

func (s several) Failed(e FailureEvent) {
	for _, o := range s {
		o.Failed(e)
	}
}

func (s several) BreakerChanged(e BreakerEvent) {
	for _, o := range s {
		o.BreakerChanged(e)
	}
}

func (s several) Leased(e LeaseEvent) {
	for _, o := range s {
		o.Leased(e)
	}
}

func (s several) Cached(e CacheEvent) {
	for _, o := range s {
		o.Cached(e)
	}
}

func (s several) Compared(e CompareEvent) {
	for _, o := range s {
		o.Compared(e)
	}
}

func (s several) Shadowed(e ShadowEvent) {
	for _, o := range s {
		o.Shadowed(e)
	}
}

// DecisionEvent is a call and its answer.
type DecisionEvent struct {
	Policy   string // its Name
	Op       Op
	N        int64 // units asked for
	Allowed  bool
	Granted  int64
	Limit    Limit  // the one that decided; zero if none did
	Source   Source // none with an error
	Degraded bool   // by the failure rule
	Latency  time.Duration
	// Err is the error that the caller got. It may be a mistake of the caller or the end of
	// its context; a failure of Redis is ErrUnavailable.
	Err error
}

// FailureEvent is a failed run.
type FailureEvent struct {
	Class FailureClass
	Err   error // wraps ErrUnavailable
	Calls int   // that shared the run
}

// BreakerEvent is a change of a breaker's state.
type BreakerEvent struct {
	From, To BreakerState
	Cooldown time.Duration // when it opened: until the probe
}

// BreakerState is the state of a breaker.
type BreakerState string

// The states of a breaker.
const (
	BreakerClosed  BreakerState = "closed"  // all calls go to Redis
	BreakerOpen    BreakerState = "open"    // none do
	BreakerProbing BreakerState = "probing" // one does
)

func breakerState(s gobreaker.State) BreakerState {
	switch s {
	case gobreaker.StateClosed:
		return BreakerClosed
	case gobreaker.StateOpen:
		return BreakerOpen
	}
	return BreakerProbing
}

// LeaseEvent is a block of units that an instance took, or what it gave back of one.
type LeaseEvent struct {
	Policy string
	Taken  int64 // units; 0 for a return
	Unused int64 // units of a block that weren't used when its hold ended
	Lost   int64 // of these, units that couldn't be given back: Redis counts them until their window ends
}

// CacheEvent is a change of a denied-key cache. Each policy and strategy has its own.
type CacheEvent struct {
	Policy  string // its Name
	Entries int    // now
	Change  int    // entries more than before: 1, 0 where one took another's place, or -1
	Stored  bool   // a refusal was stored, or else entries were dropped
	Evicted bool   // one had to go to make room
}

// NopObserver does nothing at all events.
type NopObserver struct{}

var _ Observer = NopObserver{}

// Decided does nothing.
func (NopObserver) Decided(DecisionEvent) {}

// Failed does nothing.
func (NopObserver) Failed(FailureEvent) {}

// BreakerChanged does nothing.
func (NopObserver) BreakerChanged(BreakerEvent) {}

// Leased does nothing.
func (NopObserver) Leased(LeaseEvent) {}

// Cached does nothing.
func (NopObserver) Cached(CacheEvent) {}

// Shadowed does nothing.
func (NopObserver) Shadowed(ShadowEvent) {}

// Compared does nothing.
func (NopObserver) Compared(CompareEvent) {}

// observe tells the observer of a call and its answer.
func (s *Store) observe(policy string, r Request, d *Decision, err error, began time.Duration) {
	s.opts.observer.Decided(DecisionEvent{
		Policy: policy, Op: r.Op, N: r.N, Allowed: d.Allowed, Granted: d.Granted, Limit: d.Limit,
		Source: d.Source, Degraded: d.Degraded, Latency: s.since() - began, Err: err,
	})
}

// note keeps an event, to be told when the lane's lock is free.
func (ln *lane) note(e any) {
	if ln.store.opts.observer != nil {
		ln.notes = append(ln.notes, e)
	}
}

// collect takes the events for tell, with the lane's lock held. While another goroutine is
// telling they are left to it, so that the observer hears them in their order.
func (ln *lane) collect() []any {
	if ln.telling {
		return nil
	}
	notes := ln.notes
	ln.notes, ln.telling = nil, len(notes) > 0
	return notes
}

// tell tells the observer what was collected, and what has come up meanwhile.
func (ln *lane) tell(notes []any) {
	for len(notes) > 0 {
		for _, e := range notes {
			switch e := e.(type) {
			case FailureEvent:
				ln.store.opts.observer.Failed(e)
			case BreakerEvent:
				ln.store.opts.observer.BreakerChanged(e)
			}
		}
		ln.mu.Lock()
		ln.telling = false
		notes = ln.collect()
		ln.settle()
		ln.mu.Unlock()
	}
}
