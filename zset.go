package ration

// NewSlidingLog remembers when each unit was charged, in one sorted set a subject
// and limit.
//
// It promises at most Units in (t−Window, t] for every instant t of the Redis
// server's clock, and refuses no call that could have been let in.
//
// The price is memory: one entry of about 100 bytes an admitted call,
// whatever its cost, until its Window is over. If the server's clock is set back, entries count until a Window
// after the time they were charged at; Reset ends that for a subject.
//
// It fails with ErrInvalidPolicy or ErrInvalidClient, and works with no Redis running.
func NewSlidingLog(s *Store, p Policy) (Limiter, error) {
	return newRedisLimiter(s, p, strategy{
		script: logScript,
		kind:   2,
		code:   func(Policy) string { return "sl1" },
		layout: wholeWindow,
		leases: true,
	})
}
