package ration

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// DenyCacheTime is how long a refusal is remembered at most, see [WithDenyCache].
const DenyCacheTime = time.Second

// WithDenyCache remembers refusals: a subject that Redis has refused until a known
// instant is refused again without asking, for a cost at least as large, so that a flood of
// refused calls costs Redis one call a second and subject. entries is the largest number of
// subjects remembered a policy and strategy; 0, the default, means none, a
// negative number is ErrInvalidOption. One takes about 400 bytes.
//
// A refusal is never remembered for longer than Redis said, nor for longer than
// DenyCacheTime. Reset, Refund and changed numbers in this process end it at once; those in
// others are seen after DenyCacheTime at the latest, and so are units that others give back. Such a Decision's
// Source is DenyCache, its Remaining is what Redis said. Its RetryAfter is when the
// remembered refusal ends: a larger cost may have to wait longer. When the cache is full a new
// refusal takes an old one's place, for whose subject Redis is asked again.
func WithDenyCache(entries int) Option {
	return optionFunc(func(o *options) error {
		if entries < 0 {
			return fmt.Errorf("%w: WithDenyCache: %d is negative", ErrInvalidOption, entries)
		}
		o.denied = entries
		return nil
	})
}

// denyCache remembers the refusals of one policy and strategy, whichever limiter met them.
type denyCache struct {
	store  *Store
	policy string
	seed   maphash.Seed
	room   int          // entries a shard may have
	count  atomic.Int64 // entries in all
	shards []denyShard
}

type denyShard struct {
	mu      sync.RWMutex
	entries map[string]*denial
	cleared uint64 // how often a subject's refusal was made void
	_       [24]byte
}

// denial is a refusal, never changed once stored.
type denial struct {
	bound    []boundLimit // the numbers it was made with
	cost     int64
	decision Decision
	retry    time.Duration // on the store's clock: when the call may pass
	until    time.Duration // when to ask Redis again
}

const denyShards = 64

func newDenyCache(s *Store, policy string) *denyCache {
	n := min(denyShards, s.opts.denied)
	c := &denyCache{store: s, policy: policy, seed: maphash.MakeSeed(), room: s.opts.denied / n, shards: make([]denyShard, n)}
	for i := range c.shards {
		c.shards[i].entries = map[string]*denial{}
	}
	return c
}

// denials gives the cache of a policy and strategy, nil if there is to be none.
func (s *Store) denials(policy, code string) *denyCache {
	if s.opts.denied == 0 {
		return nil
	}
	c, _ := s.caches.LoadOrStore(policy+":"+code, newDenyCache(s, policy))
	return c.(*denyCache)
}

// forgive makes a subject's refusals void, of all policies: combined limiters have counts in common with others.
func (s *Store) forgive(key string) {
	s.caches.Range(func(_, c any) bool {
		c.(*denyCache).clear(key)
		return true
	})
}

func (c *denyCache) shard(key string) *denyShard {
	return &c.shards[maphash.String(c.seed, key)%uint64(len(c.shards))]
}

// least is the smallest cost that r's refusal holds for, 0 if it's none to remember.
func least(r *Request) int64 {
	switch r.Op {
	case OpAllow:
		return r.N
	case OpAllowUpTo:
		return 1 // it's refused when a single unit would be
	}
	return 0
}

// refuses makes d a refusal that was remembered, if there is one for the call. If
// not, mark is for remember.
func (c *denyCache) refuses(r *Request, bound []boundLimit, d *Decision) (refused bool, mark uint64) {
	sh := c.shard(r.Key)
	sh.mu.RLock()
	e := sh.entries[r.Key]
	mark = sh.cleared
	sh.mu.RUnlock()
	cost := least(r)
	if e == nil || cost < e.cost || c.store.closed.Load() {
		return false, mark
	}
	now := c.store.since()
	if now >= e.until || !sameCounts(e.bound, bound) {
		return false, mark
	}
	e.tell(r, bound, now, d)
	return true, mark
}

// tell makes d the refusal as it is now, for a call that costs at least as much.
func (e *denial) tell(r *Request, bound []boundLimit, now time.Duration, d *Decision) {
	*d = e.decision
	d.Source = DenyCache
	ago := e.decision.RetryAfter - (e.retry - now)
	d.RetryAfter -= ago
	d.ResetAfter -= ago
	if len(d.Limits) > 0 {
		d.Limits = make([]LimitState, len(e.decision.Limits))
		for i, s := range e.decision.Limits {
			if s.RetryAfter != Never {
				s.RetryAfter = max(0, s.RetryAfter-ago)
			}
			s.ResetAfter = max(0, s.ResetAfter-ago)
			d.Limits[i] = s
		}
	}
	for i := range bound {
		if r.Op != OpAllow || r.N <= bound[i].args.units {
			continue
		}
		if len(d.Limits) > 0 {
			if d.RetryAfter != Never { // the first that never lets it pass decides
				d.Limit = d.Limits[i].Limit
			}
			d.Limits[i].RetryAfter = Never
		}
		d.RetryAfter = Never
	}
}

// sameCounts says whether limits have the same numbers and are counted in the same keys:
// windows that are cut alike aren't.
func sameCounts(a, b []boundLimit) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].args != b[i].args || a[i].base != b[i].base {
			return false
		}
	}
	return true
}

// remember stores a refusal by Redis of a call that began at a time, unless the subject's
// refusals were made void since mark.
func (c *denyCache) remember(r *Request, bound []boundLimit, d *Decision, began time.Duration, mark uint64) {
	if d.Allowed || d.Source != Redis || d.RetryAfter == Never || least(r) == 0 {
		return
	}
	e := &denial{bound: bound, cost: least(r), decision: *d}
	e.decision.Limits = slices.Clone(d.Limits) // the caller may do with its own what it likes
	e.retry = began + d.RetryAfter
	e.until = began + min(d.RetryAfter, DenyCacheTime)
	sh := c.shard(r.Key)
	sh.mu.Lock()
	if sh.cleared != mark {
		sh.mu.Unlock()
		return
	}
	old, now := sh.entries[r.Key], c.store.since()
	event := CacheEvent{Policy: c.policy, Stored: true}
	switch {
	case old == nil && len(sh.entries) >= c.room:
		event.Evicted = sh.evict(now)
	case old == nil:
		c.count.Add(1)
		event.Change = 1
	case e.cost > old.cost && now < old.until && sameCounts(old.bound, bound):
		sh.mu.Unlock()
		return // the old one holds for more calls
	}
	sh.entries[strings.Clone(r.Key)] = e // an assignment keeps the new key, which is the caller's
	sh.mu.Unlock()
	if o := c.store.opts.observer; o != nil {
		event.Entries = int(c.count.Load())
		o.Cached(event)
	}
}

// evict makes room for one: an entry that has run out, if one is met soon, else any. It
// says whether the entry was still good.
func (sh *denyShard) evict(now time.Duration) bool {
	looked, victim := 0, ""
	for key, e := range sh.entries {
		victim = key
		if now >= e.until {
			delete(sh.entries, key)
			return false
		}
		if looked++; looked == 8 {
			break
		}
	}
	delete(sh.entries, victim)
	return true
}

// clear makes a subject's refusals void, those under way included.
func (c *denyCache) clear(key string) {
	sh := c.shard(key)
	sh.mu.Lock()
	sh.cleared++
	_, had := sh.entries[key]
	delete(sh.entries, key)
	sh.mu.Unlock()
	if had {
		n := c.count.Add(-1)
		if o := c.store.opts.observer; o != nil {
			o.Cached(CacheEvent{Policy: c.policy, Entries: int(n), Change: -1})
		}
	}
}
