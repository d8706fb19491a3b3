package rationtest

import (
	"context"
	"net"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rationgo/ration"
)

// Step is one answer in the script of a [Fake]. The zero Step is none. A Step may be used several
// times and in several Fakes.
type Step struct {
	answer  func(ctx context.Context, r ration.Request, l ration.Limit) (ration.Decision, error)
	always  bool
	problem string // why it can't be used
}

// Allowed lets the call through with all its units, and remaining units are left after it: 0 to
// ration.MaxUnits. A Peek shows them, so with 0 it's not Allowed; a Refund gives all its units
// back, and at least these remain.
func Allowed(remaining int64) Step {
	if remaining < 0 || remaining > ration.MaxUnits {
		return Step{problem: "Allowed needs 0 to 1<<53 remaining units"}
	}
	return decided(func(r ration.Request, l ration.Limit) ration.Decision {
		switch r.Op {
		case ration.OpPeek:
			return decision(r, l, 0, remaining, l.Window)
		case ration.OpRefund:
			return decision(r, l, r.N, max(remaining, r.N), l.Window)
		}
		return decision(r, l, r.N, remaining, l.Window)
	})
}

// Available answers as a limit of which units are left before the call, 0 to ration.MaxUnits:
// AllowUpTo gets a part of more, and AllowN of more is refused for a window. A Refund finds
// nothing to give back.
func Available(units int64) Step {
	if units < 0 || units > ration.MaxUnits {
		return Step{problem: "Available needs 0 to 1<<53 units"}
	}
	return decided(func(r ration.Request, l ration.Limit) ration.Decision {
		granted := int64(0)
		switch {
		case r.Op == ration.OpAllowUpTo:
			granted = min(r.N, units)
		case r.Op == ration.OpAllow && r.N <= units:
			granted = r.N
		}
		return decision(r, l, granted, units-granted, l.Window)
	})
}

// Refused refuses the call, with nothing remaining, for retryAfter: above 0 and up to
// ration.MaxWindow, or ration.Never. A Refund finds nothing to give back.
func Refused(retryAfter time.Duration) Step {
	if retryAfter <= 0 || retryAfter > ration.MaxWindow && retryAfter != ration.Never {
		return Step{problem: "Refused needs a time above 0 and up to ration.MaxWindow, or ration.Never"}
	}
	return decided(func(r ration.Request, l ration.Limit) ration.Decision {
		return decision(r, l, 0, 0, retryAfter)
	})
}

// Unavailable gives an error that is ration.ErrUnavailable: Failed(ration.FailError).
func Unavailable() Step { return Failed(ration.FailError) }

// Failed answers as a store with this rule does when nothing listens where Redis should be; see
// [ration.WithOnFailure]. The class of the failure is ration.ClassConnection. With
// ration.FailLocal the ring counts what this Step lets through, by the computer's clock.
func Failed(rule ration.FailureRule) Step {
	rdb := redis.NewClient(&redis.Options{
		Addr:                     "gone", // it never dials, and has no goroutine that somebody would have to end
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	rdb.AddHook(gone{})
	l, err := failing(rdb, rule)
	if err != nil {
		return Step{problem: err.Error()}
	}
	return Step{answer: func(ctx context.Context, r ration.Request, limit ration.Limit) (ration.Decision, error) {
		limit.Burst = 0 // l is no token bucket
		return r.Do(context.WithValue(ctx, limitKey{}, limit), l)
	}}
}

// Answer gives this decision and this error, whatever was asked. With an error the decision should be
// the zero one, as with every Limiter.
func Answer(d ration.Decision, err error) Step {
	return AnswerFunc(func(context.Context, ration.Request) (ration.Decision, error) { return d, err })
}

// AnswerFunc gives what f does, which must not be nil. It's called from the caller's
// goroutine and may wait, such as for the context's end.
func AnswerFunc(f ration.LimiterFunc) Step {
	if f == nil {
		return Step{problem: "AnswerFunc needs a function, not nil"}
	}
	return Step{answer: func(ctx context.Context, r ration.Request, _ ration.Limit) (ration.Decision, error) {
		return f(ctx, r)
	}}
}

// Always is the last step of a script: it answers that call and all later ones, of which there may
// also be none.
func Always(s Step) Step {
	s.always = true
	return s
}

// decided is a step that answers without an error.
func decided(decide func(ration.Request, ration.Limit) ration.Decision) Step {
	return Step{answer: func(_ context.Context, r ration.Request, l ration.Limit) (ration.Decision, error) {
		return decide(r, l), nil
	}}
}

// decision is the one of a limiter that grants and leaves so much, with retryAfter if that is a
// refusal. Where l can't be the limit of such an answer, it's one nearby.
func decision(r ration.Request, l ration.Limit, granted, remaining int64, retryAfter time.Duration) ration.Decision {
	cost := int64(1)
	if r.Op == ration.OpAllow {
		cost = r.N
	}
	if cost > ration.MaxUnits { // no limit lets that through
		granted, retryAfter = 0, ration.Never
	}
	granted, remaining = min(granted, ration.MaxUnits), min(remaining, ration.MaxUnits)
	size := &l.Units
	if l.Units == 0 {
		l.Burst = 0 // a bucket that never fills holds nothing
	}
	if l.Burst > 0 {
		size = &l.Burst
	}
	asks := r.Op == ration.OpAllow || r.Op == ration.OpAllowUpTo
	if asks { // what is granted isn't among what remains
		remaining = min(remaining, ration.MaxUnits-granted)
		*size = max(*size, granted+remaining)
	}
	*size = max(*size, remaining)
	d := ration.Decision{Granted: granted, Remaining: remaining, Source: ration.Redis}
	d.Allowed = granted > 0 || !asks && remaining > 0
	switch {
	case d.Allowed:
	case retryAfter == ration.Never:
		d.RetryAfter, l.Burst, l.Units = ration.Never, min(l.Burst, cost-1), min(l.Units, cost-1)
	default:
		d.RetryAfter, *size, l.Window = retryAfter, max(*size, cost), max(l.Window, retryAfter)
	}
	if remaining < *size {
		d.ResetAfter = l.Window
	}
	d.Limit = l
	return d
}

// limitKey is where a context has the limit for failing.
type limitKey struct{}

// failing is a limiter on a Redis that is gone.
func failing(rdb *redis.Client, rule ration.FailureRule) (ration.Limiter, error) {
	store, err := ration.Open(rdb, ration.WithOnFailure(rule), neverOpens, ration.WithTimeout(patience))
	if err != nil {
		return nil, err
	}
	return ration.NewFixedWindow(store, ration.Policy{
		Name: "fake",
		LimitsFor: func(ctx context.Context, _ string) ([]ration.Limit, error) {
			return []ration.Limit{ctx.Value(limitKey{}).(ration.Limit)}, nil
		},
	})
}

// gone is a client's hook that has each command fail as when nothing listens.
type gone struct{}

var errGone = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

func (gone) DialHook(next redis.DialHook) redis.DialHook { return next }

func (gone) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		cmd.SetErr(errGone)
		return errGone
	}
}

func (gone) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			cmd.SetErr(errGone)
		}
		return errGone
	}
}
