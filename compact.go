package ration

// NewCompactLog is [NewSlidingLog] in about a tenth of its memory and two thirds of its
// server time: it makes the same promise and gives the same answers, to the microsecond.
//
// It promises at most Units in (t−Window, t] for every instant t of the Redis
// server's clock, and refuses no call that could have been let in.
//
// It remembers an admitted call in 8 bytes, with what is kept free for those to come 8 to 13, until
// its Window is over, in one string a subject and limit. A call of a cost other than 1 to 15 takes 8 bytes for
// each digit but 0 of its cost in base 16: 14 times 8 bytes at most. Alone in its key an entry
// takes about as much as the sliding log's.
//
// A call's time on the server hardly grows with the log, but for these: every time the log has grown by a
// quarter it's copied (3,000 calls in some µs, a million in some ms); the waiting time of a refused cost
// above 1, and what remains after many entries have ended at once, are summed up entry by entry
// unless all calls cost 1. If the server's clock is set back, entries count until a Window
// after the time they were charged at, and a call until the clock has caught up moves
// the later ones; Reset ends that for a subject.
//
// [NewTwoTier] doesn't take it, since it can't charge units as used later: that takes NewSlidingLog. So does
// looking into a log with redis-cli: its entries here are bytes, not text.
//
// It fails with ErrInvalidPolicy or ErrInvalidClient, and works with no Redis running.
func NewCompactLog(s *Store, p Policy) (Limiter, error) {
	return newRedisLimiter(s, p, strategy{
		script: compactScript,
		kind:   6,
		code:   func(Policy) string { return "cl1" },
		layout: wholeWindow,
	})
}
