package ration

import (
	"context"
	"time"
)

// Reservation is a turn of a token bucket, as Wait has it.
type Reservation struct {
	Decision Decision
	Pause    time.Duration

	limiter *redisLimiter
	request Request
	bound   []boundLimit
	turn    int64
}

// Reserve takes a turn that comes within so long.
func Reserve(ctx context.Context, l Limiter, key string, n int64, longest time.Duration) (*Reservation, error) {
	rl, r := l.(*redisLimiter), Request{Op: OpAllow, Key: key, N: n}
	limits, bound, err := rl.limitsFor(ctx, key)
	if err != nil {
		return nil, err
	}
	res, err := rl.reserve(ctx, r, limits, bound, longest)
	if err != nil {
		return nil, err
	}
	return &Reservation{Decision: res.d, Pause: res.pause, limiter: rl, request: r, bound: bound, turn: res.turn}, nil
}

// Cancel gives it back.
func (r *Reservation) Cancel(ctx context.Context) (int64, error) {
	return r.limiter.cancel(ctx, r.request.Key, r.bound, r.request.N, r.turn)
}
