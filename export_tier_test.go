package ration

import (
	"fmt"
	"strings"
	"time"
)

// What the tests of package ration_test need of the inside.

// SetClock puts in a clock that runs fast or slow.
func (s *Store) SetClock(clock func() time.Duration) { s.clock = clock }

// SetTierClock puts in what a clock shows for the ring of a share.
func SetTierClock(l Limiter, now func() time.Time) {
	if t := l.(*twoTier); t.share != nil {
		t.share.ring.clock.now = now
	}
}

// BlockTimers calls f for each block that is held, with the time on the store's clock at which it
// ends and its timer, so that a timer can be as late as its process is.
func BlockTimers(l Limiter, f func(end time.Duration, timer *time.Timer)) {
	t := l.(*twoTier).lease
	if t == nil {
		return
	}
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.RLock()
		for _, s := range sh.subjects {
			if b := s.block.Load(); b != nil {
				f(b.expires, b.timer)
			}
		}
		sh.mu.RUnlock()
	}
}

// TierSubjects is how many subjects a lease tier knows.
func TierSubjects(l Limiter) (n int) {
	t := l.(*twoTier).lease
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.RLock()
		n += len(sh.subjects)
		sh.mu.RUnlock()
	}
	return n
}

// Held is what this process holds of a subject, and for how long yet.
func Held(l Limiter, key string) (units int64, left time.Duration) {
	t := l.(*twoTier).lease
	s := t.find(key)
	if s == nil {
		return 0, 0
	}
	b := s.block.Load()
	if b == nil {
		return 0, 0
	}
	return max(0, b.left.Load()), b.expires - t.store.since()
}

// Instances is how many instances a lease tier takes there to be.
func Instances(l Limiter) int64 { return l.(*twoTier).lease.instances() }

// Placed says whether a share tier has a place.
func Placed(l Limiter) bool { return l.(*twoTier).share.beat.placed() }

// RunItem is an item of a command that a store sent, with what Redis did.
type RunItem struct {
	Op      byte
	N       int64 // of a call
	Calls   int64
	Granted int64
	Subject string
	Units   []int64 // of its limits
	Term    time.Duration
	End     int64
}

// RunItems reads a command as scripts/driver.lua does, with its reply. It gives nil for a command
// that isn't a strategy's, and for one without a sound reply.
func RunItems(args []any, reply any) (items []RunItem) {
	numbers, ok := reply.([]any)
	text, _ := args[1].(string)
	if !ok || len(args) < 4 || text == beatScript.sha || text == beatScript.text {
		return nil
	}
	keys := args[3 : 3+args[2].(int)]
	rest := args[3+len(keys)+1:]
	if text == logScript.sha || text == logScript.text {
		rest = rest[1:]
	}
	var units []int64
	own := int64(0) // keys of an item
	for len(rest) > 0 {
		it := RunItem{N: rest[1].(int64), Calls: 1}
		op, limits := rest[0].(string), rest[2].(int)
		it.Op = op[0]
		if it.Op == opAllow || it.Op == opUpTo || it.Op == opPeek {
			fmt.Sscan(op[1:], &it.Calls)
		}
		rest = rest[3:]
		if limits > 0 {
			units, own = nil, 0
			for range limits {
				units, own = append(units, rest[0].(int64)), own+rest[2].(int64)
				rest = rest[3:]
			}
		}
		it.Units = units
		_, subject, _ := strings.Cut(keys[0].(string), "{")
		it.Subject, _, _ = strings.Cut(subject, "}")
		keys = keys[own:]
		size := (&item{script: fixedScript, op: it.Op, limits: make([]boundLimit, len(units))}).replyLen()
		it.Granted = numbers[0].(int64)
		if it.Op == opLease {
			it.Term, it.End = micros(numbers[size-2].(int64)), numbers[size-1].(int64)
		}
		numbers = numbers[size:]
		items = append(items, it)
	}
	return items
}

// IsShare says which mode a two-tier limiter is of.
func IsShare(l Limiter) bool { return l.(*twoTier).share != nil }

// NilRedisLimiter is a typed nil.
var NilRedisLimiter Limiter = (*redisLimiter)(nil)
