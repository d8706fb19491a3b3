package ration

import (
	"context"
	"time"
)

// What the tests outside of the package need of a limiter's inside. Each of these makes
// its call on a limiter in Redis.

// Leases says whether NewTwoTier takes the limiter.
func Leases(l Limiter) bool { return l.(*redisLimiter).strategy.leases }

// LeaseUnits is lease.
func LeaseUnits(ctx context.Context, l Limiter, key string, want, share int64, hold time.Duration) (units int64, term time.Duration, end int64, err error) {
	r := l.(*redisLimiter)
	limits, bound, err := r.limitsFor(ctx, key)
	if err != nil {
		return 0, 0, 0, err
	}
	lease, err := r.lease(ctx, key, limits, bound, want, share, hold)
	return lease.units, lease.term, lease.end, err
}

// GiveBackUnits is giveBack.
func GiveBackUnits(ctx context.Context, l Limiter, key string, units, end int64) (int64, error) {
	r := l.(*redisLimiter)
	_, bound, err := r.limitsFor(ctx, key)
	if err != nil {
		return 0, err
	}
	return r.giveBack(ctx, key, bound, units, end)
}

// ShedUnits is shed.
func ShedUnits(ctx context.Context, l Limiter, key string, n int64) (Decision, error) {
	r := l.(*redisLimiter)
	limits, bound, err := r.limitsFor(ctx, key)
	if err != nil {
		return Decision{}, err
	}
	var d Decision
	err = r.shed(ctx, key, limits, bound, n, &d)
	return d, err
}

// LeaseReply is LeaseUnits with all the script says, as the decision of an AllowUpTo.
func LeaseReply(ctx context.Context, l Limiter, key string, want, share, hold int64) (d Decision, term, end int64, err error) {
	r := l.(*redisLimiter)
	limits, bound, err := r.limitsFor(ctx, key)
	if err != nil {
		return d, 0, 0, err
	}
	it, err := r.askAlone(ctx, opLease, key, bound, want, &lending{hold: hold, share: share})
	if err != nil {
		return d, 0, 0, err
	}
	last := len(it.reply) - 2
	term, end = it.reply[last], it.reply[last+1]
	it.reply = it.reply[:last]
	d.fill(Request{Op: OpAllowUpTo, Key: key, N: want}, limits, it, 0)
	return d, term, end, nil
}

// GiveBackReply is GiveBackUnits with all the script says, as the decision of a Refund.
func GiveBackReply(ctx context.Context, l Limiter, key string, units, end int64) (d Decision, err error) {
	r := l.(*redisLimiter)
	limits, bound, err := r.limitsFor(ctx, key)
	if err != nil {
		return d, err
	}
	it, err := r.askAlone(ctx, opGiveBack, key, bound, units, &lending{end: end})
	if err != nil {
		return d, err
	}
	d.fill(Request{Op: OpRefund, Key: key, N: units}, limits, it, 0)
	return d, nil
}

// Observers is who hears of a store.
func Observers(s *Store) Observer { return s.opts.observer }

// ScriptPart is one file of scripts/, without its ending.
func ScriptPart(name string) string { return string(scriptFile(name)) }
