package ration

// NewSlidingCounter counts two windows of the Unix grid: the current one whole, and the one
// before it by the share of it that lies within a Window before now, as if its units had been charged
// evenly. Of 50 units of the last minute 45 count 6 seconds into this one.
//
// It promises at most Units in each window of the grid, as [NewFixedWindow] does, and in any
// span of a Window at most 2·Units − ⌈2·Units/w⌉, where w is the Window in microseconds: 2·Units − 1 unless
// Units are more than half of w. That worst case needs all Units at the very end of a window, and
// as many at the very end of the next. Traffic that comes evenly is held to the limit; where the bound
// must hold for bursts use [NewSlidingLog] or [NewSlidingBuckets]. It may also refuse, by the
// same guess, what the log would let in. A share is rounded up to a whole unit, never down: so a
// caller that never stops asking gets Units − 1 in each window (with 1 unit, one in every other).
//
// It's the cheapest sliding window: one string of 15 to 50 bytes a subject and limit, whatever
// is admitted, gone a Window after the window that it was last charged in. [Limiter].Refund
// gives units back as they were charged, those of the current window first; of the window before
// all can still be given back, though they count in part, MaxUnits at most by a call. If the server's clock is set back, the latest
// window seen stays the current one until the clock has caught up with it; Reset
// ends that for a subject.
//
// [NewTwoTier] has no leases from it. It fails with ErrInvalidPolicy or ErrInvalidClient,
// and works with no Redis running.
func NewSlidingCounter(s *Store, p Policy) (Limiter, error) {
	return newRedisLimiter(s, p, strategy{
		script: counterScript,
		kind:   5,
		code:   func(Policy) string { return "sc1" },
		layout: wholeWindow,
	})
}
