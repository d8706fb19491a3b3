package ration

import "time"

// NewTokenBucket gives each subject a bucket of tokens, a unit each: Burst of them at most (0 means
// Units), which come back one by one at an even pace, Units in a Window. It's the
// generic cell rate algorithm (ITU-T I.371), in whole numbers only, so no rate drifts: 3 in
// 10 s, 1 in a year and 3,000,000 in a second are exact.
//
// It promises at most Burst + Units·t/Window in every span of length t by the Redis server's clock, rounded
// down, and refuses nothing that this allows. With a Burst of Units up to 2·Units can so pass
// in some Window; a Burst of 1 lets calls through at even distances only, and [Wait]
// gives each waiter a turn of its own.
//
// New Units and a new Burst act at once, on the tokens that are out, which are all back no later than they would
// have been under the numbers of their charge. While waiters have turns ahead ([Wait]) Refund gives nothing
// back. RetryAfter is when the call fits, ResetAfter when the bucket is full. A Burst that takes longer than MaxWindow to come
// back is ErrInvalidPolicy.
//
// It takes one string of about 60 bytes a subject and limit, gone when the bucket is full. If
// the server's clock is set back, nothing comes back until it has caught up; Reset ends that
// for a subject. [NewTwoTier] doesn't take it: a block leased from a bucket would be given out again while it's
// being spent. By FailLocal each of the instances has Burst/instances, rounded down but at least 1, in
// the time these take to come back at its share of the rate.
//
// It fails with ErrInvalidPolicy or ErrInvalidClient, and works with no Redis running.
func NewTokenBucket(s *Store, p Policy) (Limiter, error) {
	return newRedisLimiter(s, p, strategy{
		script:  tokenScript,
		kind:    4,
		code:    func(Policy) string { return "tb1" },
		layout:  wholeWindow,
		refills: true,
		local:   bucketShare,
	})
}

// bucketShare is a window as long as an instance's part of a bucket takes to come back.
func bucketShare(lim Limit, instances int64) Limit {
	share := Limit{Name: lim.Name, Window: lim.Window}
	if lim.Units > 0 {
		share.Units = max(1, lim.size()/instances)
		window := mulDivUp(share.Units*instances, lim.micros(), lim.Units)
		window = max(MinWindow.Microseconds(), min(window, MaxWindow.Microseconds()))
		share.Window = time.Duration(window) * time.Microsecond
	}
	return share
}

// evenShare is the same Window with a part of the units.
func evenShare(lim Limit, instances int64) Limit {
	if lim.Units > 0 {
		lim.Units = max(1, lim.Units/instances)
	}
	return lim
}
