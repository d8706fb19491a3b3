package integration

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration/internal/model"
)

// span is an interval of time, µs.
type span struct{ from, to int64 }

// proof finds calls that can't all have been allowed by a promise of units in a window. It knows of a call
// only that it was answered between two instants: calls break the promise where they lie whole in one window
// and are too many. In a window that touches a switch, when Redis lost its data say, they may be twice
// as many.
type proof struct {
	fixed    bool // windows of the grid, else any
	units    int64
	window   int64 // µs
	switches []span
}

func newProof(st strategy, units int64, window time.Duration, switches ...span) proof {
	return proof{fixed: st.model == model.FixedWindow || st.model == model.SlidingCounter, units: units, window: window.Microseconds(), switches: switches}
}

// rounding is what two clocks that tick in whole µs may differ by.
const rounding = 3

// check looks at all calls of one subject, sorts them, and gives the first violation and the most units found in a window.
func (p proof) check(uses []use) (most int64, err error) {
	slices.SortFunc(uses, func(a, b use) int { return cmp.Compare(a.Before, b.Before) })
	for i, first := range uses {
		if first.Granted == 0 {
			continue
		}
		all := span{first.Before, first.Before + p.window - rounding}
		if p.fixed {
			all.from = first.Before / p.window * p.window
			all.to = all.from + p.window
		}
		calm, double := p.around(all)
		// Of the grid's windows the first call in each sees all; so do the calls of any span.
		if sum := within(uses[i:], all); double && sum > 2*p.units {
			return sum, p.violated(sum, all)
		}
		sum := within(uses[i:], calm)
		if most = max(most, sum); sum > p.units {
			return most, p.violated(sum, calm)
		}
	}
	return most, nil
}

// around gives the part of a window in which no more than units may be used, and says whether there
// is another part.
func (p proof) around(all span) (calm span, double bool) {
	calm = all
	for _, s := range p.switches {
		if s.to < all.from || s.from > all.to {
			continue
		}
		double = true
		calm.to = min(calm.to, s.from)
	}
	if double && p.fixed {
		calm.to = calm.from // a window of the grid can't be cut: it began anew
	}
	return calm, double
}

func (p proof) violated(sum int64, in span) error {
	return fmt.Errorf("%d units used within %d µs from %d, the promise is %d in %d µs", sum, in.to-in.from, in.from, p.units, p.window)
}

// within sums up the units of calls, sorted by Before, that lie whole in a span, its end not included.
func within(uses []use, in span) (sum int64) {
	for _, u := range uses {
		if u.Before >= in.to {
			break
		}
		if u.Before >= in.from && u.After < in.to {
			sum += u.Granted
		}
	}
	return sum
}

func TestProof(t *testing.T) {
	at := func(before, after, granted int64) use { return use{Before: before, After: after, Granted: granted} }
	sliding := proof{units: 10, window: 1000}
	for name, c := range map[string]struct {
		p    proof
		uses []use
		bad  bool
	}{
		"as many as allowed":        {sliding, []use{at(0, 1, 5), at(500, 600, 5), at(1000, 1001, 5)}, false},
		"too many in a span":        {sliding, []use{at(0, 1, 5), at(500, 600, 5), at(900, 950, 1)}, true},
		"perhaps too many":          {sliding, []use{at(0, 1, 5), at(500, 600, 5), at(900, 1000, 1)}, false},
		"over the grid":             {proof{fixed: true, units: 10, window: 1000}, []use{at(900, 950, 10), at(1000, 1001, 10)}, false},
		"too many in a window":      {proof{fixed: true, units: 10, window: 1000}, []use{at(900, 950, 6), at(20, 30, 5)}, true},
		"perhaps in the next":       {proof{fixed: true, units: 10, window: 1000}, []use{at(900, 1000, 6), at(20, 30, 5)}, false},
		"over a switch":             {proof{units: 10, window: 1000, switches: []span{{500, 510}}}, []use{at(100, 101, 10), at(505, 506, 10)}, false},
		"too many over a switch":    {proof{units: 10, window: 1000, switches: []span{{500, 510}}}, []use{at(100, 101, 10), at(505, 506, 11)}, true},
		"too many before a switch":  {proof{units: 10, window: 1000, switches: []span{{500, 510}}}, []use{at(100, 101, 10), at(300, 301, 1)}, true},
		"too many after a switch":   {proof{units: 10, window: 1000, switches: []span{{500, 510}}}, []use{at(511, 512, 10), at(700, 701, 1)}, true},
		"a window with a switch":    {proof{fixed: true, units: 10, window: 1000, switches: []span{{500, 510}}}, []use{at(100, 101, 10), at(505, 506, 10)}, false},
		"a window after a switch":   {proof{fixed: true, units: 10, window: 1000, switches: []span{{500, 510}}}, []use{at(1100, 1101, 10), at(1500, 1501, 1)}, true},
		"twice too many, on a grid": {proof{fixed: true, units: 10, window: 1000, switches: []span{{500, 510}}}, []use{at(100, 101, 20), at(505, 506, 1)}, true},
	} {
		_, err := c.p.check(c.uses)
		require.Equal(t, c.bad, err != nil, "%s: %v", name, err)
	}
}
