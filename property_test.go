package ration_test

import (
	"context"
	"flag"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/fakeredis"
	"github.com/rationgo/ration/internal/model"
	"github.com/rationgo/ration/internal/redistest"
)

// RATION_CHECKS is the number of random histories per property, like
// -rapid.checks, which goes before it. A failure names its seed.
func init() {
	if n := os.Getenv("RATION_CHECKS"); n != "" {
		if err := flag.Set("rapid.checks", n); err != nil {
			panic("RATION_CHECKS: " + err.Error())
		}
	}
}

// playWorld is a place where random histories are played.
type playWorld struct {
	name     string
	strategy model.Strategy
	source   ration.Source
	leases   bool // it's leased from, too
	setTime  func(time.Time)
	limiter  func(ration.Policy) (ration.Limiter, error)
	store    *ration.Store // of combined limiters
	clean    func()        // forgets what the last history left behind
	back     bool          // the clock is set back, too

	// clock, if set, makes the rule by which a backend takes a clock that is set back.
	clock func(ration.Policy) *standingClock
}

// playStrategies are the Redis strategies under their names, each with what it has to answer.
var playStrategies = map[string]playStrategy{
	"fixed":   {model: model.FixedWindow, limiter: ration.NewFixedWindow},
	"log":     {model: model.SlidingLog, limiter: ration.NewSlidingLog},
	"buckets": {model: model.SlidingBuckets, limiter: ration.NewSlidingBuckets},
	"compact": {model: model.SlidingLog, limiter: ration.NewCompactLog, unleased: true},
	"counter": {model: model.SlidingCounter, limiter: ration.NewSlidingCounter},
	"token":   {model: model.TokenBucket, limiter: ration.NewTokenBucket},
	"mixed":   {model: model.Mixed}, // limits of different strategies, combined
}

type playStrategy struct {
	model    model.Strategy
	limiter  func(*ration.Store, ration.Policy) (ration.Limiter, error)
	unleased bool // nobody leases from it, though the model could
}

func (st playStrategy) leases() bool { return st.model.Leases() && !st.unleased }

// TestPropertyFakeRedis plays random histories on a Redis in memory,
// which is much slower than a real one.
func TestPropertyFakeRedis(t *testing.T) {
	start := func(start func(time.Time) (*fakeredis.Server, error)) func(*testing.T) {
		return func(t *testing.T) {
			t.Parallel()
			srv, err := start(time.Unix(1e9, 0))
			require.NoError(t, err)
			t.Cleanup(srv.Close)
			rdb := srv.Client()
			t.Cleanup(func() { rdb.Close() })
			playAll(t, rdb, srv.SetTime, oneIn(3))
		}
	}
	t.Run("keys expire", start(fakeredis.Start))
	t.Run("keys stay", start(fakeredis.StartWithoutTTL))
}

// TestPropertyRealRedis plays random histories on a redis-server.
func TestPropertyRealRedis(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.WithClock(time.Unix(1e9, 0)))
	playAll(t, srv.Client(t), srv.SetTime, func(prop func(*rapid.T)) func(*rapid.T) { return prop })
}

// playAll plays all properties of all strategies on one server.
func playAll(t *testing.T, rdb *redis.Client, setTime func(time.Time), some func(func(*rapid.T)) func(*rapid.T)) {
	store, err := ration.Open(rdb, ration.WithTimeout(time.Minute))
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	for name, st := range playStrategies {
		for _, back := range []bool{false, true} {
			w := playWorld{
				name:     name,
				strategy: st.model,
				source:   ration.Redis,
				leases:   st.leases(),
				setTime:  setTime,
				store:    store,
				limiter:  func(p ration.Policy) (ration.Limiter, error) { return st.limiter(store, p) },
				clean:    func() { require.NoError(t, rdb.FlushAll(context.Background()).Err()) },
				back:     back,
			}
			t.Run(w.title(), func(t *testing.T) { rapid.Check(t, some(w.play)) })
		}
	}
}

func (w playWorld) title() string {
	if w.back {
		return w.name + ", clock set back"
	}
	return w.name
}

// oneIn plays one history in n and lets the others pass, until one has failed:
// rapid then wants to play it again and again to find the shortest.
func oneIn(n int64) func(prop func(*rapid.T)) func(*rapid.T) {
	return func(prop func(*rapid.T)) func(*rapid.T) {
		var count atomic.Int64
		var failed atomic.Bool
		return func(t *rapid.T) {
			if !failed.Load() && count.Add(1)%n != 0 {
				return
			}
			done := false
			defer func() {
				if !done || t.Failed() {
					failed.Store(true)
				}
			}()
			prop(t)
			done = true
		}
	}
}

// play plays one random history: after every call the answer is the model's,
// to the unit and the microsecond, and no promise is broken.
func (w playWorld) play(t *rapid.T) {
	defer w.clean()
	h := newHistory(t, w)
	actions := map[string]func(*rapid.T){
		"call":       h.call,
		"call again": h.call,
		"crowd":      h.crowd,
		"use up":     h.useUp,
		"move":       h.move,
		"move again": h.move,
		"remaining":  h.checkRemaining,
		"retry":      h.checkRetryAfter,
		"reset":      h.checkResetAfter,
	}
	if w.leases {
		actions["lease"] = h.lease
		actions["give back"] = h.giveBack
		actions["shed"] = h.shed
	}
	if h.dynamic {
		actions["limits"] = h.changeLimits
	}
	if w.back {
		actions["back"] = h.moveBack
	}
	t.Repeat(actions)
}
