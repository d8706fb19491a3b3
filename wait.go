package ration

import (
	"context"
	"fmt"
	"time"

	"github.com/rationgo/ration/internal/nils"
)

// Wait asks for n units until they are granted: it sleeps as long as each
// refusal says, asks again, and ends with the context (whose error it gives).
// It lets through exactly what AllowN lets through, so the Decision decides:
//
//	d, err := ration.Wait(ctx, limiter, user, 1)
//	if err != nil || !d.Allowed {
//		return // not admitted
//	}
//
// A call that can't succeed before the context's deadline, or never, is
// refused at once with a nil error, so that the caller can do something else in the meantime.
// An error of the limiter ends the wait. Waiting charges nothing, and a
// waiter that leaves has charged nothing. Waiters are not queued: those woken at one instant compete.
//
// Under a limiter of [NewTokenBucket] with one limit, itself and not wrapped in another, they are: each call reserves its
// units in Redis, in one round trip, and sleeps until its own turn. Turns go by the order in which the calls
// reach Redis, and with a Burst of 1 they are evenly spaced over all instances, to the microsecond: a leaky bucket. The
// wait is as long as the context allows (without a deadline MaxWindow); a turn beyond that is refused at once. The turn of a
// waiter that leaves is given back if nobody has reserved behind it and Redis hears of it in time, else it lapses. Turns
// once given stay, also under new numbers: nobody else gets in before the last of them. A Reset forgets them: who comes
// then gets in beside the waiters. The observer hears of a turn when it's reserved. While Redis is
// away and the store's failure rule isn't FailError, the rule decides and waiters compete as above.
func Wait(ctx context.Context, l Limiter, key string, n int64) (Decision, error) {
	if nils.Is(l) {
		return Decision{}, fmt.Errorf("%w: Wait needs a limiter, not nil", ErrInvalidClient)
	}
	if rl, ok := l.(*redisLimiter); ok && rl.strategy.refills && n > 0 && n <= MaxUnits {
		if d, done, err := rl.waitTurn(ctx, Request{Op: OpAllow, Key: key, N: n}); done {
			return d, err
		}
	}
	for {
		d, err := l.AllowN(ctx, key, n)
		if err != nil || d.Allowed || d.RetryAfter == Never || n == 0 {
			return d, err
		}
		// A limiter that isn't ours may name no time; don't spin on it.
		pause := max(d.RetryAfter, time.Millisecond)
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < pause {
			return d, nil
		}
		if err := sleep(ctx, pause); err != nil {
			return Decision{}, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
