package ration_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/model"
)

// TestPropertyRing plays random histories on the local ring.
func TestPropertyRing(t *testing.T) {
	for _, back := range []bool{false, true} {
		var now time.Time
		w := playWorld{
			name:     "ring",
			strategy: model.SlidingBuckets,
			source:   ration.Ring,
			setTime:  func(t time.Time) { now = t },
			limiter: func(p ration.Policy) (ration.Limiter, error) {
				return ration.NewLocal(p, ration.WithClock(func() time.Time { return now }))
			},
			clean: func() {},
			back:  back,
			clock: ringClock,
		}
		t.Run(w.title(), func(t *testing.T) { rapid.Check(t, w.play) })
	}
}

// standingClock is what the ring makes of a clock that is set back: a step to
// below the latest time by more than slack is no time at all, and what follows
// goes on from where the clock was.
type standingClock struct {
	slack        int64
	lost         int64 // by all such steps
	last, latest int64
}

// ringClock has as slack the shortest slot of the policy's limits.
func ringClock(p ration.Policy) *standingClock {
	slots := int64(p.Slots)
	if slots == 0 {
		slots = model.DefaultSlots
	}
	slack := micros(ration.MaxWindow)
	for _, l := range p.Limits {
		slack = min(slack, (micros(l.Window)+slots-1)/slots)
	}
	return &standingClock{slack: slack}
}

// read gives the time that counts when the clock shows now.
func (c *standingClock) read(now int64) int64 {
	at := now + c.lost
	if at < c.latest-c.slack {
		c.lost += c.last - at
		at = c.last
	}
	c.last, c.latest = at, max(at, c.latest)
	return at
}
