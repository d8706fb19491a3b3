package ration

import (
	"context"
	"sync"
	"time"
)

// take takes n units out of the block, or if part is welcome as many as there are.
func (b *block) take(now time.Duration, n int64, part bool) int64 {
	for now < b.expires {
		left := b.left.Load()
		k := min(left, n)
		if k <= 0 || k < n && !part {
			break
		}
		// Never less than what is there, for a moment either: what ends the block takes left as it finds it.
		if b.left.CompareAndSwap(left, left-k) {
			return k
		}
	}
	return 0
}

// putBack undoes a take, unless the block is over.
func (b *block) putBack(n int64) bool {
	for {
		left := b.left.Load()
		if left < 0 {
			return false
		}
		if b.left.CompareAndSwap(left, left+n) {
			return true
		}
	}
}

// unspend gives back up to n units that were taken out of a block which can still be spent.
func (b *block) unspend(now time.Duration, n int64) int64 {
	for now < b.expires {
		left := b.left.Load()
		k := min(n, b.size-left)
		if left < 0 || k <= 0 {
			break
		}
		if b.left.CompareAndSwap(left, left+k) {
			return k
		}
	}
	return 0
}

// finish ends the block and gives the units that weren't used.
func (b *block) finish() int64 {
	if b.timer != nil {
		b.timer.Stop()
	}
	return max(0, b.left.Swap(over))
}

// tell answers a call that the block granted units to, or took some back from.
func (b *block) tell(d *Decision, granted int64, now time.Duration) {
	left, ago := max(0, b.left.Load()), now-b.began
	d.Allowed, d.Granted, d.Source, d.Limit = true, granted, Lease, b.told.Limit
	d.Remaining = left + b.told.Remaining
	d.ResetAfter = max(0, b.told.ResetAfter-ago)
	if len(b.told.Limits) == 0 {
		return
	}
	d.Limits = make([]LimitState, len(b.told.Limits))
	for i, s := range b.told.Limits {
		d.Limits[i] = LimitState{Limit: s.Limit, Remaining: s.Remaining + left, ResetAfter: max(0, s.ResetAfter-ago)}
	}
}

// current gives the block if it was taken under such limits, else nil; s may be nil.
func (s *subject) current(bound []boundLimit) *block {
	if s == nil {
		return nil
	}
	b := s.block.Load()
	if b == nil || &b.bound[0] != &bound[0] && !sameCounts(b.bound, bound) {
		return nil
	}
	return b
}

// left is what the block holds; s may be nil.
func (s *subject) left(now time.Duration, bound []boundLimit) int64 {
	if b := s.current(bound); b != nil && now < b.expires {
		return max(0, b.left.Load())
	}
	return 0
}

// note counts a call that goes to Redis, and says whether a block is worth while. s may be nil.
func (s *subject) note(n int64, now, hold time.Duration) bool {
	if s == nil || hold == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since == 0 || now-s.since > 2*hold && s.block.Load() == nil {
		s.since, s.calls, s.units, s.size = now, 0, 0, 0
	}
	s.calls++
	s.units = min(s.units+min(n, MaxUnits), MaxUnits)
	s.cost = max(1, s.units/s.calls)
	return s.calls >= worthwhile && now >= s.later
}

// void makes what is held, or under way, not to be spent any more, nor given back. s may be nil.
func (s *subject) void() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.voids++
	b := s.block.Swap(nil)
	s.mu.Unlock()
	if b != nil {
		b.void.Store(true)
		b.finish()
	}
}

// retire says that the subject may be forgotten, and marks it so.
func (s *subject) retire(now time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = s.block.Load() == nil && !s.asking.Load() && now-s.since > time.Second
	return s.gone
}

// want is the size of the next block: what was asked for in a hold lately and a quarter more,
// but no more than four times the last one, since a burst is short. 0 if none is worth while.
func (s *subject) want(now, hold time.Duration) (n int64, voids int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	units := s.units
	if b := s.block.Load(); b != nil {
		units += b.size - max(0, b.left.Load())
	}
	elapsed := max(now-s.since, hold/64, time.Microsecond)
	perHold := float64(units) * float64(hold) / float64(elapsed)
	if perHold >= float64(worthwhile*s.cost) {
		n = int64(min(perHold*5/4+1, float64(4*max(s.size, worthwhile*s.cost))))
	}
	s.since, s.calls, s.units = now, 0, 0
	return n, s.voids
}

// lapse lets the present block run out, and has none asked for before a time.
func (s *subject) lapse(later time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.later = later
	if b := s.block.Load(); b != nil {
		b.lapses.Store(true)
	}
}

// drop gives back a block that was taken under other limits.
func (t *leaseTier) drop(s *subject, bound []boundLimit) {
	if s == nil {
		return
	}
	if old := s.block.Load(); old != nil && !sameCounts(old.bound, bound) {
		t.start(func() { // or else close gives it back
			if s.block.CompareAndSwap(old, nil) {
				t.giveBack(s.key, old)
			}
		})
	}
}

// fetch has the next block come, unless one is under way.
func (t *leaseTier) fetch(s *subject, limits []Limit, bound []boundLimit) {
	if !s.asking.CompareAndSwap(false, true) {
		return
	}
	if !t.start(func() { t.fetchNow(s, limits, bound) }) {
		s.asking.Store(false)
	}
}

// start runs f on a goroutine that Close waits for; false if the tier is closed.
func (t *leaseTier) start(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.work.Go(f)
	return true
}

func (t *leaseTier) fetchNow(s *subject, limits []Limit, bound []boundLimit) {
	defer s.asking.Store(false)
	began, hold := t.store.since(), t.hold(limits)
	want, voids := s.want(began, hold)
	if t.opts.largest > 0 {
		want = min(want, t.opts.largest)
	}
	var got leased
	var err error
	if want > 0 {
		got, err = t.global.lease(context.Background(), s.key, limits, bound, want, 2*t.instances(), hold)
	}
	now := t.store.since()
	if err != nil || got.units == 0 {
		s.lapse(now + hold/4)
		return
	}
	b := newBlock(got, began, limits, bound)
	t.event(LeaseEvent{Policy: t.global.policy.Name, Taken: got.units})
	old, ok := t.install(s, b, now, voids)
	if old != nil {
		_ = t.giveBack(s.key, old)
	}
	if !ok {
		_ = t.giveBack(s.key, b)
	}
}

func newBlock(got leased, began time.Duration, limits []Limit, bound []boundLimit) *block {
	term := got.term - got.term/64 // a slow clock of ours takes this much longer
	b := &block{
		size: got.units, low: got.units / 4, began: began, renew: began + term*3/4, expires: began + term,
		end: got.end, limits: limits, bound: bound, told: got.left,
	}
	b.left.Store(got.units)
	return b
}

// install makes b the subject's block. It's not to be if the tier or the subject is gone, or if
// the subject was reset meanwhile: then Redis may count b or not, and nothing is given back.
func (t *leaseTier) install(s *subject, b *block, now time.Duration, voids int) (old *block, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.voids != voids {
		b.finish()
		return nil, true
	}
	if t.closed || s.gone || now >= b.expires {
		return nil, false
	}
	s.size = b.size
	if b.size < worthwhile {
		s.later = b.expires // little is left: call by call
	}
	b.timer = time.AfterFunc(b.expires-now, func() {
		t.start(func() { // or else close gives it back
			if s.block.CompareAndSwap(b, nil) {
				_ = t.giveBack(s.key, b)
			}
		})
	})
	t.recent.Store(s)
	return s.block.Swap(b), true
}

// giveBack ends a block and gives its unused units back.
func (t *leaseTier) giveBack(key string, b *block) error { return t.giveUnits(key, b, b.finish()) }

// giveUnits gives units of a block that's over back, once: should that fail Redis counts them until their
// window ends.
func (t *leaseTier) giveUnits(key string, b *block, unused int64) error {
	if unused == 0 {
		return nil
	}
	back, err := t.global.giveBack(context.Background(), key, b.bound, unused, b.end)
	if err != nil {
		back = 0
	} else {
		t.global.store.forgive(key)
	}
	t.event(LeaseEvent{Policy: t.global.policy.Name, Unused: unused, Lost: unused - back})
	return err
}

func (t *leaseTier) event(e LeaseEvent) {
	if o := t.store.opts.observer; o != nil {
		o.Leased(e)
	}
}

// instances is how many there are, as far as is known.
func (t *leaseTier) instances() int64 {
	if t.beat == nil {
		return int64(t.opts.instances)
	}
	t.beat.use()
	return t.beat.instances()
}

// returners is how many blocks are given back at once on Close, so that they share runs.
const returners = 64

// close gives back all that is held and waits for what is under way, both at once, so that it takes no
// longer than a call's budget where Redis doesn't answer.
func (t *leaseTier) close() {
	t.mu.Lock()
	t.closed = true // nothing is installed from now on
	t.mu.Unlock()
	var all sync.WaitGroup
	all.Go(t.work.Wait)
	if t.beat != nil {
		all.Go(t.beat.close)
	}
	room := make(chan struct{}, returners)
	var silent sync.Map // lanes whose server gave no answer: the rest isn't tried there
	for s, b := range t.release() {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			ln := t.store.lanes.of(s.key)
			if _, is := silent.Load(ln); is {
				unused := b.finish()
				t.event(LeaseEvent{Policy: t.global.policy.Name, Unused: unused, Lost: unused})
			} else if t.giveBack(s.key, b) != nil {
				silent.Store(ln, true)
			}
		})
	}
	all.Wait()
}

// release takes all blocks from their subjects.
func (t *leaseTier) release() map[*subject]*block {
	held := map[*subject]*block{}
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.RLock()
		for _, s := range sh.subjects {
			if b := s.block.Swap(nil); b != nil {
				held[s] = b
			}
		}
		sh.mu.RUnlock()
	}
	return held
}
