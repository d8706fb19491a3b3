package ration_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/model"
)

// simPlan is what a simulation does, all of it drawn from a seed.
type simPlan struct {
	seed     uint64
	strategy string
	policy   ration.Policy
	share    bool
	tier     []ration.TierOption
	store    []ration.Option

	instances int
	callers   int // of an instance
	subjects  int
	zipf      bool
	windows   int // length, in longest windows
	latency   time.Duration
	hold      time.Duration
	drift     float64 // the most by which a clock is wrong

	demand float64 // units asked for, in limits
	cost   int64   // the most a call asks for
	rush   bool    // refused callers ask again soon

	pauses, crashes, closes, outages bool
	refunds, resets, changes         bool
}

func (p *simPlan) String() string {
	mode := "lease"
	if p.share {
		mode = "share"
	}
	return fmt.Sprintf("%s/%s/%v/%d instances", p.strategy, mode, p.policy.Limits, p.instances)
}

func (p *simPlan) first() ration.Limit { return p.policy.Limits[0] }
func (p *simPlan) longest() time.Duration {
	return p.policy.Limits[len(p.policy.Limits)-1].Window
}

var simStrategies = []string{"fixed", "log", "buckets"}

var modelOf = map[string]model.Strategy{
	"fixed": model.FixedWindow, "log": model.SlidingLog, "buckets": model.SlidingBuckets,
}

// newSimPlan draws plan number i. Strategies, modes and numbers of instances take turns, so that few plans
// have them all.
func newSimPlan(seed uint64, i int, calls float64) *simPlan {
	rng := rand.New(rand.NewPCG(seed, uint64(i)))
	p := &simPlan{
		seed: rng.Uint64(), strategy: simStrategies[i%3], share: i/3%4 == 3,
		instances: []int{1, 2, 3, 4, 5, 8, 16, 50}[i/3%8],
		callers:   1 + rng.IntN(2), subjects: 1, windows: 3 + rng.IntN(3),
		drift: 0.01 * float64(rng.IntN(3)) / 2, demand: 1.1 + rng.Float64(), cost: 1,
		rush: rng.IntN(8) == 0, pauses: rng.IntN(2) == 0, crashes: rng.IntN(2) == 0, closes: rng.IntN(2) == 0,
		outages: rng.IntN(3) == 0, refunds: rng.IntN(4) == 0, resets: rng.IntN(8) == 0, changes: rng.IntN(3) == 0,
	}
	if rng.IntN(3) == 0 {
		p.cost = 2 + rng.Int64N(6)
	}
	if rng.IntN(4) == 0 {
		p.subjects, p.zipf = 2+rng.IntN(6), rng.IntN(2) == 0
	}
	if p.strategy == "log" {
		calls /= 3 // to miniredis each entry matters
		p.rush = false
	}
	if p.instances > 8 {
		calls, p.windows = calls/2, 2
	}
	if p.share {
		calls /= 6 // each call of the pool is a command
		p.rush = false
	}
	p.drawLimits(rng, calls)
	p.drawTier(rng)
	if rng.IntN(4) == 0 {
		p.store = append(p.store, ration.WithDenyCache(1000))
	}
	if rng.IntN(6) == 0 {
		p.store = append(p.store, ration.WithoutBatching())
	}
	return p
}

func (p *simPlan) drawLimits(rng *rand.Rand, calls float64) {
	windows := []time.Duration{
		50 * time.Millisecond, 250 * time.Millisecond, time.Second, 3333333 * time.Microsecond, 10 * time.Second, time.Minute,
	}
	if p.share {
		windows = windows[2:5] // there must be time for a place to be lost and to be given away
	}
	window := windows[rng.IntN(len(windows))]
	units := calls / p.demand * float64(1+p.cost) / 2 / float64(p.windows)
	if rng.IntN(3) == 0 {
		units /= 30 // few units: little is leased
		p.demand *= 2
	}
	p.rush = p.rush && p.instances < 4
	p.policy = ration.Policy{Name: "sim", Slots: []int{1, 2, 4, 0}[rng.IntN(min(4, 1+8/p.instances))]}
	long := time.Duration(0)
	if rng.IntN(3) == 0 {
		if p.strategy == "log" {
			units /= 20 // miniredis sorts the whole log for each page of it
		}
		long = time.Duration(2 + rng.IntN(3))
		p.windows = 2
	}
	p.policy.Limits = []ration.Limit{ration.Per(max(1, int64(units)), window)}
	if long > 0 {
		p.policy.Limits = append(p.policy.Limits, ration.Per(int64(units*float64(long)*0.6)+1, long*window))
	}
}

func (p *simPlan) drawTier(rng *rand.Rand) {
	window := p.first().Window
	if p.share {
		places := p.instances
		if rng.IntN(2) == 0 {
			places = 1 + rng.IntN(p.instances) // more come than there are places
		}
		p.tier = append(p.tier, ration.WithShare(0.97-0.6*rng.Float64()*rng.Float64()*rng.Float64()), ration.WithInstances(places))
		p.windows = max(p.windows, int(8*time.Second/p.longest()))
	}
	// Long holds, so that a command is worth many decisions, and more is at stake.
	blocks := 120 / (p.instances * p.windows)
	p.hold = max(window/time.Duration(2+rng.IntN(max(1, min(12, blocks)))), time.Millisecond)
	p.latency = min(time.Duration(1+rng.IntN(2000))*time.Microsecond, p.hold/20)
	if p.share {
		return
	}
	p.tier = append(p.tier, ration.WithHold(p.hold))
	if rng.IntN(4) == 0 {
		p.tier = append(p.tier, ration.WithLargestBlock(p.first().Units/20+1))
	}
	if rng.IntN(2) == 0 {
		p.tier = append(p.tier, ration.WithInstances(1+rng.IntN(2*p.instances)))
	}
}
