package ration

import (
	"context"
	"time"
)

// A waiter under token buckets reserves its units in Redis and sleeps until they fit: its turn is
// its own, and the next one's is behind it. Under several limits a unit reserved for one would
// come back to the others before it's used, so there waiters ask again and again.

// reservation is units that are charged already, to be used when they fit.
type reservation struct {
	d     Decision // refused if that's after too long
	pause time.Duration
	turn  int64 // server time in microseconds
}

// waitTurn is Wait under token buckets. It's not done where Redis gave no answer and the failure
// rule has one, or the policy has several limits.
func (l *redisLimiter) waitTurn(ctx context.Context, r Request) (d Decision, done bool, err error) {
	if _, err := r.check(ctx); err != nil {
		return d, false, nil // AllowN tells of it
	}
	limits, bound, err := l.limitsFor(ctx, r.Key)
	if err != nil || len(limits) > 1 {
		return d, false, nil
	}
	longest := MaxWindow
	deadline, ends := ctx.Deadline()
	if ends {
		longest = time.Until(deadline)
	}
	began := l.store.since()
	res, err := l.reserveOrLeave(ctx, r, limits, bound, longest)
	if err != nil {
		err = l.store.overdue(ctx, err, began)
	}
	if _, failed := err.(*backendError); failed && l.store.opts.onFailure != FailError {
		err = l.fail(r, limits, bound, err, &d)
		done = err != nil || d.Allowed || d.RetryAfter == Never || ctx.Err() != nil
	} else {
		d, done = res.d, true
	}
	late := res.pause > 0 && ends && time.Until(deadline) < res.pause // by the time the answer took
	if late {
		d = Decision{Limit: d.Limit, RetryAfter: res.pause, ResetAfter: d.ResetAfter, Source: d.Source}
	}
	if l.store.opts.observer != nil {
		l.store.observe(l.policy.Name, r, &d, err, began)
	}
	if res.pause > 0 && !late {
		err = sleep(ctx, res.pause)
		late = err != nil
		d.ResetAfter = max(0, d.ResetAfter-res.pause)
	}
	if late {
		l.store.start(func() { l.leave(ctx, r, bound, res) })
	}
	if err != nil {
		d = Decision{}
	}
	return d, done, err
}

// reserveOrLeave is reserve that ends with ctx at once, and then gives back what comes of it.
func (l *redisLimiter) reserveOrLeave(ctx context.Context, r Request, limits []Limit, bound []boundLimit, longest time.Duration) (reservation, error) {
	if ctx.Done() == nil {
		return l.reserve(ctx, r, limits, bound, longest)
	}
	type answer struct {
		reservation
		err error
	}
	answers := make(chan answer)
	if !l.store.start(func() {
		res, err := l.reserve(context.WithoutCancel(ctx), r, limits, bound, longest)
		select {
		case answers <- answer{res, err}:
		case <-ctx.Done():
			if res.pause > 0 {
				l.leave(ctx, r, bound, res)
			}
		}
	}) {
		return reservation{}, ErrClosed
	}
	select {
	case a := <-answers:
		return a.reservation, a.err
	case <-ctx.Done():
		return reservation{}, ctx.Err()
	}
}

// leave gives a turn back as well as it can: a failure costs the units of this one turn, which come
// back like all others.
func (l *redisLimiter) leave(ctx context.Context, r Request, bound []boundLimit, res reservation) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.store.opts.timeout)
	defer cancel()
	_, _ = l.cancel(ctx, r.Key, bound, r.N, res.turn)
	l.store.forgive(r.Key)
}

// reserve charges units that fit within so long.
func (l *redisLimiter) reserve(ctx context.Context, r Request, limits []Limit, bound []boundLimit, longest time.Duration) (reservation, error) {
	it, err := l.askAlone(ctx, opReserve, r.Key, bound, r.N, &lending{hold: luaMicros(longest)})
	if err != nil {
		return reservation{}, err
	}
	now := it.reply[len(it.reply)-1]
	it.reply = it.reply[:len(it.reply)-1]
	var res reservation
	if res.d.fill(r, limits, it, 0); res.d.Allowed {
		pause := it.limitReply(0)[1]
		res.pause, res.turn = micros(pause), now+pause
	}
	return res, nil
}

// cancel gives a reservation back, but not where others have reserved behind it: their turns
// stay. It returns how many units came back, by the limit that had most.
func (l *redisLimiter) cancel(ctx context.Context, key string, bound []boundLimit, n, turn int64) (int64, error) {
	it, err := l.askAlone(ctx, opCancel, key, bound, n, &lending{end: turn})
	if err != nil {
		return 0, err
	}
	return it.reply[0], nil
}
