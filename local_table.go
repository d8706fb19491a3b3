package ration

import (
	"hash/maphash"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// table holds the subjects of a local limiter in shards.
//
// An entry is found without a lock and decided on under its own, so subjects don't wait for each other.
// A shard's lock is for what changes the table: new subjects, and sweeps, that throw out entries whose
// units have run out. It's taken before an entry's lock, never after.
type table struct {
	seed     maphash.Seed
	shards   []shard
	room     int           // entries a shard may have
	overflow atomic.Uint64 // calls refused for want of room
}

const (
	subjectsPerShard = 512 // enough that chance fills shards about evenly, few enough for a short sweep
	maxShards        = 1 << 16
	minIndex         = 16
	sweepPeriod      = 1_000_000 // microseconds between the sweeps of a shard that has room
)

// init makes a table for a number of subjects in all.
func (t *table) init(subjects int) {
	n := min(max(subjects/subjectsPerShard, 1), maxShards)
	n = 1 << (bits.Len(uint(n)) - 1)
	t.seed, t.shards, t.room = maphash.MakeSeed(), make([]shard, n), subjects/n
	for i := range t.shards {
		sh := &t.shards[i]
		sh.index.Store(&emptyIndex)
		sh.due.Store(noTime)
		sh.free = noTime
	}
}

// tableKey is the text a subject is kept by: its own, or a digest if it's long. What could be taken for
// a digest is escaped.
func tableKey(subject string) string {
	if len(subject) > maxSubject || subject[0] == '%' {
		return escapeSubject(subject)
	}
	return subject
}

// entry is one subject: two cache lines, of which a decision writes to the first alone, mostly. Its lock
// guards the rings; gone changes under both locks.
type entry struct {
	mu    sync.Mutex
	first ring
	key   string
	hash  uint64
	gone  bool // it was taken out of the table
}

// ring is the entry's ring for a window in microseconds, nil if it has none or is nil itself.
func (e *entry) ring(window int64) *ring {
	if e == nil {
		return nil
	}
	rg := &e.first
	for rg != nil && rg.window != window {
		rg = rg.next
	}
	return rg
}

// add makes a ring for a window. Rings that have run out go.
func (e *entry) add(lim *ringLimit, slots, now int64) *ring {
	fresh := ring{
		window: lim.window, width: lim.width, current: noTime, newest: noTime,
		counts: make([]int64, slots+1), next: e.first.next,
	}
	for link := &fresh.next; *link != nil; {
		if (*link).ends() <= now {
			*link = (*link).next
		} else {
			link = &(*link).next
		}
	}
	if e.first.ends() <= now {
		e.first = fresh
		return &e.first
	}
	e.first.next = &fresh
	return &fresh
}

// ends is when the last of the entry's rings runs out.
func (e *entry) ends() int64 {
	at := e.first.ends()
	for rg := e.first.next; rg != nil; rg = rg.next {
		at = max(at, rg.ends())
	}
	return at
}

// index is a hash table with linear probing. Its length is a power of two; some slots were never taken.
type index []slot

// slot has hash 0 if it was never taken, and no entry if that was removed.
type slot struct {
	hash  atomic.Uint64
	entry atomic.Pointer[entry]
}

var emptyIndex = make(index, 1)

func (x index) at(i uint64) *slot { return &x[i&uint64(len(x)-1)] }

func (x index) add(e *entry) {
	i := e.hash
	for x.at(i).hash.Load() != 0 {
		i++
	}
	x.at(i).entry.Store(e)
	x.at(i).hash.Store(e.hash)
}

// shard is one cache line. Its lock guards all changes.
type shard struct {
	mu    sync.Mutex
	due   atomic.Int64 // when to sweep next
	index atomic.Pointer[index]
	taken int    // slots of the index that were ever taken
	live  int    // those with an entry
	free  int64  // no entry runs out before this time
	first *entry // the one that was to run out first when last swept; nil only if free is noTime
	_     [8]byte
}

// find finds the entry of a hash and a key, or of a hash and any key if it's empty. Without the shard's
// lock it may miss one that is there, and find one that is gone.
func (x index) find(hash uint64, key string) *entry {
	for i := hash; ; i++ {
		s := x.at(i)
		switch s.hash.Load() {
		case hash:
			if e := s.entry.Load(); e != nil && (key == "" || e.key == key) {
				return e
			}
		case 0:
			return nil
		}
	}
}

// insert adds a new entry that holds units.
func (sh *shard) insert(e *entry) {
	if 4*(sh.taken+1) > 3*len(*sh.index.Load()) {
		sh.rehash()
	}
	sh.free = min(sh.free, e.ends())
	sh.taken++
	sh.live++
	sh.index.Load().add(e) // from here on it's everybody's
}

// rehash makes an index for at least twice the entries there are. Since the last time about as many came
// or went, so it costs each of those a constant.
func (sh *shard) rehash() {
	n := minIndex
	for n < 2*(sh.live+1) {
		n *= 2
	}
	old, x := *sh.index.Load(), make(index, n)
	for i := range old {
		if e := old[i].entry.Load(); e != nil {
			x.add(e)
		}
	}
	sh.taken = sh.live
	sh.index.Store(&x)
}

// sweep throws out all entries that have run out.
func (sh *shard) sweep(now int64) {
	sh.due.Store(now + sweepPeriod)
	if now < sh.free {
		return
	}
	sh.free, sh.first = noTime, nil
	x := *sh.index.Load()
	for i := range x {
		e := x[i].entry.Load()
		if e == nil {
			continue
		}
		e.mu.Lock()
		end := e.ends()
		e.gone = end <= now
		e.mu.Unlock()
		switch {
		case end <= now:
			x[i].entry.Store(nil)
			sh.live--
		case sh.first == nil || end < sh.free:
			sh.free, sh.first = end, e
		}
	}
	if len(x) > minIndex && sh.live < len(x)/16 {
		sh.rehash()
	}
}

// wait is the number of microseconds until a shard that may have room entries takes a new one, if nobody
// else calls: 0 if it does now.
func (sh *shard) wait(room int, now int64) int64 {
	if sh.live >= room && now >= sh.free {
		sh.sweep(now)
	}
	if sh.live < room {
		return 0
	}
	sh.first.mu.Lock()
	defer sh.first.mu.Unlock()
	return max(1, sh.first.ends()-now)
}

// ring counts one subject under one window. The slots counted are the current one and the len(counts)-1
// before it. All times are microseconds of Unix time; a slot goes by its start.
//
// Only charges and refunds change what is stored: newest, top and counts. current and used, the running
// total, are moved to the instant of each call, forwards or (by a late caller) backwards.
type ring struct {
	window  int64
	width   int64   // of a slot
	current int64   // the current slot
	newest  int64   // the latest slot with units, or noTime
	used    int64   // units in the slots counted
	top     int64   // units in newest
	head    int     // newest's place in counts; earlier slots lie before it, round the end
	counts  []int64 // units by slot; at head they may be out of date, top has them
	next    *ring   // of the same subject, for another window
}

// noTime is before all times, far enough from the end to be reckoned with.
const noTime int64 = math.MinInt64 / 4

// seek makes now the instant of what follows. For a time before the latest slot with units that slot is
// the current one.
func (r *ring) seek(now int64) {
	if past := now - r.current; past < 0 || past >= r.width {
		r.turn(now)
	}
}

func (r *ring) turn(now int64) {
	current := now - now%r.width
	if current > now { // before 1970
		current -= r.width
	}
	current = max(current, r.newest)
	span := int64(len(r.counts)-1) * r.width
	was, oldest := r.current-span, current-span
	r.current = current
	r.counts[r.head] = r.top
	if r.used > 0 {
		for i := r.at(was); was < oldest && r.used > 0; i = r.after(i) {
			r.used -= r.counts[i]
			was += r.width
		}
	}
	for slot := min(was-r.width, r.newest); slot >= oldest; slot -= r.width {
		r.used += r.counts[r.at(slot)]
	}
}

// at is the place of a slot in counts: of newest or of one of those before it.
func (r *ring) at(slot int64) int {
	i := r.head - int((r.newest-slot)/r.width)
	if i < 0 {
		i += len(r.counts)
	}
	return i
}

// after is the place of the slot after the one at i.
func (r *ring) after(i int) int {
	if i++; i == len(r.counts) {
		return 0
	}
	return i
}

// charge counts n units in the current slot. If that's a new one, those between are empty, and all
// of them take the places of slots that aren't counted any more.
func (r *ring) charge(n int64) {
	if r.newest < r.current {
		if steps := (r.current - r.newest) / r.width; steps < int64(len(r.counts)) {
			for range steps {
				r.head = r.after(r.head)
				r.counts[r.head] = 0
			}
		} else {
			clear(r.counts)
		}
		r.newest, r.top = r.current, 0
	}
	r.top += n
	r.used += n
}

// refund gives back up to n units, newest first, and says how many.
func (r *ring) refund(n int64) int64 {
	given := min(n, r.used)
	if given == 0 {
		return 0
	}
	r.used -= given
	r.counts[r.head] = r.top
	for slot, left := r.newest, given; left > 0; slot -= r.width {
		count := &r.counts[r.at(slot)]
		take := min(left, *count)
		*count -= take
		left -= take
	}
	for range r.counts {
		if r.top = r.counts[r.head]; r.top > 0 {
			return given
		}
		r.newest -= r.width
		if r.head--; r.head < 0 {
			r.head = len(r.counts) - 1
		}
	}
	r.newest = noTime
	return given
}

// wait is the number of microseconds until n units fit into units, n being no more than units.
func (r *ring) wait(n, units, now int64) int64 {
	excess := n - (units - r.used)
	switch {
	case excess <= 0:
		return 0
	case excess > r.used-r.top:
		return r.ends() - now
	}
	// The oldest slot ends with the current one, the next a slot later, and so on.
	end := r.current + r.width
	for i := r.at(end - int64(len(r.counts))*r.width); ; i = r.after(i) {
		if excess -= r.counts[i]; excess <= 0 {
			return end - now
		}
		end += r.width
	}
}

// ends is the time from which nothing is counted, noTime if nothing is stored.
func (r *ring) ends() int64 {
	if r.newest == noTime {
		return noTime
	}
	return r.newest + int64(len(r.counts))*r.width
}

// localClock tells the time in microseconds of Unix time. A clock of the caller's may be set back: the
// time falls by no more than slack below its latest, and else moves only as the clock does.
type localClock struct {
	start time.Time // with a monotonic reading
	unix  int64     // the same in nanoseconds
	slack int64

	mu     sync.Mutex // held while the clock is read: readings that overtake each other are no steps
	now    func() time.Time
	offset int64 // added to the clock
	last   int64 // the last time told
	latest int64 // the latest time told
}

func (c *localClock) micros() int64 {
	if c.now == nil {
		return (c.unix + int64(time.Since(c.start))) / int64(time.Microsecond)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.now().UnixMicro() + c.offset
	if t < c.latest-c.slack {
		c.offset += c.last - t
		t = c.last
	}
	c.last, c.latest = t, max(c.latest, t)
	return t
}
