package ration_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/model"
)

// steadyUse is how much of a limit instances use whose callers want a little more, and what it costs.
type steadyUse struct {
	strategy  string
	window    time.Duration
	instances int
	units     int64
	warm      time.Duration // windows before the one measured
	plain     bool          // without the tier in the process
}

// measure gives the part of the limit that was used in a window, after some in which the rest of what is
// asked for ran out: or else a break would hide what is lost.
func (s steadyUse) measure(t *testing.T) (part, commands float64) {
	inTierBubble(t, func(tt *tierTest) {
		p := ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(s.units, s.window)}}
		trail := model.NewTrail(modelOf[s.strategy], s.window)
		var mu sync.Mutex
		var all []*tierInstance
		var callers sync.WaitGroup
		const each = 4
		interval := time.Duration(float64(s.window) * each * float64(s.instances) / 1.04 / float64(s.units))
		pass(time.Hour) // a turn of all windows
		began := time.Now()
		for i := range s.instances {
			in := tt.instance(s.strategy, p, 1, nil, ration.WithInstances(s.instances))
			all = append(all, in)
			l := in.Limiter
			if s.plain {
				l = in.global
			}
			for j := range each {
				rng := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				callers.Go(func() {
					for time.Since(began) < (s.warm+1)*s.window {
						pass(interval/2 + time.Duration(rng.Int64N(int64(interval))))
						at := time.Now().UnixMicro()
						if d := must(l.Allow(ctx, "u")); d.Allowed {
							mu.Lock()
							trail.Use(at, 1, s.units)
							mu.Unlock()
						}
					}
				})
			}
		}
		callers.Wait()
		for _, in := range all {
			commands += float64(in.net.commands.Load())
		}
		used := trail.Units(began.Add(s.warm*s.window).UnixMicro(), began.Add((s.warm+1)*s.window).UnixMicro())
		part, commands = float64(used)/float64(s.units), commands/float64(s.warm+1)/1.04/float64(s.units)
	})
	return part, commands
}

// TestSteadyUse demands that little of a limit is lost to units that are held and not used.
func TestSteadyUse(t *testing.T) {
	for _, window := range []time.Duration{time.Second, 10 * time.Second, time.Minute} {
		for _, instances := range []int{1, 4, 16} {
			for _, strategy := range simStrategies {
				most := map[string]int{"fixed": 4, "log": 1, "buckets": 1}[strategy]
				if (instances > most || window > time.Second) && os.Getenv("RATION_DECISIONS") == "" {
					continue // tens of thousands of commands each
				}
				t.Run(fmt.Sprintf("%s/%v/%d", strategy, window, instances), func(t *testing.T) {
					t.Parallel()
					goal := 0.99
					if window == time.Second {
						goal = 0.97
					}
					holds := int64(window / min(window/50, 100*time.Millisecond))
					use := steadyUse{strategy: strategy, window: window, instances: instances, units: 20 * holds * int64(instances), warm: 2}
					part, commands := use.measure(t)
					if strategy == "fixed" {
						goal = 0.99
					}
					if strategy == "buckets" {
						plain, _ := steadyUse{strategy: strategy, window: window, instances: 1, units: 300, warm: 4, plain: true}.measure(t)
						t.Logf("without leases %.4f", plain)
						goal *= plain
					}
					t.Logf("used %.4f of the limit, %.3f commands a call", part, commands)
					require.GreaterOrEqual(t, part, goal)
				})
			}
		}
	}
}
