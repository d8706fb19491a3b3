package ration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// FailureRule says what a call gets when Redis gives no answer; see [WithOnFailure].
type FailureRule int

// The failure rules, and what [FailLocal] gives.
const (
	// FailError gives an error that is ErrUnavailable, with the zero Decision. It's the default.
	FailError FailureRule = 0
	// FailOpen lets the call through, unless its cost is above a limit's
	// Units: what the policy never lets through it doesn't now either. Nothing is counted.
	FailOpen FailureRule = -1
	// FailClosed refuses. The Decision has no Limit and a RetryAfter that is when Redis
	// will be asked again.
	FailClosed FailureRule = -2

	invalidRule FailureRule = -3
)

// FailLocal decides in this process, on a ring as [NewLocal] has it, by Units/instances, rounded
// down but at least 1. So among that many instances at most Units pass in any Window while Redis
// is away, unless Units are fewer than the instances, when each still lets 1
// through; and at most 2·Units in a Window in which it goes or comes back, since neither knows what
// the other counted. Redis' counts and the rings' are never added to each other.
//
// Fewer instances than 1 are ErrInvalidOption of WithOnFailure.
func FailLocal(instances int) FailureRule {
	if instances < 1 {
		return invalidRule
	}
	return FailureRule(instances)
}

// String names the rule, for logs.
func (f FailureRule) String() string {
	switch {
	case f == FailError:
		return "error"
	case f == FailOpen:
		return "open"
	case f == FailClosed:
		return "closed"
	case f > 0:
		return fmt.Sprintf("local(%d)", int(f))
	}
	return "invalid"
}

// WithOnFailure sets what calls get when Redis gives no answer: refused connections, a
// timeout, a server that is loading, read-only, out of memory or forbids a command, a reply that makes
// no sense. The Decision then says Degraded, and Cause is the error that FailError would
// have given; a Decision by Redis never does. The end of a caller's own
// context is not such a failure, and no rule makes a decision of it; only when Redis has kept the
// call waiting for 10 ms or more is a deadline that passes Redis' failure.
//
// Under every rule Reset gives the error (it can't have been done), Refund gives back
// nothing but what the ring of FailLocal counts, and a caller's mistakes and ErrClosed are errors.
func WithOnFailure(rule FailureRule) Option {
	return optionFunc(func(o *options) error {
		if rule <= invalidRule {
			return fmt.Errorf("%w: WithOnFailure: not a failure rule", ErrInvalidOption)
		}
		o.onFailure = rule
		return nil
	})
}

// stalled is how long Redis must have kept a call waiting for the end of its deadline to be
// Redis' failure: many times what a call takes.
const stalled = 10 * time.Millisecond

// errDeadline is the cause of such a failure.
var errDeadline error = &backendError{class: ClassTimeout, cause: fmt.Errorf("%w: no answer before the caller's deadline", errTimedOut)}

// overdue turns the end of a caller's deadline into a failure of Redis where it's one that the
// failure rule is for.
func (s *Store) overdue(ctx context.Context, err error, began time.Duration) error {
	if s.opts.onFailure == FailError || ctx.Err() == nil || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	waited := s.since() - began
	if deadline, ok := ctx.Deadline(); ok {
		waited += time.Until(deadline) // it's no fault of Redis that we woke up late
	}
	if waited >= stalled {
		return errDeadline
	}
	return err
}

// fail makes the answer to a call that got none from Redis for a cause.
func (l *redisLimiter) fail(r Request, limits []Limit, bound []boundLimit, cause error, d *Decision) error {
	rule := l.store.opts.onFailure
	if rule > 0 {
		l.decideLocally(r, limits, bound, d)
	}
	if rule == FailError || r.Op == OpReset {
		*d = Decision{}
		return cause
	}
	d.Degraded, d.Cause = true, cause
	defer l.color(r, limits, d)
	switch rule {
	case FailOpen:
		d.open(r, limits)
	case FailClosed:
		d.Source, d.RetryAfter = Failure, l.askAgain(r.Key)
	}
	return nil
}

// color marks an answer under the committed bucket alone.
func (l *redisLimiter) color(r Request, limits []Limit, d *Decision) {
	if l.strategy.script != colorScript {
		return
	}
	if d.Color = Red; d.Allowed {
		d.Color = Green
	}
	if d.RetryAfter == Never && limits[0].Units > 0 && (r.Op != OpAllow || r.N <= limits[1].size()-limits[0].size()) {
		d.RetryAfter = l.askAgain(r.Key) // the excess bucket may take it when Redis is back
	}
}

// askAgain is when Redis will be asked again.
func (l *redisLimiter) askAgain(key string) time.Duration {
	return max(time.Millisecond, l.store.lanes.of(key).breaker.wait())
}

// decideLocally answers by the ring.
func (l *redisLimiter) decideLocally(r Request, limits []Limit, bound []boundLimit, d *Decision) {
	shares, possible := make([]Limit, len(limits)), true
	for i, lim := range limits {
		share := bound[i].strategy.local
		if share == nil {
			share = evenShare
		}
		shares[i] = share(lim, int64(l.store.opts.onFailure))
		for slices.ContainsFunc(shares[:i], func(s Limit) bool { return s.Window == shares[i].Window }) {
			shares[i].Window += time.Microsecond // a window is counted once
		}
		possible = possible && lim.Units > 0 && (r.Op != OpAllow || r.N <= lim.size())
	}
	l.local.answer(&r, l.local.bind(nil, shares), d)
	if d.RetryAfter == Never && possible {
		d.RetryAfter = l.askAgain(r.Key) // more than the share may pass when Redis is back
	}
}

// open lets a call through that a policy with nothing counted would.
func (d *Decision) open(r Request, limits []Limit) {
	d.Source, d.Limit = Failure, limits[0]
	for _, lim := range limits {
		if lim.size() < d.Limit.size() {
			d.Limit = lim
		}
	}
	d.Remaining = d.Limit.size()
	switch {
	case r.Op == OpAllow && r.N <= d.Remaining:
		d.Granted = r.N
	case r.Op == OpAllowUpTo:
		d.Granted = min(r.N, d.Remaining)
	}
	d.Allowed = d.verdict(r)
	if !d.Allowed {
		d.RetryAfter = Never
	}
}
