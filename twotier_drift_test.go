package ration_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/fakeredis"
	"github.com/rationgo/ration/internal/model"
)

// tierTest is a Redis in a bubble, and two tiers on it.
type tierTest struct {
	*testing.T
	server *fakeredis.Server
}

// inTierBubble runs a test in a bubble, at a turn of a second.
func inTierBubble(t *testing.T, f func(*tierTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		tt := &tierTest{T: t, server: fakeredis.Synctest()}
		t.Cleanup(tt.server.Close)
		f(tt)
	})
}

// pass moves the clock of the bubble it's called in: no time goes by outside. It's no way to wait for
// something to happen.
func pass(d time.Duration) { time.Sleep(d) }

// tierInstance is a process with a two-tier limiter and its own way to Redis.
type tierInstance struct {
	ration.Limiter
	global  ration.Limiter
	store   *ration.Store
	net     *simNet
	outage  atomic.Int32 // a simOutage
	started time.Time
}

// instance starts one whose clock has a rate. It must be closed.
func (tt *tierTest) instance(strategy string, p ration.Policy, rate float64, opts []ration.Option, tier ...ration.TierOption) *tierInstance {
	tt.Helper()
	in := &tierInstance{started: time.Now()}
	in.net = &simNet{latency: 100 * time.Microsecond, gate: new(simGate), ran: func([]any, any) {}, rng: rand.New(rand.NewPCG(1, 2)),
		outage: func() simOutage { return simOutage(in.outage.Load()) }}
	rdb := tt.server.Client()
	rdb.AddHook(in.net)
	tt.Cleanup(func() { rdb.Close() })
	store, err := ration.Open(rdb, opts...)
	require.NoError(tt, err)
	tt.Cleanup(func() { store.Close() })
	store.SetClock(func() time.Duration { return time.Duration(float64(time.Since(in.started)) * rate) })
	in.store = store
	in.global, err = strategies[strategy](store, p)
	require.NoError(tt, err)
	in.Limiter, err = ration.NewTwoTier(in.global, tier...)
	require.NoError(tt, err)
	return in
}

// warm asks for single units, a millisecond apart, until a block is held that is spent from.
func (in *tierInstance) warm(tt *tierTest, used func()) {
	tt.Helper()
	for range 1000 {
		if d := must(in.Allow(ctx, "u")); d.Allowed {
			used()
		}
		if units, _ := ration.Held(in.Limiter, "u"); units > 3 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	tt.Fatal("no block came")
}

// TestSlowClockSpendsNothingLate has an instance whose clock and timers are 1 % slow spend its block at the
// last moment, and another take all that is free from then on.
func TestSlowClockSpendsNothingLate(t *testing.T) {
	for strategy, of := range modelOf {
		t.Run(strategy, func(t *testing.T) {
			inTierBubble(t, func(tt *tierTest) {
				const window = 10 * time.Second
				p := ration.Policy{Name: "p", Slots: 2, Limits: []ration.Limit{ration.Per(1000, window)}}
				tier := []ration.TierOption{ration.WithHold(window / 2), ration.WithInstances(1)}
				time.Sleep(window * 7 / 10) // the hold ends with the window of the grid
				slow := tt.instance(strategy, p, 0.99, nil, tier...)
				other := tt.instance(strategy, p, 1, nil, tier...)
				trail := model.NewTrail(of, window)
				use := func(n int64) { trail.Use(time.Now().UnixMicro(), n, 1000) }
				slow.warm(tt, func() { use(1) })
				ration.BlockTimers(slow.Limiter, func(_ time.Duration, timer *time.Timer) { timer.Stop() })
				units, left := ration.Held(slow.Limiter, "u")
				time.Sleep(time.Duration(float64(left)/0.99) - time.Microsecond)
				late, err := slow.AllowUpTo(ctx, "u", units)
				require.NoError(t, err)
				require.EqualValues(t, ration.Lease, late.Source, "the block wasn't spent: nothing is tested")
				use(late.Granted)
				for range 300 {
					d, err := other.global.AllowUpTo(ctx, "u", 1000)
					require.NoError(t, err)
					use(d.Granted)
					time.Sleep(window / 200)
				}
				require.NoError(t, trail.Check())
				require.Greater(t, trail.Units(0, 1<<62), int64(1500), "the other was let through nothing")
			})
		})
	}
}
