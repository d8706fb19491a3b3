package ration

// NewFixedWindow counts in windows that lie on the Unix grid: window k is
// [k·Window, (k+1)·Window) by the Redis server's clock.
//
// It promises at most Units in each such window. So up to 2·Units can pass in
// some span as long as a Window, a full budget just before a turn and another just
// after; where that matters use [NewSlidingLog] or [NewSlidingBuckets].
//
// It's the cheapest strategy: one string of about 30 bytes a subject and limit, gone
// with its window. If the server's clock is set back, the latest window seen stays the
// current one until the clock has caught up with it; Reset ends that for a subject.
//
// It fails with ErrInvalidPolicy or ErrInvalidClient, and works with no Redis running.
func NewFixedWindow(s *Store, p Policy) (Limiter, error) {
	return newRedisLimiter(s, p, strategy{
		script: fixedScript,
		kind:   1,
		code:   func(Policy) string { return "fw1" },
		layout: wholeWindow,
		leases: true,
	})
}

// wholeWindow is the layout of strategies with one key a limit.
func wholeWindow(_ Policy, window int64) (width, keys int64) { return window, 1 }
