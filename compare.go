package ration

import (
	"context"
	"fmt"
	"time"

	"github.com/rationgo/ration/internal/nils"
)

// NewCompare sends the same traffic through two limiters: first answers, unchanged, and then
// second is asked the same, in the same call, and told to the observer ([WithObserver]) beside first's answer. It's for
// choosing between strategies, limits or servers: see how often, and which way, they differ.
//
// second charges what it lets through, whatever first said, as if it had been alone with
// this traffic. Refund and Reset go to both: what a caller gives back of first's Granted may be more or less than
// second granted. The two must not share their counts: give their policies two names, unless their
// strategies differ.
//
// Nothing of second reaches the caller, no error either, but its time: a call takes as long as both together, and
// a second server that hangs costs each call the budget of second's Store. When first's answer is the
// caller's mistake or the end of its context, second isn't asked and nothing is told.
//
// It fails with ErrInvalidClient for a nil limiter, and ErrInvalidOption. It's safe for
// concurrent use if both limiters are; concurrent calls may reach them in different orders.
func NewCompare(first, second Limiter, opts ...DecoratorOption) (Limiter, error) {
	for i, l := range []Limiter{first, second} {
		if nils.Is(l) {
			return nil, fmt.Errorf("%w: NewCompare: limiter %d is nil", ErrInvalidClient, i+1)
		}
	}
	d, err := newDecorator(first, opts)
	if err != nil {
		return nil, err
	}
	return LimiterFunc((&compare{d, first, second}).do), nil
}

// CompareEvent is a call and what two limiters answered.
type CompareEvent struct {
	Name          string // see WithName
	Op            Op
	N             int64 // units asked for
	First, Second CompareAnswer
}

// CompareAnswer is what one limiter answered.
type CompareAnswer struct {
	Allowed    bool
	Granted    int64
	Remaining  int64
	Limit      Limit // the one that decided; zero if none did
	RetryAfter time.Duration
	Degraded   bool // by the failure rule: no verdict of the limiter
	Latency    time.Duration
	Err        error // then the others are zero, but for Latency
}

// CompareKind says how two verdicts differ.
type CompareKind uint8

// The kinds. The zero CompareKind has no verdicts to compare: a Refund, a Reset, or a limiter that failed, also
// where its failure rule decided.
const (
	BothAllowed CompareKind = iota + 1
	BothRefused
	OnlyFirst  // only the first limiter allowed it
	OnlySecond // only the second did
)

// String gives the kind in lower case, for logs and metrics.
func (k CompareKind) String() string {
	switch k {
	case BothAllowed:
		return "both allowed"
	case BothRefused:
		return "both refused"
	case OnlyFirst:
		return "only first"
	case OnlySecond:
		return "only second"
	}
	return "none"
}

// Kind says how the verdicts differ. AllowUpTo may be allowed by both and Granted differ.
func (e CompareEvent) Kind() CompareKind {
	switch {
	case e.First.Err != nil || e.Second.Err != nil, e.First.Degraded || e.Second.Degraded, e.Op == OpRefund, e.Op == OpReset:
		return 0
	case e.First.Allowed && e.Second.Allowed:
		return BothAllowed
	case e.First.Allowed:
		return OnlyFirst
	case e.Second.Allowed:
		return OnlySecond
	}
	return BothRefused
}

type compare struct {
	decorator
	first, second Limiter
}

func (c *compare) do(ctx context.Context, r Request) (Decision, error) {
	began := time.Now()
	d, err := r.Do(ctx, c.first)
	if err != nil && callersOwn(ctx, err) {
		return d, err
	}
	between := time.Now()
	other, otherErr := r.Do(ctx, c.second)
	if c.observer != nil {
		c.observer.Compared(CompareEvent{
			Name: c.name, Op: r.Op, N: r.N,
			First:  compareAnswer(d, err, between.Sub(began)),
			Second: compareAnswer(other, otherErr, time.Since(between)),
		})
	}
	return d, err
}

func compareAnswer(d Decision, err error, latency time.Duration) CompareAnswer {
	if err != nil {
		return CompareAnswer{Latency: latency, Err: err}
	}
	return CompareAnswer{
		Allowed: d.Allowed, Granted: d.Granted, Remaining: d.Remaining, Limit: d.Limit,
		RetryAfter: d.RetryAfter, Degraded: d.Degraded, Latency: latency,
	}
}
