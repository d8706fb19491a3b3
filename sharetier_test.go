package ration_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/model"
)

func second(units int64) ration.Policy {
	return ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerSecond(units)}}
}

// place asks until the instance has its place.
func (in *tierInstance) place(tt *tierTest) {
	tt.Helper()
	for range 100 {
		if ration.Placed(in.Limiter) {
			return
		}
		must(in.Allow(ctx, "nobody"))
		pass(time.Millisecond)
	}
	tt.Fatal("no place")
}

// drain takes all that is left.
func (in *tierInstance) drain(tt *tierTest) (n int64) {
	for {
		d, err := in.AllowUpTo(ctx, "u", 7)
		if err != nil || !d.Allowed {
			return n
		}
		n += d.Granted
	}
}

func TestShares(t *testing.T) {
	inTierBubble(t, func(tt *tierTest) {
		tier := []ration.TierOption{ration.WithShare(0.8), ration.WithInstances(4)}
		var all []*tierInstance
		for range 6 { // two more than there are places
			all = append(all, tt.instance("log", minute(1000), 1, nil, tier...))
		}
		placed := 0
		for _, in := range all {
			must(in.Peek(ctx, "u"))
			pass(time.Second / 2)
			if ration.Placed(in.Limiter) {
				placed++
			}
		}
		for _, in := range all[:4] {
			in.place(tt)
		}
		require.Equal(t, 4, placed)
		require.EqualValues(t, 400, must(all[0].Peek(ctx, "u")).Remaining, "its share and the pool")
		require.EqualValues(t, 200, must(all[5].Peek(ctx, "u")).Remaining, "the pool")
		d := must(all[0].Allow(ctx, "u"))
		require.Equal(t, ration.Ring, d.Source)
		require.Equal(t, ration.PerMinute(1000), d.Limit)
		require.EqualValues(t, 400, all[0].drain(tt)+1)
		require.EqualValues(t, 0, all[5].drain(tt))
		total := int64(400)
		for _, in := range all[1:] {
			total += in.drain(tt)
		}
		require.EqualValues(t, 1000, total)
	})
}

// TestPlaceOfALostInstance: another gets it no sooner than a window after its last use. A beat may be on
// its way while the instance is stopped, as must not make it believe that Redis is away.
func TestPlaceOfALostInstance(t *testing.T) {
	for name, stop := range map[string]func(*tierInstance){
		"crash": func(in *tierInstance) { in.net.cut.Store(true) },
		"close": func(in *tierInstance) { in.store.Close() },
		"stop":  func(in *tierInstance) { in.net.gate.close() },
	} {
		t.Run(name, func(t *testing.T) {
			inTierBubble(t, func(tt *tierTest) {
				const window = 5 * time.Second
				p := ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(1000, window)}}
				tier := []ration.TierOption{ration.WithShare(0.5), ration.WithInstances(1)}
				first := tt.instance("log", p, 1, nil, tier...)
				trail := model.NewTrail(model.SlidingLog, window)
				use := func(in *tierInstance) (n int64) {
					n = in.drain(tt)
					trail.Use(time.Now().UnixMicro(), n, 1000)
					return n
				}
				first.place(tt)
				second := tt.instance("log", p, 1, nil, tier...)
				require.EqualValues(t, 1000, use(first))
				began := time.Now()
				pass(1100 * time.Millisecond)
				must(first.Peek(ctx, "u"))
				stop(first)
				for !ration.Placed(second.Limiter) {
					pass(10 * time.Millisecond)
					use(second)
				}
				require.Greater(t, time.Since(began), window)
				require.Less(t, time.Since(began), window+5*time.Second)
				if name == "stop" {
					first.net.gate.open()
					for range 20 {
						use(first)
						use(second)
						pass(window / 10)
					}
				}
				require.NoError(t, trail.Check())
			})
		})
	}
}

// TestOutage has Redis go away and come back: what passes among the instances meanwhile, and in windows that
// straddle a change.
func TestOutage(t *testing.T) {
	const instances, units = 3, 150
	for name, tier := range map[string][]ration.TierOption{
		"lease": {ration.WithInstances(instances), ration.WithHold(200 * time.Millisecond)},
		"share": {ration.WithInstances(instances), ration.WithShare(0.6)},
	} {
		for _, strategy := range simStrategies {
			t.Run(name+"/"+strategy, func(t *testing.T) {
				inTierBubble(t, func(tt *tierTest) { awayAndBack(tt, strategy, instances, units, tier) })
			})
		}
	}
}

func awayAndBack(tt *tierTest, strategy string, instances int, units int64, tier []ration.TierOption) {
	trails := map[int64]*model.Trail{}
	for _, limit := range []int64{units, 2 * units} {
		trails[limit] = model.NewTrail(modelOf[strategy], time.Second)
	}
	var all []*tierInstance
	for range instances {
		opts := []ration.Option{ration.WithOnFailure(ration.FailLocal(instances)), ration.WithTimeout(10 * time.Millisecond)}
		in := tt.instance(strategy, second(units), 1, opts, tier...)
		all = append(all, in)
	}
	degraded, local := 0, 0
	ask := func(limits ...int64) {
		for range 2 {
			for _, in := range all {
				at := time.Now().UnixMicro()
				d, err := in.Allow(ctx, "u")
				require.NoError(tt, err)
				for _, limit := range limits {
					trails[limit].Use(at, d.Granted, limit)
				}
				if d.Degraded {
					degraded++
				} else if d.Source == ration.Ring && all[0].outage.Load() != int32(simUp) {
					local++
				}
			}
		}
		pass(10 * time.Millisecond)
	}
	phase := func(how simOutage, d time.Duration, quiet time.Duration) {
		for _, in := range all {
			in.outage.Store(int32(how))
		}
		for end := time.Now().Add(d); time.Now().Before(end); {
			if limits := []int64{2 * units, units}; time.Until(end) < d-quiet {
				ask(limits...)
			} else {
				ask(limits[:1]...)
			}
		}
	}
	phase(simUp, 1500*time.Millisecond, 0)
	trails[units] = model.NewTrail(modelOf[strategy], time.Second) // what passed before isn't part of the outage
	phase(simRefuses, 2500*time.Millisecond, 300*time.Millisecond) // the blocks that are held end meanwhile
	require.NoError(tt, trails[units].Check(), "during the outage")
	require.Positive(tt, degraded)
	if all[0].placedIn() {
		require.Positive(tt, local, "the shares went on")
	}
	phase(simUp, 2500*time.Millisecond, 2500*time.Millisecond)
	require.NoError(tt, trails[2*units].Check(), "over a change")
	first := time.Now().Add(-time.Second).UnixMicro()
	require.Positive(tt, trails[2*units].Units(first, first+1e6), "nothing passes after the outage")
}

// placedIn says whether it's a share's and has a place.
func (in *tierInstance) placedIn() bool {
	return ration.IsShare(in.Limiter) && ration.Placed(in.Limiter)
}

func TestTierOptions(t *testing.T) {
	b := backends["miniredis"](t)
	store := b.store(t)
	global, err := ration.NewSlidingLog(store, second(10))
	require.NoError(t, err)
	bad := []ration.TierOption{
		ration.WithHold(-1), ration.WithHold(time.Microsecond), ration.WithHold(501 * time.Millisecond), ration.WithLargestBlock(-1),
		ration.WithInstances(-1), ration.WithInstances(1 << 32), ration.WithShare(0), ration.WithShare(1), ration.WithShare(-0.1),
		ration.WithShare(0.5), // without WithInstances
	}
	for i, opt := range bad {
		l, err := ration.NewTwoTier(global, opt)
		require.ErrorIs(t, err, ration.ErrInvalidOption, "option %d", i)
		require.Nil(t, l, "option %d", i)
	}
	local, err := ration.NewLocal(second(10))
	require.NoError(t, err)
	two, err := ration.NewTwoTier(global, nil, ration.WithHold(0), ration.WithHold(500*time.Millisecond), ration.WithInstances(0))
	require.NoError(t, err)
	for _, l := range []ration.Limiter{nil, local, two, ration.LimiterFunc(nil), ration.NilRedisLimiter} {
		_, err := ration.NewTwoTier(l)
		require.ErrorIs(t, err, ration.ErrInvalidClient, fmt.Sprintf("%T", l))
	}
}
