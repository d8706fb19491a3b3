package ration

import (
	"context"
	"fmt"
	"time"
)

// WithShare makes [NewTwoTier] split the policy's units: the part is dealt out to the instances in
// advance, evenly, and spent on a ring in each process, as [NewLocal] has it, without Redis; what goes beyond an
// instance's share comes from the rest, a pool in Redis counted by the global limiter. The sum never exceeds the limit.
// A call is granted by the share or by the pool, whole (AllowUpTo by both). part is above 0 and below 1, else
// ErrInvalidOption; it needs WithInstances, the most there will be. All instances must be given the same numbers: while
// they differ, in a deployment that changes them, the sum may exceed the limit.
//
// An instance has a share as long as it has one of the places, which it claims in Redis and renews
// once a second while the limiter is in use: so where more instances come than there are places, those without one
// go to the pool. The place of an instance that is lost is given to another no sooner than a Window after the last
// use it can have made of it. While Redis is away an instance that had a place keeps it: the local part goes on, and
// what goes beyond it is decided by the store's failure rule, on the pool's units. Should Redis come back without its
// data, or a place have been given away meanwhile, up to 2·Units can pass in a Window that straddles the switch.
//
// The price: shares are not passed on. Of a subject that only one of N instances is asked for, part·(N-1)/N of the units lie unused, for good.
// New numbers from LimitsFor act on the share and the pool each: until a Window after a change the larger Units may pass.
// Reset and Refund reach the pool and this instance's own share. Only the tier may use the global limiter's policy:
// who asks the global limiter itself counts the pool against the whole limit.
func WithShare(part float64) TierOption {
	return tierOptionFunc(func(o *tierOptions) error {
		if !(part > 0 && part < 1) {
			return fmt.Errorf("%w: WithShare: %v is not between 0 and 1", ErrInvalidOption, part)
		}
		o.part = part
		return nil
	})
}

// shareTier spends a share of the units on a ring, and asks Redis for what goes beyond it.
type shareTier struct {
	global *redisLimiter
	opts   tierOptions
	ring   *localLimiter
	beat   *heartbeat
	fixed  split // of the policy's own limits
}

// split is limits cut into an instance's share and the pool.
type split struct {
	share  []ringLimit
	pool   []Limit
	bound  []boundLimit // the pool's
	window time.Duration
}

func newShareTier(g *redisLimiter, o tierOptions) (*shareTier, error) {
	if o.instances == 0 {
		return nil, fmt.Errorf("%w: WithShare needs WithInstances", ErrInvalidOption)
	}
	ring, err := NewLocal(g.policy)
	if err != nil {
		return nil, err
	}
	t := &shareTier{global: g, opts: o, ring: ring.(*localLimiter), beat: newHeartbeat(g, o.instances)}
	if len(g.policy.Limits) > 0 {
		t.fixed = t.deal(g.policy.Limits)
		t.beat.linger(t.fixed.window)
	}
	g.store.adopt(t.beat.close)
	return t, nil
}

// deal splits limits.
func (t *shareTier) deal(limits []Limit) split {
	n := int64(t.opts.instances)
	share, pool := make([]Limit, len(limits)), make([]Limit, len(limits))
	s := split{pool: pool}
	for i, lim := range limits {
		share[i], pool[i] = lim, lim
		share[i].Units = min(lim.Units, int64(float64(lim.Units)*t.opts.part)) / n
		if lim.Units-n*share[i].Units < n && share[i].Units > 0 {
			share[i].Units-- // FailLocal gives each instance one of the pool's at least
		}
		pool[i].Units = lim.Units - n*share[i].Units
		s.window = max(s.window, lim.Window)
	}
	s.share, s.bound = t.ring.bind(nil, share), t.global.bind(pool)
	for i := range s.share {
		r := &s.share[i]
		r.window += r.window / 64 // a fast clock of ours ends it this much sooner
		r.width, _ = slottedWindow(t.global.policy, r.window)
	}
	return s
}

func (t *shareTier) answer(ctx context.Context, r Request, limits []Limit, d *Decision) error {
	s := t.fixed
	if t.global.policy.LimitsFor != nil {
		s = t.deal(limits)
	}
	t.beat.use()
	var own Decision
	placed := t.beat.linger(s.window) && t.beat.placed()
	if placed || r.Op == OpReset || r.Op == OpRefund {
		t.ring.answer(&r, s.share, &own)
	}
	rest := r
	rest.N -= own.Granted
	if own.Granted > 0 && rest.N == 0 {
		*d = own
		d.under(limits)
		return nil
	}
	err := t.global.answerUnder(ctx, rest, s.pool, s.bound, d)
	switch {
	case err != nil && own.Granted > 0:
		*d = own // what was granted, or given back, is
	case err != nil:
		return err
	case placed || r.Op == OpRefund:
		d.join(&own)
	}
	if r.Op != OpReset {
		d.under(limits)
	}
	return nil
}

// join makes one answer of the pool's, d, and the share's.
func (d *Decision) join(own *Decision) {
	d.Granted += own.Granted
	d.Remaining += own.Remaining
	for i := range d.Limits {
		if i < len(own.Limits) {
			d.Limits[i].Remaining += own.Limits[i].Remaining
			d.Limits[i].ResetAfter = max(d.Limits[i].ResetAfter, own.Limits[i].ResetAfter)
		}
	}
	d.ResetAfter = max(d.ResetAfter, own.ResetAfter)
	if d.Allowed || own.Allowed {
		d.allow()
	} else {
		d.RetryAfter = min(d.RetryAfter, own.RetryAfter)
	}
}

// under names the policy's limits where those of a share or the pool stand.
func (d *Decision) under(limits []Limit) {
	for _, lim := range limits {
		if d.Limit.Window == lim.Window {
			d.Limit = lim
		}
		for i := range d.Limits {
			if d.Limits[i].Limit.Window == lim.Window {
				d.Limits[i].Limit = lim
			}
		}
	}
}
