package ration

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"time"
)

// NewLocal counts in this process alone, with no Redis: in a ring of Slots+1 slots per subject and
// window, read and charged as [NewSlidingBuckets] does it.
//
// It promises at most Units in every span of a Window, in this process. The price is that a unit is
// held for up to one slot (Window/Slots) longer than a Window. Several limits are charged together or
// not at all. What LimitsFor says acts at once; a subject whose Window changes starts a fresh count,
// and its old ring is kept until it holds nothing.
//
// Time is the wall clock when NewLocal is called and monotonic from then on: setting the wall clock
// changes nothing. A caller that comes late with an older time is counted in the newest slot.
// [WithClock] puts in another clock and says what happens when that is set back.
//
// Subjects live in a table of bounded size, see [WithMaxSubjects]. One takes about 330 bytes under one
// limit of 20 slots, 16 of them for its name, 8 more for each slot more and about 270 for each further
// limit. Only admitted calls make an entry. Entries that have run out go when the table needs room, else
// about once a second, when a call looks through its shard, which takes tens of microseconds. Subjects
// longer than 128 bytes are kept as a digest, which costs a call allocations.
//
// A decision takes one short lock, the subject's own, and no allocation under one limit. It costs the
// same however many slots there are, but for what may take a pass over the ring: catching up after a
// pause, the RetryAfter of a refusal and, under several limits, the ResetAfter.
//
// The Limiter has no goroutine and nothing to close; drop it when it's done with. NewLocal fails with
// ErrInvalidPolicy or ErrInvalidOption.
func NewLocal(p Policy, opts ...LocalOption) (Limiter, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	o := localOptions{subjects: 100_000}
	for _, opt := range opts {
		if opt == nil {
			continue
		}
		if err := opt.applyLocal(&o); err != nil {
			return nil, err
		}
	}
	p.Limits = slices.Clone(p.Limits)
	l := &localLimiter{policy: p, slots: p.slots()}
	l.table.init(o.subjects)
	l.LimiterFunc = l.do
	l.fixed = l.bind(nil, p.Limits)
	l.clock.start, l.clock.now = time.Now(), o.now
	l.clock.unix, l.clock.latest = l.clock.start.UnixNano(), noTime
	if o.now != nil && len(l.fixed) > 0 {
		l.clock.slack = slices.MinFunc(l.fixed, func(a, b ringLimit) int { return cmp.Compare(a.width, b.width) }).width
	}
	return l, nil
}

// LocalOption changes how [NewLocal] sets up its Limiter. Nil options are passed over.
type LocalOption interface{ applyLocal(*localOptions) error }

type localOptionFunc func(*localOptions) error

func (f localOptionFunc) applyLocal(o *localOptions) error { return f(o) }

type localOptions struct {
	now      func() time.Time
	subjects int
}

// WithClock takes the time from a function, for tests and for programs with a clock of their own. nil
// means the default, the monotonic clock. It's asked once a call, by one goroutine at a time, and must
// not call the Limiter. A clock that is set back frees nothing early and locks nobody out for long:
//
//   - By no more than a slot (the shortest of the policy's Limits; none if it has only LimitsFor) below
//     the latest time seen, the latest slot with units stays the current one until the clock has
//     caught up, as in Redis.
//   - By more, the step is no time at all: the Limiter's time goes on from the call before, as fast as
//     the clock. Units an hour old are still an hour old after a step of two days.
//
// So RetryAfter, counted from the present clock, is never above the Window, its slot, and that shortest
// slot. A step forward is time gone by, also when it undoes one back: for a clock that swings to and
// fro by more than a slot, time runs fast.
func WithClock(now func() time.Time) LocalOption {
	return localOptionFunc(func(o *localOptions) error {
		o.now = now
		return nil
	})
}

// WithMaxSubjects bounds the number of subjects that hold units at one time: 1 or more, the default is
// 100,000; fewer is ErrInvalidOption.
//
// A subject that holds units is never thrown out to make room. Where there is none, one without units
// is refused: Remaining is 0, and after RetryAfter another has run out. [LocalStats] counts such calls.
// So a flood of made-up names can't free an exhausted subject, but it can keep new ones out: choose n
// for all that may be active in the longest Window.
//
// The table is cut into shards for 512 to 1,023 subjects each (one shard if n is below 1,024). There
// are never more than n subjects in all, but chance fills one shard before another: count on 85 % of n.
func WithMaxSubjects(n int) LocalOption {
	return localOptionFunc(func(o *localOptions) error {
		if n < 1 {
			return fmt.Errorf("%w: WithMaxSubjects: %d is below 1", ErrInvalidOption, n)
		}
		o.subjects = n
		return nil
	})
}

// LocalStats are numbers of a Limiter made by [NewLocal].
type LocalStats struct {
	// Subjects is the number of subjects that hold units now.
	Subjects int
	// Overflowed is the number of calls so far refused only for want of room for another subject.
	Overflowed uint64
}

// ReadLocalStats gives the numbers of a Limiter made by [NewLocal], and false for any other. It first
// throws out what has run out, looking through one shard after another.
func ReadLocalStats(l Limiter) (LocalStats, bool) {
	local, ok := l.(*localLimiter)
	if !ok {
		return LocalStats{}, false
	}
	stats := LocalStats{Overflowed: local.table.overflow.Load()}
	now := local.clock.micros() - local.clock.slack
	for i := range local.table.shards {
		sh := &local.table.shards[i]
		sh.mu.Lock()
		sh.sweep(now)
		stats.Subjects += sh.live
		sh.mu.Unlock()
	}
	return stats, true
}

// localLimiter decides by the rings of its table. LimiterFunc has the methods that may take longer.
type localLimiter struct {
	LimiterFunc
	policy Policy
	slots  int64
	fixed  []ringLimit // the policy's own limits
	clock  localClock
	table  table
}

func (l *localLimiter) Allow(ctx context.Context, key string) (d Decision, err error) {
	err = l.decide(ctx, Request{Op: OpAllow, Key: key, N: 1}, &d)
	return d, err
}

func (l *localLimiter) AllowN(ctx context.Context, key string, n int64) (d Decision, err error) {
	err = l.decide(ctx, Request{Op: OpAllow, Key: key, N: n}, &d)
	return d, err
}

func (l *localLimiter) do(ctx context.Context, r Request) (d Decision, err error) {
	err = l.decide(ctx, r, &d)
	return d, err
}

// ringLimit is a limit made ready for its rings.
type ringLimit struct {
	Limit
	window, width int64 // microseconds
}

func (l *localLimiter) bind(to []ringLimit, limits []Limit) []ringLimit {
	for _, lim := range limits {
		window := lim.micros()
		width, _ := slottedWindow(l.policy, window)
		to = append(to, ringLimit{Limit: lim, window: window, width: width})
	}
	return to
}

// decide answers a call into d, where the caller wants it: copies of a Decision show.
func (l *localLimiter) decide(ctx context.Context, r Request, d *Decision) error {
	r, err := r.check(ctx)
	if err != nil {
		return err
	}
	if l.policy.LimitsFor == nil {
		l.answer(&r, l.fixed, d)
		return nil
	}
	limits, err := l.policy.limitsFor(ctx, r.Key)
	if err == nil {
		err = ctx.Err() // LimitsFor may have taken its time
	}
	if err == nil {
		var buf [MaxLimits]ringLimit
		l.answer(&r, l.bind(buf[:0], limits), d)
	}
	return err
}

// answer carries out a call: all that it reads and changes of a subject in one section under the
// subject's lock, or its shard's if it's a new one.
func (l *localLimiter) answer(r *Request, limits []ringLimit, d *Decision) {
	key := tableKey(r.Key)
	hash := maphash.String(l.table.seed, key) | 1 // 0 marks an empty slot
	sh := &l.table.shards[int(hash>>32)&(len(l.table.shards)-1)]
	now := l.clock.micros()
	if sh.due.Load() <= now-l.clock.slack {
		sh.mu.Lock()
		sh.sweep(now - l.clock.slack)
		sh.mu.Unlock()
	}
	e := sh.index.Load().find(hash, "")
	if e == nil || !l.apply(r, e, key, limits, now, d) {
		sh.mu.Lock()
		if e = sh.index.Load().find(hash, key); e == nil {
			l.applyNew(r, sh, key, hash, limits, now, d)
		} else {
			l.apply(r, e, key, limits, now, d)
		}
		sh.mu.Unlock()
	}
	if r.Op == OpRefund || r.Op == OpReset {
		sh.mu.Lock()
		sh.free = noTime // the entry may hold nothing any more
		sh.mu.Unlock()
	}
}

// apply does the work on an entry, unless that is gone or another subject's.
func (l *localLimiter) apply(r *Request, e *entry, key string, limits []ringLimit, now int64, d *Decision) bool {
	e.mu.Lock()
	ours := !e.gone && e.key == key
	switch {
	case !ours:
	case len(limits) == 1 && e.first.window == limits[0].window && r.Op <= OpPeek:
		d.applyOne(r, &e.first, &limits[0], now)
	default:
		if r.Op == OpRefund || r.Op == OpReset {
			d.Granted = e.refund(r, limits, now)
		} else if d.Granted = fits(r, e.room(limits, now)); d.Granted > 0 {
			l.charge(e, limits, now, d.Granted)
		}
		d.tell(r, e, limits, now, 0)
	}
	e.mu.Unlock()
	return ours
}

// applyNew does the work for a subject that has no entry.
func (l *localLimiter) applyNew(r *Request, sh *shard, key string, hash uint64, limits []ringLimit, now int64, d *Decision) {
	var e *entry // none
	crowd := sh.wait(l.table.room, now-l.clock.slack)
	if fits(r, e.room(limits, now)) > 0 {
		if crowd == 0 {
			e = &entry{key: strings.Clone(key), hash: hash, first: ring{newest: noTime}}
			l.apply(r, e, key, limits, now, d)
			sh.insert(e)
			return
		}
		l.table.overflow.Add(1)
	}
	d.tell(r, e, limits, now, crowd)
}

// fits is the number of units that a call may be granted.
func fits(r *Request, room int64) int64 {
	switch {
	case r.Op == OpAllow && r.N <= room:
		return r.N
	case r.Op == OpAllowUpTo:
		return max(0, min(r.N, room))
	}
	return 0
}

// charge counts n units under every limit.
func (l *localLimiter) charge(e *entry, limits []ringLimit, now, n int64) {
	for i := range limits {
		rg := e.ring(limits[i].window)
		if rg == nil {
			rg = e.add(&limits[i], l.slots, now-l.clock.slack)
			rg.seek(now)
		}
		rg.charge(n)
	}
}

// room is the number of units that fit now. It brings the rings to now.
func (e *entry) room(limits []ringLimit, now int64) int64 {
	room := int64(math.MaxInt64)
	for i := range limits {
		left := limits[i].Units
		if rg := e.ring(limits[i].window); rg != nil {
			rg.seek(now)
			left -= rg.used
		}
		room = min(room, left)
	}
	return max(0, room)
}

// refund gives back up to N units under every limit, or for a reset all. It says how many under the one
// that gave most.
func (e *entry) refund(r *Request, limits []ringLimit, now int64) (given int64) {
	for i := range limits {
		rg := e.ring(limits[i].window)
		switch {
		case rg == nil:
		case r.Op == OpReset:
			rg.newest, rg.used = noTime, 0
		default:
			rg.seek(now)
			given = max(given, rg.refund(r.N))
		}
	}
	return given
}

// applyOne is room, charge and tell for one limit whose ring is there.
func (d *Decision) applyOne(r *Request, rg *ring, lim *ringLimit, now int64) {
	rg.seek(now)
	d.Limit, d.Source = lim.Limit, Ring
	if d.Granted = fits(r, lim.Units-rg.used); d.Granted > 0 {
		rg.charge(d.Granted)
	}
	d.Remaining = max(0, lim.Units-rg.used)
	if rg.used > 0 {
		d.ResetAfter = micros(rg.ends() - now)
	}
	cost := int64(1)
	if r.Op == OpAllow {
		cost = r.N
	}
	switch {
	case d.Granted > 0, cost <= d.Remaining: // the latter is a Peek
		d.Allowed = true
	case cost > lim.Units:
		d.RetryAfter = Never
	default:
		d.RetryAfter = micros(rg.wait(cost, lim.Units, now))
	}
}

// tell describes what is counted after the call, of which Granted tells already. crowd is the number of
// microseconds until there is a place for the subject.
func (d *Decision) tell(r *Request, e *entry, limits []ringLimit, now, crowd int64) {
	cost := int64(1) // of the call whose waiting time the answer tells
	switch {
	case d.Granted > 0 && r.Op != OpRefund:
		cost = 0
	case r.Op == OpAllow:
		cost = r.N
	}
	d.Source = Ring
	if lim := &limits[0]; len(limits) == 1 { // as settle, without a slice that outlives the call
		d.Limit = lim.Limit
		d.Remaining, d.RetryAfter, d.ResetAfter = lim.state(e.ring(lim.window), now, cost, crowd)
		d.Allowed = cost == 0 || d.Remaining > 0 && (r.Op == OpPeek || r.Op == OpRefund)
		return
	}
	states := make([]LimitState, len(limits))
	units, whole := int64(math.MaxInt64), crowd
	for i := range limits {
		lim, s := &limits[i], &states[i]
		s.Limit = lim.Limit
		s.Remaining, s.RetryAfter, s.ResetAfter = lim.state(e.ring(lim.window), now, cost, crowd)
		units = min(units, lim.Units)
	}
	d.settle(*r, states)
	for i := range limits {
		if rg := e.ring(limits[i].window); rg != nil {
			whole = max(whole, rg.wait(units, limits[i].Units, now))
		}
	}
	d.ResetAfter = micros(whole)
}

// state is one limit's part of the answer; rg may be nil.
func (lim *ringLimit) state(rg *ring, now, cost, crowd int64) (remaining int64, retry, reset time.Duration) {
	remaining = lim.Units
	switch {
	case crowd > 0:
		remaining, retry, reset = 0, micros(crowd), micros(crowd)
	case rg != nil && rg.used > 0:
		remaining = max(0, lim.Units-rg.used)
		if cost <= lim.Units {
			retry = micros(rg.wait(cost, lim.Units, now))
		}
		reset = micros(rg.ends() - now)
	}
	if cost > lim.Units {
		retry = Never
	}
	return remaining, retry, reset
}
