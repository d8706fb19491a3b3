package ration

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// Breaker sets when a store stops asking a server that doesn't answer; see
// [WithBreaker]. A zero field means its default.
type Breaker struct {
	// Failures is the number of runs in a row that fail before the breaker opens.
	// The default is 3.
	Failures int
	// Cooldown is the time after opening in which no call goes to Redis. Then one
	// call does, the probe, while the others are still answered without; if
	// it fails the next cool-down is twice as long. The default is 100 ms.
	Cooldown time.Duration
	// MaxCooldown is the longest cool-down: decisions are normal again that long, and a
	// call's budget, after Redis is, if calls come; a second later at worst if the client's pool
	// has given up dialing meanwhile, since go-redis then tries once a second. The default is 2 s.
	MaxCooldown time.Duration
}

var defaultBreaker = Breaker{Failures: 3, Cooldown: 100 * time.Millisecond, MaxCooldown: 2 * time.Second}

// WithBreaker sets when the store stops asking a server that fails. There is one
// breaker a server (several for a cluster or a ring), so that a node's outage leaves
// the subjects of others alone. An open one answers by the failure rule, at once.
//
// Every failure of Redis counts, but those that are a matter of its settings
// ([ErrMisconfigured]), and none that is the caller's: ended contexts, mistakes.
// Failures as large as math.MaxInt32 turn the breaker off. Negative numbers, and a
// MaxCooldown below the Cooldown, are ErrInvalidOption.
func WithBreaker(b Breaker) Option {
	return optionFunc(func(o *options) error {
		b := b // an option may be used again, and at the same time
		if b.Failures < 0 || b.Failures > math.MaxInt32 || b.Cooldown < 0 || b.MaxCooldown < 0 {
			return fmt.Errorf("%w: WithBreaker: %+v has a number out of range", ErrInvalidOption, b)
		}
		if b.Failures == 0 {
			b.Failures = defaultBreaker.Failures
		}
		if b.Cooldown == 0 {
			b.Cooldown = defaultBreaker.Cooldown
		}
		if b.MaxCooldown == 0 {
			b.MaxCooldown = max(defaultBreaker.MaxCooldown, b.Cooldown)
		}
		if b.MaxCooldown < b.Cooldown {
			return fmt.Errorf("%w: WithBreaker: MaxCooldown %v is below Cooldown %v", ErrInvalidOption, b.MaxCooldown, b.Cooldown)
		}
		b.Cooldown, b.MaxCooldown = min(b.Cooldown, MaxWindow), min(b.MaxCooldown, MaxWindow) // no clock overflows
		o.breaker = b
		return nil
	})
}

// breaker is a lane's. The states and their changes are gobreaker's; it's told the outcome
// of runs. What is ours is a cool-down that grows, and that a call which is to
// be answered without Redis finds that out by one atomic read.
type breaker struct {
	store    *Store
	cb       *gobreaker.TwoStepCircuitBreaker[any]
	changed  func(BreakerEvent)
	cooldown time.Duration // the present or the last one; guarded by the lane's lock
	until    atomic.Int64  // on the store's clock: no call goes before; 0 while closed
	cause    atomic.Pointer[backendError]
}

// newBreaker makes one whose changes are told to changed, with the lane's lock held.
func newBreaker(s *Store, changed func(BreakerEvent)) *breaker {
	b := &breaker{store: s, changed: changed}
	b.cb = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Timeout:       s.opts.breaker.Cooldown/2 + 1, // until says when, and gobreaker's clock must not be behind it
		ReadyToTrip:   func(c gobreaker.Counts) bool { return int64(c.ConsecutiveFailures) >= int64(s.opts.breaker.Failures) },
		IsSuccessful:  func(err error) bool { return err == nil || isSetting(err) },
		OnStateChange: func(_ string, from, to gobreaker.State) { b.change(from, to) },
	})
	return b
}

func (b *breaker) change(from, to gobreaker.State) {
	switch to {
	case gobreaker.StateOpen:
		if from == gobreaker.StateHalfOpen {
			b.cooldown = min(2*b.cooldown, b.store.opts.breaker.MaxCooldown)
		} else {
			b.cooldown = b.store.opts.breaker.Cooldown
		}
		b.until.Store(int64(b.store.since() + b.cooldown))
	case gobreaker.StateClosed:
		b.until.Store(0)
	}
	e := BreakerEvent{From: breakerState(from), To: breakerState(to)}
	if to == gobreaker.StateOpen {
		e.Cooldown = b.cooldown
	}
	b.changed(e)
}

// admit lets a call on to Redis, or says why not. Of the calls after a cool-down it
// lets one on as the probe; should that never be sent, because its caller leaves, another
// goes after a budget.
func (b *breaker) admit() error {
	until := b.until.Load()
	if until == 0 {
		return nil
	}
	now := int64(b.store.since())
	if now >= until && b.until.CompareAndSwap(until, now+int64(b.store.opts.timeout)) {
		return nil
	}
	return b.cause.Load()
}

// wait is how long admit will refuse.
func (b *breaker) wait() time.Duration {
	return max(0, time.Duration(b.until.Load())-b.store.since())
}

// begin lets a run start, whose outcome done must be told, or says why not. To be
// called, as done is, with the lane's lock held.
func (b *breaker) begin() (done func(error), err error) {
	report, err := b.cb.Allow()
	if err != nil {
		return nil, b.cause.Load()
	}
	return func(err error) {
		if failed, ok := err.(*backendError); ok && !failed.misconfigured {
			b.cause.Store(&backendError{class: failed.class, cause: fmt.Errorf("not asked, the circuit breaker is open after: %w", failed.cause)})
		}
		report(err)
	}, nil
}

// isSetting tells failures that somebody's change of settings made.
func isSetting(err error) bool {
	failed, ok := err.(*backendError)
	return ok && failed.misconfigured
}
