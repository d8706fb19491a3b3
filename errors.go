package ration

import "errors"

// The errors callers match with errors.Is. A subject's name is in none of them.
//
//	d, err := limiter.Allow(ctx, user)
//	switch {
//	case errors.Is(err, ration.ErrUnavailable): // no answer: decide for yourself
//	case err != nil:                            // a mistake in the call, or ctx ended
//	case !d.Allowed:                            // refused; try again after d.RetryAfter
//	}
var (
	// ErrInvalidPolicy is a policy, or what its LimitsFor gave, that can't be
	// kept: a bad name, no limit or too many, a bad number.
	ErrInvalidPolicy = errors.New("ration: invalid policy")
	// ErrInvalidKey is an empty subject: it would be one budget for all whose
	// identity is missing.
	ErrInvalidKey = errors.New("ration: invalid key")
	// ErrInvalidCost is a negative number of units.
	ErrInvalidCost = errors.New("ration: invalid cost")
	// ErrInvalidOption is an option with a value out of its range.
	ErrInvalidOption = errors.New("ration: invalid option")
	// ErrInvalidClient is a nil client, store or limiter, or a limiter of a kind that a constructor doesn't take.
	ErrInvalidClient = errors.New("ration: invalid client")
	// ErrInvalidRequest is a Request with an unknown Op.
	ErrInvalidRequest = errors.New("ration: invalid request")

	// ErrUnavailable means that Redis gave no usable answer in time; it wraps
	// the cause. The call was charged once or not at all.
	ErrUnavailable = errors.New("ration: no answer from Redis")
	// ErrMisconfigured comes beside ErrUnavailable when Redis refuses for good,
	// until somebody changes its settings: a missing permission, a forbidden or unknown
	// command. Waiting doesn't help.
	ErrMisconfigured = errors.New("ration: Redis refuses the commands needed")
	// ErrPermitLost is why the context of [Concurrency.Do] ended: the lease behind the
	// permit could not be renewed in time.
	ErrPermitLost = errors.New("ration: the permit was lost")
	// ErrClosed is any call after Store.Close.
	ErrClosed = errors.New("ration: store is closed")
)
