package model

import (
	"math/big"
	"slices"
	"sort"
	"time"

	"github.com/rationgo/ration"
)

// Strategy is a way to count a window.
type Strategy int

// The strategies. The local ring counts like SlidingBuckets.
const (
	FixedWindow Strategy = iota + 1
	SlidingLog
	SlidingBuckets
	SlidingCounter
	TokenBucket
	Mixed // not one way, but one for each limit
)

// String gives the strategy's name.
func (s Strategy) String() string {
	switch s {
	case FixedWindow:
		return "FixedWindow"
	case SlidingLog:
		return "SlidingLog"
	case SlidingBuckets:
		return "SlidingBuckets"
	case SlidingCounter:
		return "SlidingCounter"
	case TokenBucket:
		return "TokenBucket"
	case Mixed:
		return "Mixed"
	}
	return "none"
}

// Leases says whether units can be charged as used later.
func (s Strategy) Leases() bool {
	return s == FixedWindow || s == SlidingLog || s == SlidingBuckets
}

// grid says whether only windows of the Unix grid have a promise of their own.
func (s Strategy) grid() bool { return s == FixedWindow || s == SlidingCounter }

// batch is units charged at one time. A list of single units would say the
// same, but a cost may be 1<<53.
type batch struct {
	at    int64 // log: the instant (of a lease: its end); fixed, counter: the window's number; buckets: the slot's
	units int64
	seen  int64 // the latest clock since it was charged
}

// usage is all that was ever charged to one subject under one window, less
// what was given back. Nothing is thrown away because it is old.
type usage struct {
	strategy Strategy
	window   int64 // µs
	slots    int64
	batches  []batch

	bucket *bucket // of TokenBucket, instead of all that
}

func newUsage(k windowKey) *usage {
	u := &usage{strategy: k.strategy, window: k.window, slots: k.slots}
	if k.strategy == TokenBucket {
		u.bucket = newBucket(k.window)
	}
	return u
}

func (u *usage) forget() {
	u.batches = nil
	if u.bucket != nil {
		u.bucket = newBucket(u.window)
	}
}

// width is the length of one cell of the grid.
func (u *usage) width() int64 {
	switch u.strategy {
	case FixedWindow, SlidingCounter:
		return u.window
	case SlidingBuckets:
		return ceilDiv(u.window, u.slots)
	}
	return 1
}

// cell says where units charged at an instant go. On a grid the latest cell
// with stored usage stays the current one until the clock has caught up.
func (u *usage) cell(now int64) int64 {
	cell := now / u.width()
	if u.strategy == SlidingLog {
		return cell
	}
	for _, b := range u.batches {
		cell = max(cell, b.at)
	}
	return cell
}

// counts says whether b is held against the limit at an instant.
func (u *usage) counts(b batch, now int64) bool {
	switch u.strategy {
	case FixedWindow:
		return b.at == u.cell(now)
	case SlidingBuckets:
		return b.at >= u.cell(now)-u.slots
	case SlidingCounter: // in part, from the turn of its window on
		return b.at >= u.cell(now)-1
	}
	return now < b.at+u.window
}

// end is the first instant at which b counts no longer.
func (u *usage) end(b batch) int64 {
	switch u.strategy {
	case FixedWindow:
		return (b.at + 1) * u.window
	case SlidingBuckets:
		return (b.at + u.slots + 1) * u.width()
	case SlidingCounter:
		return (b.at + 2) * u.window
	}
	return b.at + u.window
}

func (u *usage) counted(now int64) int64 {
	if u.bucket != nil {
		return u.bucket.counted(now)
	}
	if u.strategy == SlidingCounter {
		return u.weighted(now)
	}
	sum := int64(0)
	for _, b := range u.batches {
		if u.counts(b, now) {
			sum += b.units
		}
	}
	return sum
}

// weighted is the units of the current cell, and of those of the one before it the share that lies
// within a window before now, rounded up.
func (u *usage) weighted(now int64) int64 {
	cell := u.cell(now)
	current, previous := int64(0), int64(0)
	for _, b := range u.batches {
		switch b.at {
		case cell:
			current += b.units
		case cell - 1:
			previous += b.units
		}
	}
	elapsed := max(0, now-cell*u.window) // not begun: the clock was set back
	share := new(big.Rat).SetFrac64(u.window-elapsed, u.window)
	share.Mul(share, new(big.Rat).SetInt64(previous))
	whole, rest := new(big.Int).QuoRem(share.Num(), share.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	return current + whole.Int64()
}

func (u *usage) charge(now, n int64) {
	if u.bucket != nil {
		u.bucket.charge(now, n)
		return
	}
	u.batches = append(u.batches, batch{at: u.cell(now), units: n, seen: now})
}

// newest is an order to take units back in.
func newest(a, b batch) bool { return a.at > b.at }

// refund takes back up to n of the units that count, the first in some order first.
func (u *usage) refund(now, n int64, before func(a, b batch) bool) (given int64) {
	if u.bucket != nil {
		return u.bucket.refund(now, n)
	}
	return u.takeBack(n, before, func(b batch) bool { return u.counts(b, now) })
}

// takeBack takes back up to n of the units meant.
func (u *usage) takeBack(n int64, before func(a, b batch) bool, meant func(batch) bool) (given int64) {
	means := make(map[int]bool)
	for i, b := range u.batches {
		means[i] = meant(b)
	}
	order := make([]int, len(u.batches))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool { return before(u.batches[order[i]], u.batches[order[j]]) })
	for _, i := range order {
		if !means[i] {
			continue
		}
		part := min(n-given, u.batches[i].units)
		u.batches[i].units -= part
		given += part
	}
	u.batches = slices.DeleteFunc(u.batches, func(b batch) bool { return b.units == 0 })
	return given
}

// changes are the instants after now at which something ends, in order; of a bucket, when all is back.
func (u *usage) changes(now int64) []int64 {
	if u.bucket != nil {
		return []int64{max(now, u.bucket.ends)}
	}
	var list []int64
	for _, b := range u.batches {
		if end := u.end(b); end > now {
			list = append(list, end)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// remaining is what limit would grant at an instant.
func (u *usage) remaining(now int64, l ration.Limit) int64 {
	return max(0, Size(l)-u.counted(now))
}

// retryAfter tries the instants at which something ends until cost fits.
func (u *usage) retryAfter(now, cost int64, l ration.Limit) time.Duration {
	if cost > Size(l) {
		return ration.Never
	}
	fits := func(at int64) bool { return cost <= u.remaining(at, l) }
	return micros(earliest(now, []*usage{u}, fits) - now)
}

// resetAfter is the time until nothing counts.
func (u *usage) resetAfter(now int64) time.Duration {
	empty := func(at int64) bool { return u.counted(at) == 0 }
	return micros(earliest(now, []*usage{u}, empty) - now)
}

// earliest is the first instant from now on at which something is the case that comes with what ends
// and then stays. It's one at which something ends, but that the counter's
// shares and what's out of a bucket fall at any: there it's found by halving.
func earliest(now int64, usages []*usage, is func(at int64) bool) int64 {
	instants := []int64{now}
	for _, u := range usages {
		instants = append(instants, u.changes(now)...)
	}
	slices.Sort(instants)
	if slices.ContainsFunc(usages, func(u *usage) bool { return u.strategy == SlidingCounter || u.strategy == TokenBucket }) {
		span := int(instants[len(instants)-1] - now)
		return now + int64(sort.Search(span, func(i int) bool { return is(now + int64(i)) }))
	}
	for _, at := range instants {
		if is(at) {
			return at
		}
	}
	panic("model: something counts for ever")
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// windowMicros is a window in whole microseconds, rounded up.
func windowMicros(w time.Duration) int64 {
	return ceilDiv(int64(w), int64(time.Microsecond))
}
