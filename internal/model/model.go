// Package model says what a limiter has to answer, slowly and plainly.
//
// A [Model] keeps every unit ever charged with the time of its charge and
// finds each number of a decision by trying the instants at which something
// ends. It shares no code with the limiters, so tests hold their answers
// against it. An [Oracle] knows even less: it is told what was granted and
// checks nothing but the promise.
package model

import (
	"cmp"
	"slices"
	"time"

	"github.com/rationgo/ration"
)

// DefaultSlots is what 0 slots mean.
const DefaultSlots = 20

// Model is one limiter with any number of subjects. It isn't safe for
// concurrent use.
type Model struct {
	strategy Strategy
	mix      []Strategy // each limit's own, instead
	subjects map[string]map[windowKey]*usage
}

// windowKey is what a count is kept by: another window, or another number of
// slots, is another count.
type windowKey struct {
	strategy      Strategy
	window, slots int64
}

// New makes a model without any usage.
func New(s Strategy) *Model {
	return &Model{strategy: s, subjects: make(map[string]map[windowKey]*usage)}
}

// NewMixed makes a model of limits that are each counted in a way of its own.
func NewMixed(mix ...Strategy) *Model {
	m := New(Mixed)
	m.mix = mix
	return m
}

// part is one limit with what is used of its window.
type part struct {
	limit ration.Limit
	usage *usage
}

// Do answers one call made at now (µs since 1970) under these limits; slots
// matter to SlidingBuckets only. Source, Degraded and Cause stay zero.
func (m *Model) Do(now int64, r ration.Request, limits []ration.Limit, slots int64) ration.Decision {
	m.ClockAt(now)
	parts := m.parts(r.Key, limits, slots)
	op := r.Op
	if r.N == 0 && op != ration.OpReset {
		op = ration.OpPeek
	}
	switch op {
	case ration.OpAllow:
		granted := int64(0)
		if r.N <= remaining(now, parts) {
			granted = r.N
		}
		charge(now, granted, parts)
		return decide(now, r.N, granted, granted > 0, parts)
	case ration.OpAllowUpTo:
		granted := min(r.N, remaining(now, parts))
		charge(now, granted, parts)
		return decide(now, 1, granted, granted > 0, parts)
	case ration.OpPeek:
		return decide(now, 1, 0, remaining(now, parts) > 0, parts)
	case ration.OpRefund:
		granted := int64(0)
		for _, p := range parts {
			// Two windows of the counter may hold more than MaxUnits: one call gives no more back.
			granted = max(granted, p.usage.refund(now, min(r.N, ration.MaxUnits), newest))
		}
		return decide(now, 1, granted, remaining(now, parts) > 0, parts)
	case ration.OpReset:
		for _, p := range parts {
			p.usage.forget()
		}
		return ration.Decision{}
	}
	panic("model: unknown operation")
}

func (m *Model) parts(key string, limits []ration.Limit, slots int64) []part {
	if m.subjects[key] == nil {
		m.subjects[key] = make(map[windowKey]*usage)
	}
	if slots == 0 {
		slots = DefaultSlots
	}
	parts := make([]part, len(limits))
	for i, l := range limits {
		k := windowKey{strategy: m.strategy, window: windowMicros(l.Window), slots: slots}
		if m.mix != nil {
			k.strategy = m.mix[i]
		}
		if k.strategy != SlidingBuckets {
			k.slots = 1
		}
		if m.subjects[key][k] == nil {
			m.subjects[key][k] = newUsage(k)
		}
		if b := m.subjects[key][k].bucket; b != nil {
			b.limit = l
		}
		parts[i] = part{limit: l, usage: m.subjects[key][k]}
	}
	return parts
}

// Held is the number of units under a window that could be given back: those that count, also in part.
func (m *Model) Held(now int64, key string, window time.Duration, slots int64) (units int64) {
	m.ClockAt(now)
	u := m.parts(key, []ration.Limit{ration.Per(0, window)}, slots)[0].usage
	for _, b := range u.batches {
		if u.counts(b, now) {
			units += b.units
		}
	}
	return units
}

func remaining(now int64, parts []part) int64 {
	least := parts[0].usage.remaining(now, parts[0].limit)
	for _, p := range parts {
		least = min(least, p.usage.remaining(now, p.limit))
	}
	return least
}

func charge(now, n int64, parts []part) {
	if n == 0 {
		return
	}
	for _, p := range parts {
		p.usage.charge(now, n)
	}
}

// decide describes what is the case after a call that asked for cost.
func decide(now, cost, granted int64, allowed bool, parts []part) ration.Decision {
	states := make([]ration.LimitState, len(parts))
	for i, p := range parts {
		states[i] = ration.LimitState{
			Limit:      p.limit,
			Remaining:  p.usage.remaining(now, p.limit),
			ResetAfter: p.usage.resetAfter(now),
		}
		if !allowed {
			states[i].RetryAfter = p.usage.retryAfter(now, cost, p.limit)
		}
	}
	first := slices.MinFunc(states, func(a, b ration.LimitState) int {
		return cmp.Or(
			cmp.Compare(b.RetryAfter, a.RetryAfter), // the longest first
			cmp.Compare(a.Remaining, b.Remaining),
		)
	})
	d := ration.Decision{
		Allowed:    allowed,
		Granted:    granted,
		Limit:      first.Limit,
		Remaining:  remaining(now, parts),
		RetryAfter: first.RetryAfter,
		ResetAfter: states[0].ResetAfter,
	}
	if len(parts) > 1 {
		d.ResetAfter = micros(whole(now, parts) - now)
		d.Limits = states
	}
	return d
}

// whole is the first instant from now on at which nothing that counts keeps
// the parts from granting the smallest limit. (For a smallest limit of 0 that is when
// nothing counts under it, though 0 remain before that too.)
func whole(now int64, parts []part) int64 {
	smallest := Size(parts[0].limit)
	var usages []*usage
	for _, p := range parts {
		smallest = min(smallest, Size(p.limit))
		usages = append(usages, p.usage)
	}
	return earliest(now, usages, func(at int64) bool {
		return !slices.ContainsFunc(parts, func(p part) bool { return Size(p.limit)-p.usage.counted(at) < smallest })
	})
}

// Size is the most that a limit lets through at once.
func Size(l ration.Limit) int64 {
	if l.Units > 0 && l.Burst > 0 {
		return l.Burst
	}
	return l.Units
}

// ClockAt tells the model that the clock showed now; Do tells it too.
func (m *Model) ClockAt(now int64) {
	for _, windows := range m.subjects {
		for _, u := range windows {
			if u.bucket != nil {
				u.bucket.seen = max(u.bucket.seen, now)
			}
			for i := range u.batches {
				u.batches[i].seen = max(u.batches[i].seen, now)
			}
		}
	}
}

// Floor is the earliest time the clock may be set back to without bringing
// back units that had ended. A backend may have dropped such units or may
// have them still, so nobody can say what it has to answer then.
func (m *Model) Floor() int64 {
	floor := int64(0)
	for _, windows := range m.subjects {
		for _, u := range windows {
			if u.bucket != nil && u.bucket.seen >= u.bucket.ends {
				floor = max(floor, u.bucket.ends)
			}
			for _, b := range u.batches {
				if end := u.end(b); end <= b.seen {
					floor = max(floor, end)
				}
			}
		}
	}
	return floor
}
