package ration

import (
	"context"
	"fmt"
	"strings"

	"github.com/rationgo/ration/internal/nils"
)

// Combine makes one limiter of several that count in Redis, of whatever strategies: say a token bucket
// for each second and a fixed window for the day. All their limits must hold: a call is decided and
// charged under all of them together, in one script run, or under none.
//
// Each keeps its own policy and counts, which it has in common with what's made of it otherwise: a call by one of
// them alone counts for the combined one too. Decision.Limits has the limits in the order of limiters.
// To observers the policy is called by all names, with + between. The units that Refund
// gives back are the newest under each.
//
// The script has all strategies in it and takes some microseconds longer than one alone. [NewTwoTier] doesn't take the
// result; [Wait] lets waiters under it compete. By FailLocal it has a ring of its own.
//
// It fails with ErrInvalidClient for anything but limiters of one Store that count in Redis, and
// ErrInvalidPolicy if there are none, more than MaxLimits limits, or two that would be one count; where
// LimitsFor gives such limits, the call fails.
func Combine(limiters ...Limiter) (Limiter, error) {
	l := &redisLimiter{strategy: strategy{script: combineScript}}
	l.LimiterFunc = l.do
	var names, codes []string
	var fixed []*redisLimiter
	for _, one := range limiters {
		part, ok := one.(*redisLimiter)
		if !ok || nils.Is(one) || part.parts == nil && part.strategy.kind == 0 {
			return nil, fmt.Errorf("%w: Combine needs limiters that count in Redis, not %T", ErrInvalidClient, one)
		}
		if l.store == nil {
			l.store = part.store
		}
		if part.store != l.store {
			return nil, fmt.Errorf("%w: Combine needs limiters of one Store", ErrInvalidClient)
		}
		all := part.parts
		if all == nil {
			all = []*redisLimiter{part}
		}
		for _, p := range all {
			l.parts = append(l.parts, p)
			names, codes = append(names, p.policy.Name), append(codes, p.code)
			if p.policy.LimitsFor == nil {
				fixed = append(fixed, p)
			}
		}
	}
	l.policy.Name, l.code = strings.Join(names, "+"), strings.Join(codes, "+")
	if len(l.parts) == 0 {
		return nil, fmt.Errorf("%w: Combine of no limiters", ErrInvalidPolicy)
	}
	limits, bound, err := (&redisLimiter{policy: l.policy, parts: fixed}).combine(context.Background(), "")
	if err != nil {
		return nil, err
	}
	if len(fixed) == len(l.parts) {
		l.policy.Limits, l.fixed = limits, bound
	}
	l.denied = l.store.denials(l.policy.Name, l.code)
	// Its limits may have equal windows, which a policy's of one strategy can't: the ring gets them call by call.
	none := func(context.Context, string) ([]Limit, error) { return nil, nil }
	if err := l.addLocal(Policy{Name: "combined", LimitsFor: none}); err != nil {
		return nil, err
	}
	return l, nil
}

// combine gives a subject's limits under all parts.
func (l *redisLimiter) combine(ctx context.Context, key string) (limits []Limit, bound []boundLimit, err error) {
	for _, part := range l.parts {
		some, ready, err := part.limitsFor(ctx, key)
		if err != nil {
			return nil, nil, err
		}
		limits, bound = append(limits, some...), append(bound, ready...)
	}
	if len(limits) > MaxLimits {
		return nil, nil, fmt.Errorf("%w %q: %d limits, not 1 to %d", ErrInvalidPolicy, l.policy.Name, len(limits), MaxLimits)
	}
	for i := range bound {
		for j := range i {
			if bound[i].base == bound[j].base {
				return nil, nil, fmt.Errorf("%w %q: limits %d and %d are one count", ErrInvalidPolicy, l.policy.Name, j, i)
			}
		}
	}
	return limits, bound, nil
}
