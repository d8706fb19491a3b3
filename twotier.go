package ration

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// NewTwoTier puts a tier in this process in front of a limiter made by [NewFixedWindow],
// [NewSlidingLog] or [NewSlidingBuckets], so that most decisions need no Redis. The promise is the
// global limiter's own, unchanged, over all instances, whatever their number, clocks, pauses and crashes:
// nothing is let through that Redis hasn't counted beforehand. There are two modes.
//
// Lease, the default: an instance takes a block of units from Redis in one call and spends it from
// memory. Redis charges them as if they were used at the end of the hold ([WithHold]), and the holder counts
// its hold from before it asked: so each unit is counted from no later than its use until a Window
// after it. A block is as large as this instance's own recent use of that subject, and never more than
// what remains divided by twice the number of instances ([WithInstances]); it's taken ahead of need, so
// that a steady caller doesn't wait. A subject that is asked for less than four times a hold, or has little left, is
// asked for in Redis call by call, and so is one of more than 512 bytes. Units unused at the hold's end are given back, on [Store.Close] too.
//
// What is paid: a unit is counted for up to a hold longer than by the global limiter alone, and
// what a block still holds is kept from other instances, for no longer than the hold: at most 1/2 of what remained when it
// was taken, of all instances together. The units of an instance that is lost stay
// counted until their Window ends; so do those whose return fails, for it's not tried twice. Clocks
// may run fast or slow by 1 %. A process that is stopped holds its block past the end but
// doesn't spend it, as long as the operating system's monotonic clock goes on meanwhile.
//
// Share: see [WithShare].
//
// A Decision from memory says Source Lease (or Ring, under Share), and its Remaining is what is left of the
// block and what Redis had left when last asked. Refund gives back to the block what was spent of it, and beyond that
// the oldest units counted, since newer ones may be held and not yet used. Reset forgets
// this instance's block; those of others can still be spent, or given back, until their hold ends.
// When Redis fails a block is spent until its hold ends, then the failure rule of the store decides.
//
// It fails with ErrInvalidClient if global isn't such a limiter, and ErrInvalidOption. The tier belongs to
// the limiter's Store and ends with it: make one a policy, not one a request.
func NewTwoTier(global Limiter, opts ...TierOption) (Limiter, error) {
	g, ok := global.(*redisLimiter)
	if !ok || g == nil {
		return nil, fmt.Errorf("%w: NewTwoTier needs a limiter that counts in Redis, not %T", ErrInvalidClient, global)
	}
	if !g.strategy.leases {
		return nil, fmt.Errorf("%w: NewTwoTier takes limiters of NewFixedWindow, NewSlidingLog and NewSlidingBuckets", ErrInvalidClient)
	}
	var o tierOptions
	for _, opt := range opts {
		if opt == nil {
			continue
		}
		if err := opt.applyTier(&o); err != nil {
			return nil, err
		}
	}
	for _, lim := range g.policy.Limits {
		if o.hold > lim.Window/2 {
			return nil, fmt.Errorf("%w: WithHold: %v is above half of the Window %v", ErrInvalidOption, o.hold, lim.Window)
		}
	}
	t := &twoTier{global: g}
	t.LimiterFunc = t.do
	if o.part > 0 {
		share, err := newShareTier(g, o)
		if err != nil {
			return nil, err
		}
		t.share = share
		return t, nil
	}
	t.lease = newLeaseTier(g, o)
	return t, nil
}

// TierOption changes how [NewTwoTier] sets up its Limiter. Nil options are passed over.
type TierOption interface{ applyTier(*tierOptions) error }

type tierOptionFunc func(*tierOptions) error

func (f tierOptionFunc) applyTier(o *tierOptions) error { return f(o) }

type tierOptions struct {
	hold      time.Duration
	largest   int64
	instances int
	part      float64
}

// WithHold sets for how long a block may be spent: 1 ms to half of the shortest Window. 0
// means the default, 100 ms or a fiftieth of the shortest Window if that is less. Under
// one millisecond nothing is held: windows shorter than 50 ms need a WithHold. The
// blocks of sliding buckets end with their slot as well, those of the fixed window with the window.
func WithHold(d time.Duration) TierOption {
	return tierOptionFunc(func(o *tierOptions) error {
		if d != 0 && d < time.Millisecond {
			return fmt.Errorf("%w: WithHold: %v is below 1ms", ErrInvalidOption, d)
		}
		o.hold = d
		return nil
	})
}

// WithLargestBlock bounds the units of a block. 0 means the default, no bound of
// its own; a negative number is ErrInvalidOption.
func WithLargestBlock(units int64) TierOption {
	return tierOptionFunc(func(o *tierOptions) error {
		if units < 0 {
			return fmt.Errorf("%w: WithLargestBlock: %d is negative", ErrInvalidOption, units)
		}
		o.largest = units
		return nil
	})
}

// WithInstances gives the number of instances of the service, for the size of blocks. 0 means the
// default: found, by a heartbeat in Redis once a second while the limiter is in use. A new instance is
// known to the others after a second, one that is lost after three more, one that closes its
// Store at once; a wrong number costs efficiency, not the promise. Negative numbers are ErrInvalidOption.
func WithInstances(n int) TierOption {
	return tierOptionFunc(func(o *tierOptions) error {
		if n < 0 || n > math.MaxInt32 {
			return fmt.Errorf("%w: WithInstances: %d isn't in 0 to %d", ErrInvalidOption, n, math.MaxInt32)
		}
		o.instances = n
		return nil
	})
}

// twoTier is the Limiter of either mode.
type twoTier struct {
	LimiterFunc
	global *redisLimiter
	lease  *leaseTier // or
	share  *shareTier
}

// Allow is OpAllow with N = 1.
func (t *twoTier) Allow(ctx context.Context, key string) (d Decision, err error) {
	err = t.decide(ctx, Request{Op: OpAllow, Key: key, N: 1}, &d)
	return d, err
}

// AllowN is OpAllow.
func (t *twoTier) AllowN(ctx context.Context, key string, n int64) (d Decision, err error) {
	err = t.decide(ctx, Request{Op: OpAllow, Key: key, N: n}, &d)
	return d, err
}

func (t *twoTier) do(ctx context.Context, r Request) (d Decision, err error) {
	err = t.decide(ctx, r, &d)
	return d, err
}

func (t *twoTier) decide(ctx context.Context, r Request, d *Decision) error {
	store := t.global.store
	if store.opts.observer == nil {
		return t.answer(ctx, r, d)
	}
	began := store.since()
	err := t.answer(ctx, r, d)
	store.observe(t.global.policy.Name, r, d, err, began)
	return err
}

func (t *twoTier) answer(ctx context.Context, r Request, d *Decision) error {
	r, err := r.check(ctx)
	if err != nil {
		return err
	}
	limits, bound, err := t.global.limitsFor(ctx, r.Key)
	if err != nil {
		return err
	}
	if t.share != nil {
		return t.share.answer(ctx, r, limits, d)
	}
	return t.lease.answer(ctx, r, limits, bound, d)
}

// shortest is the shortest window of some limits.
func shortest(limits []Limit) time.Duration {
	return slices.MinFunc(limits, func(a, b Limit) int { return cmp.Compare(a.Window, b.Window) }).Window
}

// fewest is the smallest Units of some limits.
func fewest(limits []Limit) int64 {
	n := limits[0].Units
	for _, lim := range limits {
		n = min(n, lim.Units)
	}
	return n
}
