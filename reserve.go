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
	r, err = r.check(ctx)
	if err != nil {
		return d, true, err
	}
	limits, bound, err := l.limitsFor(ctx, r.Key)
	if err != nil || len(limits) > 1 {
		return d, err != nil, err
	}
	longest := MaxWindow
	deadline, ends := ctx.Deadline()
	if ends {
		longest = time.Until(deadline)
	}
	began := l.store.since()
	res, err := l.reserve(ctx, r, limits, bound, longest)
	if _, failed := err.(*backendError); failed && l.store.opts.onFailure != FailError {
		return d, false, nil
	}
	late := res.pause > 0 && ends && time.Until(deadline) < res.pause // by the time the answer took
	if d = res.d; late {
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
		// A failure costs the units of this one turn, which come back like all others.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.store.opts.timeout)
		defer cancel()
		_, _ = l.cancel(ctx, r.Key, bound, r.N, res.turn)
	}
	if err != nil {
		d = Decision{}
	}
	return d, true, err
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
