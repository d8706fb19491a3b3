package ration

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Never is the RetryAfter of a call that can't succeed however long it waits:
// its cost is above a limit's Units.
const Never time.Duration = math.MaxInt64

// Limiter decides whether a subject may do something now. Every strategy of
// this package is one, so is every decorator made with [LimiterFunc].
//
// A refusal is a [Decision] with Allowed false, never an error. An error is
// the caller's mistake (ErrInvalidKey, ErrInvalidCost, ErrInvalidPolicy),
// the caller's own context error, ErrClosed, or ErrUnavailable when the
// backend gave no answer. With an error the Decision refuses.
//
// Which method: Allow for one unit; AllowN when a call costs more and a part
// of it is worth nothing; AllowUpTo when a part is welcome (a batch that can
// be cut); Peek to show a budget; Refund when the work wasn't done after all;
// Reset to forget a subject.
//
// All methods are safe for concurrent use. Refused calls, peeks and mistakes
// change nothing. A context that has ended before the call gives its error
// and charges nothing; one that ends during the call gives its error at once,
// and the call is then charged once or not at all.
type Limiter interface {
	// Allow asks for one unit: AllowN with n = 1.
	Allow(ctx context.Context, key string) (Decision, error)
	// AllowN asks for n units, all or nothing. n = 0 is a Peek, n < 0 is
	// ErrInvalidCost.
	AllowN(ctx context.Context, key string, n int64) (Decision, error)
	// AllowUpTo takes as many of n units as fit now; Granted says how many.
	// It is allowed when at least one was granted. n = 0 is a Peek.
	AllowUpTo(ctx context.Context, key string, n int64) (Decision, error)
	// Peek charges nothing and leaves no trace: no key, no longer lifetime.
	// Its Allowed and RetryAfter are those an Allow at this instant would get.
	Peek(ctx context.Context, key string) (Decision, error)
	// Refund gives back up to n units that are still counted, newest first;
	// Granted says how many. Units whose window has ended are gone anyway and
	// can't be given back. With several limits each of them gives back what it
	// still counts, and Granted is the largest of these. Allowed and RetryAfter
	// describe an Allow that follows.
	Refund(ctx context.Context, key string, n int64) (Decision, error)
	// Reset forgets all usage of the subject under this policy and its
	// current windows.
	Reset(ctx context.Context, key string) error
}

// Source says where a decision was made. The zero Source belongs to the zero
// Decision, which nobody made.
type Source uint8

// The sources of a decision.
const (
	Redis     Source = iota + 1 // by a script in Redis
	Lease                       // from units this process holds for a while
	Ring                        // by a counter in this process
	DenyCache                   // remembered from an earlier refusal by Redis
	Failure                     // by the failure rule, Redis gave no answer
)

// String gives the source in lower case, for logs and metrics.
func (s Source) String() string {
	switch s {
	case Redis:
		return "redis"
	case Lease:
		return "lease"
	case Ring:
		return "ring"
	case DenyCache:
		return "denycache"
	case Failure:
		return "failure"
	}
	return "none"
}

// Decision is the answer to one call. The zero Decision refuses.
type Decision struct {
	// Allowed says whether the work may be done.
	Allowed bool
	// Granted is the number of units charged by this call; for Refund the
	// number given back. 0 when refused.
	Granted int64
	// Limit is the limit that decided: of several that refused the one that
	// refuses longest, else the one with the fewest units left (the first of
	// equals).
	Limit Limit
	// Remaining is the number of units that would be granted at this same
	// instant, all limits considered; never negative. 10 means that ten more
	// calls of one unit pass and the eleventh doesn't.
	Remaining int64
	// RetryAfter is 0 when allowed. Otherwise the same call succeeds after
	// it if nobody else calls: 1.5s means half a second sooner it would still be
	// refused (microseconds are exact). Never if it can't succeed at all.
	RetryAfter time.Duration
	// ResetAfter is the time until Remaining is the whole (smallest) limit
	// again if nothing else happens; 0 when it is now.
	ResetAfter time.Duration
	// Limits has every limit's own numbers in the policy's order; nil for a
	// policy of one limit.
	Limits []LimitState
	// Source says where the decision was made.
	Source Source
	// Degraded is set when Redis failed and the decision was made without
	// it; Cause says why.
	Degraded bool
	// Cause is the failure behind a degraded decision, else nil.
	Cause error
	// Color is the call's colour under [NewThreeColor], else NoColor.
	Color Color
	// Shadowed is set when a limiter refused the call, or granted less, and [NewShadow] let it
	// through in full all the same. So not all of Granted was charged, and it isn't to be refunded.
	Shadowed bool
}

// LimitState is one limit's part of a [Decision].
type LimitState struct {
	Limit Limit
	// Remaining is the number of units this limit alone would grant now.
	Remaining int64
	// RetryAfter is how long this limit alone refuses the call: 0 if it
	// doesn't, Never if it always will.
	RetryAfter time.Duration
	// ResetAfter is the time until nothing is counted under this limit.
	ResetAfter time.Duration
}

// Op names a method of [Limiter] in a [Request].
type Op uint8

// The operations, one a method; Allow and AllowN are both OpAllow.
const (
	OpAllow Op = iota + 1
	OpAllowUpTo
	OpPeek
	OpRefund
	OpReset
)

// String gives the method's name.
func (o Op) String() string {
	switch o {
	case OpAllow:
		return "AllowN"
	case OpAllowUpTo:
		return "AllowUpTo"
	case OpPeek:
		return "Peek"
	case OpRefund:
		return "Refund"
	case OpReset:
		return "Reset"
	}
	return "none"
}

// Request is one call of a [Limiter] as a value. N is the number of units for
// OpAllow, OpAllowUpTo and OpRefund, and 0 for the others.
type Request struct {
	Op  Op
	Key string
	N   int64
}

// Do makes the call that r describes on l. OpReset answers with the zero
// Decision. It's the way from a [LimiterFunc] decorator to the Limiter below:
//
//	logged := ration.LimiterFunc(func(ctx context.Context, r ration.Request) (ration.Decision, error) {
//		d, err := r.Do(ctx, below)
//		log.Print(r.Op, d.Allowed, err)
//		return d, err
//	})
func (r Request) Do(ctx context.Context, l Limiter) (Decision, error) {
	switch r.Op {
	case OpAllow:
		return l.AllowN(ctx, r.Key, r.N)
	case OpAllowUpTo:
		return l.AllowUpTo(ctx, r.Key, r.N)
	case OpPeek:
		return l.Peek(ctx, r.Key)
	case OpRefund:
		return l.Refund(ctx, r.Key, r.N)
	case OpReset:
		return Decision{}, l.Reset(ctx, r.Key)
	}
	return Decision{}, fmt.Errorf("%w: unknown operation %d", ErrInvalidRequest, r.Op)
}

// LimiterFunc makes a whole [Limiter] of one function, so that a decorator or
// a fake is a few lines. The function gets the arguments as the caller gave
// them, mistakes included.
type LimiterFunc func(ctx context.Context, r Request) (Decision, error)

var _ Limiter = LimiterFunc(nil)

// Allow calls f with OpAllow and N = 1.
func (f LimiterFunc) Allow(ctx context.Context, key string) (Decision, error) {
	return f(ctx, Request{Op: OpAllow, Key: key, N: 1})
}

// AllowN calls f with OpAllow.
func (f LimiterFunc) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	return f(ctx, Request{Op: OpAllow, Key: key, N: n})
}

// AllowUpTo calls f with OpAllowUpTo.
func (f LimiterFunc) AllowUpTo(ctx context.Context, key string, n int64) (Decision, error) {
	return f(ctx, Request{Op: OpAllowUpTo, Key: key, N: n})
}

// Peek calls f with OpPeek.
func (f LimiterFunc) Peek(ctx context.Context, key string) (Decision, error) {
	return f(ctx, Request{Op: OpPeek, Key: key})
}

// Refund calls f with OpRefund.
func (f LimiterFunc) Refund(ctx context.Context, key string, n int64) (Decision, error) {
	return f(ctx, Request{Op: OpRefund, Key: key, N: n})
}

// Reset calls f with OpReset and drops the decision.
func (f LimiterFunc) Reset(ctx context.Context, key string) error {
	_, err := f(ctx, Request{Op: OpReset, Key: key})
	return err
}

// check finds the caller's mistakes and turns a call for nothing into a Peek.
// An ended context comes first: nothing else is looked at for a dead request.
func (r Request) check(ctx context.Context) (Request, error) {
	if err := ctx.Err(); err != nil {
		return r, err
	}
	if r.Key == "" {
		return r, fmt.Errorf("%w: the key is empty", ErrInvalidKey)
	}
	if r.N < 0 {
		return r, fmt.Errorf("%w: %d is negative", ErrInvalidCost, r.N)
	}
	if r.N == 0 && r.Op != OpReset {
		r.Op = OpPeek
	}
	return r, nil
}
