package ration

import "strconv"

// NewSlidingBuckets counts in slots of Window/Slots (rounded up to a whole microsecond) on
// the Unix grid, one small string a slot, and holds the current slot and the Slots
// before it against the limit, whole.
//
// It promises at most Units in every span of a Window, by the Redis server's clock.
// (Counting only the last Slots slots, as is often done, covers a slot less
// than the Window and lets up to 2·Units through.) The price is that a unit is
// held for up to one slot longer than a Window.
//
// It takes at most Slots+1 strings of about 30 bytes a subject and limit,
// however many calls are admitted. If the server's clock is set back, the latest slot seen stays
// the current one until the clock has caught up with it; Reset ends that for a subject.
//
// It fails with ErrInvalidPolicy or ErrInvalidClient, and works with no Redis running.
func NewSlidingBuckets(s *Store, p Policy) (Limiter, error) {
	return newRedisLimiter(s, p, strategy{
		script:  bucketsScript,
		kind:    3,
		code:    func(p Policy) string { return "sb1." + strconv.FormatInt(p.slots(), 10) },
		layout:  slottedWindow,
		slotted: true,
		leases:  true,
	})
}

// slottedWindow cuts a window into slots that together are no shorter than it.
func slottedWindow(p Policy, window int64) (width, keys int64) {
	slots := p.slots()
	return (window + slots - 1) / slots, slots + 1
}
