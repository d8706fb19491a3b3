// Package rationtest helps to test limiters and what is built on them. It needs no
// Redis running, no sleeping, and no assertion library.
//
// For a service that uses limits:
//
//   - [NewFake] is a limiter that answers by a script, to test what the service does with an answer.
//   - [NewRedis] is an in-process Redis with one clock that moves TIME and key lifetimes
//     together, to test with the real limits. [Redis.Stop] and [Redis.Fail] make an outage.
//   - [RequireAllowed] and its like end a test whose decision is another.
//
// For a limiter of one's own (a strategy, a decorator, a service's wrapper) [Exercise] is the
// conformance suite that every [ration.Limiter] should pass.
//
//	rdb := rationtest.NewRedis(t)
//	login, err := ration.NewSlidingLog(rdb.Store(), policy)
//	…
//	rationtest.Exhaust(t, login, "user-42")
//	rdb.Advance(time.Minute)
//	rationtest.RequireSequence(t, login, "user-42", "AAAAAR")
//
// [ration.NewLocal] needs none of this: it goes by the clock of ration.WithClock, or by that of a
// testing/synctest bubble, as [ration.Wait] does. NewRedis has a clock of its own and is
// not for bubbles.
//
// The package is for tests only: it imports testing.
package rationtest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rationgo/ration"
)

// Harness is a kind of limiter with its surroundings, as [Exercise] needs it.
type Harness struct {
	// New makes a limiter. Two limiters made of one policy name must share
	// their counts if Shared is set. Required.
	New func(p ration.Policy) (ration.Limiter, error)

	// Now is the clock the limiters go by, and Advance moves it forward; it
	// must stand still otherwise. Required.
	Now     func() time.Time
	Advance func(d time.Duration)

	// Grid is set for limiters that promise their limit only for windows of
	// the Unix grid, [k·Window, (k+1)·Window).
	Grid bool

	// Refills is set for limiters under which units come back one by one, Units in a Window, as
	// with a token bucket: they promise at most Units and what comes back meanwhile in any span.
	Refills bool

	// Hold is how much longer than its window a unit may stay counted
	// under a policy; nil means not at all.
	Hold func(p ration.Policy, window time.Duration) time.Duration

	// Estimates is set for limiters that guess when the units of a window were used: units
	// stop counting one after another however they came, so that after RetryAfter just what was asked
	// for may fit, and a caller that never stops asking may get a unit less than its limit in each window.
	Estimates bool

	// Shared says that limiters made separately with one policy name share
	// their counts, as those with a common backend do.
	Shared bool

	// Keys lists what the backend stores, for the checks that peeks and
	// refusals leave no trace; nil if there is nothing to list.
	Keys func() []string

	// Source is what decisions must name as their source; 0 checks nothing.
	Source ration.Source
}

// hold is Hold with its default.
func (h Harness) hold(p ration.Policy, window time.Duration) time.Duration {
	if h.Hold == nil {
		return 0
	}
	return h.Hold(p, window)
}

// Exercise runs the conformance suite, each check as a subtest with a fresh
// Harness from new. What it demands is written in the doc comments of
// [ration.Limiter], [ration.Decision] and [ration.Policy]; every check's name tells which part
// it is. It takes a few seconds and prints the seeds of its random checks.
func Exercise(t *testing.T, new func(t *testing.T) Harness) {
	t.Helper()
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			c.run(&exercise{T: t, Harness: new(t), ctx: context.Background()})
		})
	}
}

type check struct {
	name string
	run  func(*exercise)
}

// checks is the whole suite, in the order of the files it's written in.
var checks = []check{
	{"CountsDown", countsDown},
	{"RetryAfterIsExact", retryAfterIsExact},
	{"ResetAfterIsExact", resetAfterIsExact},
	{"RefusedChargesNothing", refusedChargesNothing},
	{"CostAboveLimitNever", costAboveLimitNever},
	{"CostOfWholeLimit", costOfWholeLimit},
	{"AllowUpTo", allowUpTo},
	{"PeekLeavesNoTrace", peekLeavesNoTrace},
	{"Refund", refund},
	{"RefundTooLate", refundTooLate},
	{"Reset", reset},
	{"ZeroLimitRefuses", zeroLimitRefuses},
	{"HugeNumbers", hugeNumbers},
	{"Mistakes", mistakes},
	{"BadPolicies", badPolicies},
	{"EndedContext", endedContext},
	{"TinyAndOddWindows", tinyAndOddWindows},
	{"SubjectsAreApart", subjectsAreApart},
	{"PoliciesAreApart", policiesAreApart},
	{"SecondLimiterShares", secondLimiterShares},
	{"AllOrNothing", allOrNothing},
	{"SeveralLimitsReport", severalLimitsReport},
	{"LimitsForActsAtOnce", limitsForActsAtOnce},
	{"LimitsForMistakes", limitsForMistakes},
	{"PolicyIsCopied", policyIsCopied},
	{"SlowCallerNeverRefused", slowCallerNeverRefused},
	{"EagerCallerGetsShare", eagerCallerGetsShare},
	{"PromiseHoldsOnRandomTraffic", promiseHolds},
	{"RemainingIsExact", remainingIsExact},
	{"ConcurrentCallersGetExactlyTheLimit", concurrentCallers},
	{"WaitNeedsNoSleepWhenFree", waitWhenFree},
}

// exercise is one check under way.
type exercise struct {
	*testing.T
	Harness
	ctx context.Context
}

var names atomic.Int64

// policy makes a policy with a name that no other has.
func (x *exercise) policy(limits ...ration.Limit) ration.Policy {
	return ration.Policy{Name: fmt.Sprintf("exercise-%d", names.Add(1)), Limits: limits}
}

// limiter makes a limiter of a fresh policy.
func (x *exercise) limiter(limits ...ration.Limit) ration.Limiter {
	x.Helper()
	return x.of(x.policy(limits...))
}

func (x *exercise) of(p ration.Policy) ration.Limiter {
	x.Helper()
	l, err := x.New(p)
	if err != nil {
		x.Fatalf("a limiter of %v: %v", p.Limits, err)
	}
	return l
}

// align moves the clock to a turn of the window, so that a check that follows
// lies in one window of the grid.
func (x *exercise) align(window time.Duration) {
	if past := x.Now().UnixMicro() % window.Microseconds(); past > 0 {
		x.Advance(window - time.Duration(past)*time.Microsecond)
	}
}

// answer returns an answer's decision, having checked what holds of all.
func (x *exercise) answer(d ration.Decision, err error) ration.Decision {
	x.Helper()
	if err != nil {
		x.Fatalf("unexpected error: %v", err)
	}
	switch {
	case d.Remaining < 0:
		x.Fatalf("Remaining is %d", d.Remaining)
	case d.Remaining > d.Limit.Units:
		x.Fatalf("Remaining %d is above the limit's %d Units", d.Remaining, d.Limit.Units)
	case d.Allowed && d.RetryAfter != 0:
		x.Fatalf("allowed, but RetryAfter is %v", d.RetryAfter)
	case !d.Allowed && d.RetryAfter <= 0:
		x.Fatalf("refused, but RetryAfter is %v", d.RetryAfter)
	case d.ResetAfter < 0:
		x.Fatalf("ResetAfter is %v", d.ResetAfter)
	case d.Degraded || d.Cause != nil:
		x.Fatalf("degraded by %v", d.Cause)
	case x.Source != 0 && d.Source != x.Source:
		x.Fatalf("Source is %v, not %v", d.Source, x.Source)
	}
	return d
}

// admitted demands that the call was let through in full.
func (x *exercise) admitted(d ration.Decision, err error) ration.Decision {
	x.Helper()
	if d = x.answer(d, err); !d.Allowed || d.Granted <= 0 {
		x.Fatalf("refused (granted %d, remaining %d, retry after %v)", d.Granted, d.Remaining, d.RetryAfter)
	}
	return d
}

// refused demands that the call was refused.
func (x *exercise) refused(d ration.Decision, err error) ration.Decision {
	x.Helper()
	if d = x.answer(d, err); d.Allowed || d.Granted != 0 {
		x.Fatalf("let through (granted %d, remaining %d)", d.Granted, d.Remaining)
	}
	return d
}

// equal demands that got is want.
func equal[V comparable](x *exercise, what string, got, want V) {
	x.Helper()
	if got != want {
		x.Fatalf("%s: %v, not %v", what, got, want)
	}
}

// remaining demands what a Peek shows.
func (x *exercise) remaining(l ration.Limiter, key string, want int64) {
	x.Helper()
	equal(x, "Remaining", x.answer(l.Peek(x.ctx, key)).Remaining, want)
}
