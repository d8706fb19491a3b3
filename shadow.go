package ration

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rationgo/ration/internal/nils"
)

// NewShadow decides without enforcing: every call is asked of limiter, which charges as
// it would otherwise, but what it refuses is let through. It's for trying a limit on real traffic:
// give it an observer ([WithObserver]) and see how often the limit would have bitten.
//
// A call that was refused, or granted a part (AllowUpTo), is answered as Allowed with all units that it asked for as
// Granted, RetryAfter 0, and Shadowed set; the limits' own RetryAfter are 0 too. Remaining, ResetAfter and Limit
// are limiter's: Remaining may be 0 with Allowed. What was refused isn't charged, so the
// count goes on as if the limit were enforced: real traffic under it may come otherwise, such as
// clients that try again. Peek and Refund say Allowed likewise. Give nothing back for a Shadowed
// decision: a Refund of more than was charged takes it from other calls.
//
// An error of limiter hurts nobody: the call is let through as under [FailOpen], Degraded with the error as Cause, Source
// Failure and no Limit; ErrClosed is no exception. The caller's own mistakes and the end of its context stay errors,
// and Reset gives limiter's error, since it can't have been done. A call still takes as
// long as limiter does.
//
// For HTTP there is httplimit.WithShadow, which shows clients no fields either.
//
// The observer hears Shadowed of calls that were answered otherwise than limiter did, and of Resets that
// failed. It fails with ErrInvalidClient for a nil limiter, and ErrInvalidOption. It's safe for
// concurrent use if limiter is.
func NewShadow(limiter Limiter, opts ...DecoratorOption) (Limiter, error) {
	if nils.Is(limiter) {
		return nil, fmt.Errorf("%w: NewShadow: the limiter is nil", ErrInvalidClient)
	}
	d, err := newDecorator(limiter, opts)
	if err != nil {
		return nil, err
	}
	return LimiterFunc((&shadow{d, limiter}).do), nil
}

// ShadowEvent is a call that [NewShadow] let through against its limiter.
type ShadowEvent struct {
	Name       string // see WithName
	Op         Op
	N          int64         // units asked for
	Granted    int64         // units that the limiter granted
	Limit      Limit         // the one that decided; zero if none did
	RetryAfter time.Duration // of the refusal; 0 if some were granted or the limiter failed
	Err        error         // the limiter's, or the cause of [FailClosed]; nil if it decided
}

type shadow struct {
	decorator
	limiter Limiter
}

func (s *shadow) do(ctx context.Context, r Request) (Decision, error) {
	d, err := r.Do(ctx, s.limiter)
	if err != nil && callersOwn(ctx, err) {
		return d, err
	}
	asked := int64(0)
	if r.Op == OpAllow || r.Op == OpAllowUpTo {
		asked = r.N
	}
	if err == nil && (r.Op == OpReset || d.Allowed && d.Granted >= asked) {
		return d, nil
	}
	if s.observer != nil {
		e := ShadowEvent{Name: s.name, Op: r.Op, N: r.N, Granted: d.Granted, Limit: d.Limit, RetryAfter: d.RetryAfter, Err: err}
		if err == nil && d.Degraded && d.Limit == (Limit{}) { // an outage, and no limit that bites
			e.Err, e.RetryAfter = d.Cause, 0
		}
		s.observer.Shadowed(e)
	}
	if err != nil {
		if r.Op == OpReset {
			return Decision{}, err
		}
		return Decision{Allowed: true, Granted: asked, Source: Failure, Degraded: true, Cause: err}, nil
	}
	return d.letThrough(asked), nil
}

// letThrough is a refusal, or a part granted, as NewShadow answers it. Of a Refund Granted stays.
func (d Decision) letThrough(asked int64) Decision {
	d.Allowed, d.Shadowed, d.RetryAfter = true, true, 0
	d.Granted = max(d.Granted, asked)
	d.Limits = slices.Clone(d.Limits) // the limiter may keep its own
	for i := range d.Limits {
		d.Limits[i].RetryAfter = 0
	}
	return d
}
