package model

import (
	"fmt"
	"math/big"
	"time"

	"github.com/rationgo/ration"
)

// Oracle is told what was granted to one subject and checks the promise, and
// nothing else: under SlidingLog and SlidingBuckets no span as long as a
// window holds more than its limit, under FixedWindow and SlidingCounter no window of the grid, under TokenBucket no span
// more than the bucket and what comes back meanwhile.
// Grants may be told in any order of time. It isn't safe for concurrent use.
type Oracle struct {
	// Slack is by how much a time of use may be off, in µs: turns of a bucket's waiters are rounded up.
	Slack int64

	strategy Strategy
	grants   map[int64][]grant // by window, µs
}

type grant struct{ at, units int64 }

// NewOracle makes an oracle that was told nothing.
func NewOracle(s Strategy) *Oracle {
	return &Oracle{strategy: s, grants: make(map[int64][]grant)}
}

// Grant records n units granted at an instant (µs since 1970) under limits. The error
// names a span with this grant that holds more than a limit allows now.
// Units granted under a window that limits haven't got aren't held against them.
func (o *Oracle) Grant(at, n int64, limits []ration.Limit) error {
	for _, l := range limits {
		w := windowMicros(l.Window)
		o.grants[w] = append(o.grants[w], grant{at: at, units: n})
	}
	for _, l := range limits {
		if err := o.check(at, l); err != nil {
			return err
		}
	}
	return nil
}

// check looks at every span that holds the instant at.
func (o *Oracle) check(at int64, l ration.Limit) error {
	w := windowMicros(l.Window)
	if o.strategy == TokenBucket {
		return o.checkBucket(at, l)
	}
	for _, last := range o.grants[w] {
		if !o.together(last.at, at, w) {
			continue
		}
		sum := int64(0)
		for _, g := range o.grants[w] {
			if o.together(last.at, g.at, w) {
				sum += g.units
			}
		}
		if sum > l.Units || sum < 0 {
			return fmt.Errorf("%d units granted within one %v up to %v, the limit is %d",
				sum, l.Window, time.UnixMicro(last.at).UTC(), l.Units)
		}
	}
	return nil
}

// checkBucket looks at every span that begins or ends at the instant at: it may hold the bucket's size and
// what comes back in its length.
func (o *Oracle) checkBucket(at int64, l ration.Limit) error {
	w := windowMicros(l.Window)
	for _, other := range o.grants[w] {
		from, to := min(at, other.at), max(at, other.at)
		sum := new(big.Int)
		for _, g := range o.grants[w] {
			if from <= g.at && g.at <= to {
				sum.Add(sum, big.NewInt(g.units))
			}
		}
		most := new(big.Int).Mul(big.NewInt(to-from+o.Slack), big.NewInt(l.Units))
		most.Div(most, big.NewInt(w))
		if most.Add(most, big.NewInt(Size(l))); sum.Cmp(most) > 0 {
			return fmt.Errorf("%v units granted from %v to %v, the bucket gives %v",
				sum, time.UnixMicro(from).UTC(), time.UnixMicro(to).UTC(), most)
		}
	}
	return nil
}

// together says whether at lies in the window that ends with last: on the
// grid the one that holds it, else (last−w, last].
func (o *Oracle) together(last, at, w int64) bool {
	if o.strategy.grid() {
		return last/w == at/w
	}
	return last-w < at && at <= last
}

// Refund records that n units were given back at an instant: of what was granted less
// than a window before it (or, if the clock was set back, after it) the newest.
func (o *Oracle) Refund(at, n int64, limits []ration.Limit) {
	o.takeBack(at, n, limits, func(_ int64, g, found *grant) bool { return found == nil || g.at >= found.at })
}

// Shed is Refund for the oldest.
func (o *Oracle) Shed(at, n int64, limits []ration.Limit) {
	o.takeBack(at, n, limits, func(_ int64, g, found *grant) bool { return found == nil || g.at < found.at })
}

// GiveBack is Refund for units that were granted at the instant end. Buckets may give back
// others of the same slot; the oracle knows of no slots and takes the nearest.
func (o *Oracle) GiveBack(at, end, n int64, limits []ration.Limit) {
	o.takeBack(at, n, limits, func(w int64, g, found *grant) bool {
		switch o.strategy {
		case FixedWindow, SlidingCounter:
			return o.together(end, g.at, w)
		case SlidingLog:
			return g.at == end
		}
		if found == nil || (g.at > end) != (found.at > end) {
			return found == nil || g.at <= end
		}
		return max(g.at-end, end-g.at) < max(found.at-end, end-found.at)
	})
}

// takeBack takes back n units that live at an instant. Of the grants that are left the one is next that is
// better than any found so far, which may be none.
func (o *Oracle) takeBack(at, n int64, limits []ration.Limit, better func(w int64, g, found *grant) bool) {
	for _, l := range limits {
		w := windowMicros(l.Window)
		for left := n; left > 0; {
			var found *grant
			for i := range o.grants[w] {
				g := &o.grants[w][i]
				live := o.strategy == TokenBucket || g.at >= at || o.together(at, g.at, w)
				if live && g.units > 0 && better(w, g, found) {
					found = g
				}
			}
			if found == nil {
				break
			}
			part := min(left, found.units)
			found.units -= part
			left -= part
		}
	}
}

// Reset forgets what was granted under the windows of limits.
func (o *Oracle) Reset(limits []ration.Limit) {
	for _, l := range limits {
		delete(o.grants, windowMicros(l.Window))
	}
}
