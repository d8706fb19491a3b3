// Package ration limits rates over all instances of a service: they share
// limits such as "5 logins a minute per user" through one Redis, ask before
// they do work, and get an exact answer with what remains and when to come back.
//
//	store, err := ration.Open(rdb)
//	login, err := ration.NewSlidingLog(store, ration.Policy{
//		Name:   "login",
//		Limits: []ration.Limit{ration.PerMinute(5), ration.PerDay(100)},
//	})
//	…
//	d, err := login.Allow(ctx, user)
//	switch {
//	case err != nil:
//		// a mistake in the call, or no answer from Redis: errors.Is(err, ration.ErrUnavailable)
//	case !d.Allowed:
//		// refused: the same call succeeds after d.RetryAfter
//	}
//
// # Strategies
//
// [NewFixedWindow], [NewSlidingLog], [NewCompactLog], [NewSlidingBuckets], [NewSlidingCounter] and [NewTokenBucket] count in
// Redis and differ in what they promise and cost; [NewLocal] counts in this process,
// without Redis. [Combine] makes one limiter of several strategies, [NewThreeColor] of two token buckets one that tells
// what is beyond the committed rate. [NewTwoTier] puts a tier in this process in front of a fixed window, a sliding log or
// sliding buckets. [NewShadow] tries a limit without enforcing it, and [NewCompare] two limiters on the same
// traffic. All are a [Limiter]. What each promises stands in its doc comment as
// a number, and the tests hold it against a slow, obvious model.
//
// [NewConcurrency] bounds what is in flight at once instead: a [Permit] is held until it's released, by a lease in
// Redis that is renewed meanwhile, so that a crashed holder's units come back.
//
// # The road of a call
//
// A call comes in by one of the Limiter's methods, each a [Request] for one
// function (redislimiter.go). There it's checked (limiter.go), its limits are
// found (policy.go), a refusal that's remembered answers it (denycache.go), or its keys
// are built (keys.go). As an item, alone or merged
// with equal calls, it waits (call.go) in the lane of its server (lanes.go) for the next run
// (batch.go): at once if the lane is free, else as soon as a run returns. A run is one EVALSHA of the
// strategy's script for all its items, or a pipeline of some (run.go, script.go). The
// script is the prelude, the strategy's own part and a driver that answers a
// list of items as if they had come one after another (scripts/). The reply is
// decoded with checks (item.go), and each call makes its [Decision] of its share
// (redislimiter.go); what isn't a sound reply becomes ErrUnavailable (failure.go).
//
// How a run went is told to the lane's breaker (breaker.go), which keeps calls from a
// server that fails. What a call gets then is up to the failure rule (onfailure.go). An
// [Observer] hears of it all (observer.go), such as one that logs (slogobserver.go).
//
// With two tiers (twotier.go) a call is first for what this process holds of its
// subject: a block of units (leasetier.go, block.go), which Redis charged when it was taken
// (lease.go), or a share on a ring (sharetier.go). What they don't have is
// asked for on the road above. The instances count each other by a heartbeat (heartbeat.go).
//
// A combined limiter (combine.go) asks with the limits of its parts, by a script that has all strategies in it. A
// waiter under a token bucket reserves its turn on the same road (reserve.go), and a permit's lease
// is an item there too (concurrency.go, permit.go).
//
// The time is the Redis server's, in whole microseconds, taken inside the
// script; the clocks of the instances decide nothing.
//
// # At most once
//
// A call is charged once or not at all, whatever happens to the connection:
// commands are never resent, but for NOSCRIPT, which proves that nothing ran.
//
// # Personal data
//
// The subject is part of the Redis key, readable up to 128 bytes, and as a SHA-256
// digest beyond. It's in no error of this package.
package ration
