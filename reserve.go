package ration

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// A waiter under token buckets reserves its units in Redis and sleeps until they fit: its turn is
// its own, and the next one's is behind it.

// waitTurn is Wait under token buckets. asked is false where Redis gave no answer and the
// failure rule may: then the polling Wait goes on.
func (l *redisLimiter) waitTurn(ctx context.Context, r Request) (d Decision, asked bool, err error) {
	r, err = r.check(ctx)
	if err != nil {
		return Decision{}, true, err
	}
	limits, bound, err := l.limitsFor(ctx, r.Key)
	if err != nil {
		return Decision{}, true, err
	}
	longest := MaxWindow
	deadline, ends := ctx.Deadline()
	if ends {
		longest = min(longest, time.Until(deadline))
	}
	it, err := l.askAlone(ctx, opReserve, r.Key, bound, r.N, &lending{hold: luaMicros(longest)})
	if _, failed := err.(*backendError); failed {
		return Decision{}, l.store.opts.onFailure == FailError, err
	}
	if err != nil {
		return Decision{}, true, err
	}
	now := it.reply[len(it.reply)-1]
	it.reply = it.reply[:len(it.reply)-1]
	pause := time.Duration(0)
	var turns strings.Builder
	for i := range limits {
		turn := it.limitReply(i)[1]
		pause = max(pause, micros(turn))
		turns.WriteString(strconv.FormatInt(now+turn, 10) + ",")
	}
	d.fill(r, limits, it, 0)
	if !d.Allowed || pause == 0 {
		return d, true, nil
	}
	leave := func() { l.cancel(ctx, r, bound, turns.String()) }
	if ends && time.Until(deadline) < pause { // by the time the answer took
		leave()
		return Decision{Limit: d.Limit, RetryAfter: pause, ResetAfter: d.ResetAfter, Source: d.Source}, true, nil
	}
	if err := sleep(ctx, pause); err != nil {
		leave()
		return Decision{}, true, err
	}
	d.ResetAfter = max(0, d.ResetAfter-pause)
	return d, true, nil
}

// cancel gives a reservation back for which the caller no longer waits, as well as it can: what
// others have reserved behind stays as it is.
func (l *redisLimiter) cancel(ctx context.Context, r Request, bound []boundLimit, turns string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.store.opts.timeout)
	defer cancel()
	// A failure costs the units of this one turn, which come back like all others.
	_, _ = l.askAlone(ctx, opCancel, r.Key, bound, r.N, &lending{turns: turns})
}
