package ration

import (
	"context"
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// leaseTier spends blocks of units taken from Redis.
//
// A subject has at most one block at a time. A call that the block has units for takes them by
// one atomic step; others go to Redis and are merged there as ever, while a goroutine fetches the next block:
// so nobody waits for a block. When a new block comes, or the hold ends, what is left of the old one goes back.
type leaseTier struct {
	global *redisLimiter
	store  *Store
	opts   tierOptions

	seed   maphash.Seed
	shards [tierShards]tierShard
	recent atomic.Pointer[subject] // that got a block last: found without a lock
	beat   *heartbeat              // nil if the number of instances is given

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // fetches and returns under way
}

const (
	tierShards = 64
	// maxTierSubjects is the most subjects of a shard. What is more goes to Redis call by call.
	maxTierSubjects = 2048
	// sweepEvery is how often a shard that is full is looked through: or else each new name would cost that.
	sweepEvery = 100 * time.Millisecond
	// longestHeld is the longest subject, in bytes, that gets blocks, so that the table is bounded in bytes too.
	longestHeld = 512
	// worthwhile is the number of calls in a hold from which on a subject gets blocks.
	worthwhile = 4
)

type tierShard struct {
	mu       sync.RWMutex
	subjects map[string]*subject
	swept    time.Duration // when it was last looked through
	_        [24]byte
}

// subject is what this instance knows of one.
type subject struct {
	key    string
	block  atomic.Pointer[block]
	asking atomic.Bool // a block is under way

	mu    sync.Mutex
	since time.Duration // since when calls and units are counted
	calls int64         // that went to Redis
	units int64         // asked for by them
	cost  int64         // of one of them, on average
	size  int64         // of the last block
	later time.Duration // no block is asked for before
	voids int           // how often what was held became void
	gone  bool          // taken out of the table
}

// block is a number of units that Redis has charged already.
type block struct {
	left    atomic.Int64 // below 0: over
	lapses  atomic.Bool  // none is to follow
	void    atomic.Bool  // the subject was reset: nothing is given back
	size    int64
	low     int64         // get the next block when there is no more left than this,
	renew   time.Duration // or from this time on
	began   time.Duration // when it was asked for
	expires time.Duration // it's not to be spent from then on
	end     int64         // as when Redis counts it, on its clock
	limits  []Limit
	bound   []boundLimit
	told    Decision // what Redis had left
	timer   *time.Timer
}

// over is what left is set to when a block must not be spent any more, so low that
// nobody's mistaken step makes it positive.
const over = math.MinInt64 / 2

func newLeaseTier(g *redisLimiter, o tierOptions) *leaseTier {
	t := &leaseTier{global: g, store: g.store, opts: o, seed: maphash.MakeSeed()}
	for i := range t.shards {
		t.shards[i].subjects = map[string]*subject{}
	}
	if o.instances == 0 {
		t.beat = newHeartbeat(g, 0)
	}
	g.store.adopt(t.close)
	return t
}

// hold is for how long a block may be spent; 0 if it's not worth while.
func (t *leaseTier) hold(limits []Limit) time.Duration {
	window := shortest(limits)
	hold := t.opts.hold
	if hold == 0 {
		hold = min(100*time.Millisecond, window/50)
	}
	if hold = min(hold, window/2); hold < time.Millisecond {
		return 0
	}
	return hold
}

func (t *leaseTier) answer(ctx context.Context, r Request, limits []Limit, bound []boundLimit, d *Decision) error {
	switch r.Op {
	case OpRefund:
		return t.refund(ctx, r, limits, bound, d)
	case OpReset:
		s := t.find(r.Key)
		s.void()
		defer s.void() // what came while Redis was asked
		return t.global.answerUnder(ctx, r, limits, bound, d)
	case OpPeek:
		err := t.global.answerUnder(ctx, r, limits, bound, d)
		d.add(r, t.find(r.Key).left(t.store.since(), bound))
		return err
	}
	s := t.recent.Load()
	if s == nil || s.key != r.Key {
		s = t.subject(r.Key)
	}
	var part int64
	b := s.current(bound)
	if b == nil {
		t.drop(s, bound)
	} else {
		now := t.store.since()
		part = b.take(now, r.N, r.Op == OpAllowUpTo || r.N <= fewest(limits))
		if part == r.N {
			if (now >= b.renew || b.left.Load() <= b.low) && !b.lapses.Load() {
				t.fetch(s, limits, bound)
			}
			b.tell(d, part, now)
			return nil
		}
	}
	return t.ask(ctx, r, s, b, part, limits, bound, d)
}

// ask asks Redis for what a block didn't have, part of a call's units or all.
func (t *leaseTier) ask(ctx context.Context, r Request, s *subject, b *block, part int64, limits []Limit, bound []boundLimit, d *Decision) error {
	rest := r
	rest.N -= part
	err := t.global.answerUnder(ctx, rest, limits, bound, d)
	if s.note(r.N, t.store.since(), t.hold(limits)) { // not before: the block would take what the call asks for
		t.fetch(s, limits, bound)
	}
	switch {
	case part == 0:
	case r.Op == OpAllowUpTo && err != nil:
		b.tell(d, part, t.store.since())
		return nil // what was taken is granted
	case r.Op == OpAllowUpTo:
		d.Granted += part
		d.allow()
	case err == nil && d.Allowed:
		d.Granted += part
	default:
		if !b.putBack(part) && !b.void.Load() { // another block came meanwhile
			t.start(func() { _ = t.giveUnits(r.Key, b, part) })
		}
	}
	if err == nil {
		d.add(r, s.left(t.store.since(), bound))
	}
	return err
}

// refund gives back to the block what was spent of it, then the oldest units in Redis.
func (t *leaseTier) refund(ctx context.Context, r Request, limits []Limit, bound []boundLimit, d *Decision) error {
	var back int64
	b := t.find(r.Key).current(bound)
	if b != nil {
		now := t.store.since()
		if back = b.unspend(now, r.N); back == r.N {
			b.tell(d, back, now)
			return nil
		}
	}
	t.global.store.forgive(r.Key)
	defer t.global.store.forgive(r.Key)
	rest := r
	rest.N -= back
	err := t.global.shed(ctx, r.Key, limits, bound, rest.N, d)
	if _, failed := err.(*backendError); failed {
		err = t.global.fail(rest, limits, bound, err, d)
	}
	if err != nil && back > 0 {
		b.tell(d, back, t.store.since())
		return nil // what was given back is
	}
	d.Granted += back
	if err == nil {
		d.add(r, t.find(r.Key).left(t.store.since(), bound))
	}
	return err
}

// add counts what a block holds to an answer by Redis.
func (d *Decision) add(r Request, left int64) {
	if left <= 0 || d.Source != Redis {
		return
	}
	d.Remaining += left
	for i := range d.Limits {
		d.Limits[i].Remaining += left
	}
	if r.Op == OpPeek || r.Op == OpRefund {
		d.allow()
	}
}

// allow makes a refusal none.
func (d *Decision) allow() {
	d.Allowed, d.RetryAfter = true, 0
	for i := range d.Limits {
		d.Limits[i].RetryAfter = 0
	}
}

// find gives a subject if it's known; the methods of subject that may be called on nil say so.
func (t *leaseTier) find(key string) *subject {
	sh := &t.shards[maphash.String(t.seed, key)%tierShards]
	sh.mu.RLock()
	s := sh.subjects[key]
	sh.mu.RUnlock()
	return s
}

// subject finds or makes a subject; nil if there is no room for it.
func (t *leaseTier) subject(key string) *subject {
	if s := t.find(key); s != nil || len(key) > longestHeld {
		return s
	}
	sh := &t.shards[maphash.String(t.seed, key)%tierShards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.subjects[key]
	if s == nil && len(sh.subjects) >= maxTierSubjects {
		t.sweep(sh)
	}
	if s == nil && len(sh.subjects) < maxTierSubjects {
		s = &subject{key: strings.Clone(key)}
		sh.subjects[s.key] = s
	}
	return s
}

// sweep throws out subjects that hold nothing and weren't asked for lately.
func (t *leaseTier) sweep(sh *tierShard) {
	now := t.store.since()
	if sh.swept > 0 && now-sh.swept < sweepEvery {
		return
	}
	sh.swept = now
	for key, s := range sh.subjects {
		if s.retire(now) {
			delete(sh.subjects, key)
			t.recent.CompareAndSwap(s, nil)
		}
	}
}
