package model

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Trail checks the promise of an [Oracle] for one window on millions of uses: it's told all, in
// any order, and looks through them once. It isn't safe for concurrent use.
type Trail struct {
	strategy Strategy
	window   int64 // µs
	uses     []trailUse
}

// trailUse is units used at a time, or given back if they are negative.
type trailUse struct{ at, units, limit int64 }

// NewTrail makes a trail without a use.
func NewTrail(s Strategy, window time.Duration) *Trail {
	return &Trail{strategy: s, window: windowMicros(window)}
}

// Use records n units used at a time (µs since 1970) by who knew of a limit of so many units.
func (t *Trail) Use(at, n, limit int64) {
	if last := len(t.uses) - 1; last >= 0 && t.uses[last].at == at && t.uses[last].limit == limit && t.uses[last].units > 0 {
		t.uses[last].units += n
		return
	}
	t.uses = append(t.uses, trailUse{at, n, limit})
}

// Refund records that n units were given back at a time: of those used less than a window before
// it the newest.
func (t *Trail) Refund(at, n int64) { t.uses = append(t.uses, trailUse{at: at, units: -n}) }

// Units is the number of units used from one time on, before another.
func (t *Trail) Units(from, to int64) (n int64) {
	for _, u := range t.uses {
		if u.at >= from && u.at < to {
			n += u.units
		}
	}
	return n
}

// Check finds a window that ends with a use and holds more than the largest limit known to the
// uses of that instant. The error names the first.
func (t *Trail) Check() error {
	// Of one instant what is given back comes first: it's what made room for the rest.
	slices.SortStableFunc(t.uses, func(a, b trailUse) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(min(a.units, 0), min(b.units, 0)))
	})
	uses := slices.Clone(t.uses)
	first, sum := 0, int64(0)
	for i := 0; i < len(uses); {
		at, limit := uses[i].at, int64(0)
		for ; !t.together(uses[first].at, at); first++ {
			sum -= max(0, uses[first].units)
		}
		for ; i < len(uses) && uses[i].at == at; i++ {
			if n := uses[i].units; n > 0 {
				sum, limit = sum+n, max(limit, uses[i].limit)
			} else {
				sum -= takeNewest(uses[first:i], -n)
			}
		}
		if limit > 0 && sum > limit {
			return fmt.Errorf("%d units used within one %v up to %v, the limit is %d",
				sum, micros(t.window), time.UnixMicro(at).UTC(), limit)
		}
	}
	return nil
}

// together says whether a use at an earlier time counts in the window that ends at a later one.
func (t *Trail) together(earlier, later int64) bool {
	if t.strategy.grid() {
		return earlier/t.window == later/t.window
	}
	return earlier > later-t.window
}

func takeNewest(uses []trailUse, n int64) (taken int64) {
	for i := len(uses) - 1; i >= 0 && taken < n; i-- {
		if uses[i].units > 0 {
			k := min(uses[i].units, n-taken)
			uses[i].units -= k
			taken += k
		}
	}
	return taken
}
