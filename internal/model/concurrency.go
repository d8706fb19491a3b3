package model

import (
	"cmp"
	"slices"
)

// Lease is units of a subject in flight.
type Lease struct {
	ID    string
	Units int64
	Ends  int64 // the microsecond from which on it's not alive
}

// InFlight is the leases of one subject, dead ones too.
type InFlight []Lease

// alive gives those alive at a time, the one that ends first in front.
func (f InFlight) alive(now int64) (alive InFlight) {
	for _, l := range f {
		if l.Ends > now {
			alive = append(alive, l)
		}
	}
	slices.SortStableFunc(alive, func(a, b Lease) int { return cmp.Compare(a.Ends, b.Ends) })
	return alive
}

// Units is the number of units in flight.
func (f InFlight) Units(now int64) (units int64) {
	for _, l := range f.alive(now) {
		units += l.Units
	}
	return units
}

// Acquire adds a lease if it fits under the limit.
func (f *InFlight) Acquire(now int64, id string, n, limit, ttl int64) bool {
	if f.Units(now)+n > limit {
		return false
	}
	*f = append(f.alive(now), Lease{id, n, now + ttl})
	return true
}

// Keep prolongs a lease that's alive.
func (f *InFlight) Keep(now int64, id string, ttl int64) bool {
	for i, l := range *f {
		if l.ID == id && l.Ends > now {
			*f = slices.Clone(*f)
			(*f)[i].Ends = now + ttl
			return true
		}
	}
	return false
}

// Release takes a lease away. It says whether it was alive.
func (f *InFlight) Release(now int64, id string) (was bool) {
	var rest InFlight
	for _, l := range *f {
		if l.ID != id {
			rest = append(rest, l)
		} else {
			was = l.Ends > now
		}
	}
	*f = rest
	return was
}

// RetryAfter is the number of microseconds until n units would fit, if no lease is kept or
// released; 0 if they do now, -1 for never.
func (f InFlight) RetryAfter(now, n, limit int64) int64 {
	if n > limit {
		return -1
	}
	if f.Units(now)+n <= limit {
		return 0
	}
	for _, l := range f.alive(now) {
		if f.Units(l.Ends)+n <= limit {
			return l.Ends - now
		}
	}
	panic("model: nothing is in flight and it doesn't fit")
}

// ResetAfter is the number of microseconds until nothing is in flight, likewise.
func (f InFlight) ResetAfter(now int64) (reset int64) {
	for _, l := range f.alive(now) {
		reset = max(reset, l.Ends-now)
	}
	return reset
}
