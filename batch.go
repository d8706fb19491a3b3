package ration

import (
	"runtime"
	"sync"
	"time"
)

// Calls share script runs by group commit. A call that finds its lane free
// leaves at once; while runs are under way, later calls gather, equal ones as
// one item, and leave together as soon as a run returns. There is no timer to
// wait for, so a lone caller never waits for anybody.
//
// go-redis has pipelining of its own (AutoPipeline, experimental). It saves
// round trips, as this does, but every call would still be a script run on the
// server, which is where the time goes: so it isn't used. A run is one command, or
// one pipeline of commands where several scripts or hash slots are concerned.

// lane is the road to one server: calls on it share runs.
type lane struct {
	store   *Store
	breaker *breaker

	mu      sync.Mutex
	pending []*item            // to leave with the next run, in order
	joined  map[mergeKey]*item // those of them that more calls may join
	last    *item              // the one joined last, most likely to be joined next
	runs    []*run             // under way, at most batch.Runs
	crowd   int                // calls an item of the run that left last
	work    chan *run          // to the parked drivers; nil sends one home
	parked  int                // drivers that wait for work
	watch   *time.Timer        // fires when the oldest call may be out of budget
	armed   bool
	used    bool // since watch fired last
	soon    bool // watch fires when patience is over
	closed  bool
	idle    chan struct{} // closed when closed and nothing is under way
	notes   []any         // events for the observer, to be told without the lock
	telling bool          // a goroutine is at it
}

// run is one trip to the server.
type run struct {
	items []*item
	calls int
	start time.Duration
	done  func(error) // tells the breaker how it went; nil once told, or if the breaker
	kept  error       // keeps it back, for this reason
}

func newLane(s *Store) *lane {
	ln := &lane{
		store:  s,
		joined: map[mergeKey]*item{},
		work:   make(chan *run, s.opts.batch.Runs),
		idle:   make(chan struct{}),
	}
	ln.breaker = newBreaker(s, func(e BreakerEvent) { ln.note(e) })
	return ln
}

// join makes c a call of an item that's about to leave, an existing or a new one, and
// starts a run if one may start; it returns the run if its caller is to carry it.
func (ln *lane) join(c *call, key mergeKey, build func() *item) (*run, error) {
	merge := key.limiter != nil && !ln.store.opts.alone
	ln.mu.Lock()
	if merge && !ln.closed {
		if it := ln.find(key); it != nil {
			ln.add(it, c)
			ln.mu.Unlock()
			return nil, nil
		}
	}
	ln.mu.Unlock()
	fresh := build() // outside the lock: it makes the keys
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.closed {
		return nil, ErrClosed
	}
	it := fresh
	if merge {
		if other := ln.find(key); other != nil { // came while it was built
			it = other
		} else {
			it.key = key
			ln.joined[key] = it
		}
	}
	ln.add(it, c)
	if it == fresh {
		ln.pending = append(ln.pending, it)
	}
	if ln.store.obedient && c.ctx.Done() == nil && len(ln.runs) == 0 && len(ln.pending) == 1 && it == fresh {
		return ln.takeoff(), nil
	}
	ln.depart()
	return nil, nil
}

func (ln *lane) find(key mergeKey) *item {
	it := ln.last
	if it == nil || it.key != key {
		it = ln.joined[key]
	}
	if it == nil || int64(len(it.calls)+1) > MaxUnits/max(1, it.n) {
		return nil
	}
	ln.last = it
	return it
}

func (ln *lane) add(it *item, c *call) {
	c.it = it
	it.calls = append(it.calls, c)
	ln.used = true
	if !ln.armed {
		ln.armed = true
		ln.arm(min(ln.store.opts.timeout, lookOut))
	}
}

func (ln *lane) arm(d time.Duration) {
	if ln.watch == nil {
		ln.watch = time.AfterFunc(d, ln.expire)
	} else {
		ln.watch.Reset(d)
	}
}

// depart starts runs while there is something to send and room for a run.
func (ln *lane) depart() {
	for len(ln.runs) < ln.store.opts.batch.Runs || ln.store.opts.alone {
		if ln.splits() {
			return
		}
		r := ln.takeoff()
		if r == nil {
			return
		}
		if ln.parked > 0 {
			ln.parked--
			ln.work <- r
		} else {
			go ln.drive(r)
		}
	}
}

// splits says that another run would only split a crowd that is better off
// together: many calls share an item, and those that have gathered make few
// items. It's never so beside a run that takes long: that one may be held up alone.
func (ln *lane) splits() bool {
	if len(ln.runs) == 0 || ln.crowd < crowded || len(ln.pending) >= ln.store.opts.batch.Items/4 {
		return false
	}
	now := ln.store.since()
	for _, r := range ln.runs {
		if now-r.start >= patience {
			return false
		}
	}
	if len(ln.pending) > 0 && !ln.soon { // or nobody would look again while all wait
		ln.soon = true
		ln.arm(patience)
	}
	return true
}

// patience is how long a run may keep a crowd waiting that could go by another.
const patience = 5 * time.Millisecond

// crowded is the number of calls an item from which on it pays to fill the next run.
const crowded = 4

// takeoff makes a run of what is pending, nil if that's nothing. Calls whose
// callers have left are withdrawn here, before anything is sent.
func (ln *lane) takeoff() *run {
	var r *run
	sent, bytes := 0, 0
	for _, it := range ln.pending {
		if r != nil && (len(r.items) == ln.store.opts.batch.Items || bytes+it.bytes > ln.store.opts.batch.Bytes) {
			break
		}
		sent++
		if it.key.limiter != nil {
			delete(ln.joined, it.key)
		}
		if ln.last == it {
			ln.last = nil
		}
		if !it.board() {
			continue
		}
		if r == nil {
			r = &run{start: ln.store.since()}
			ln.runs = append(ln.runs, r)
		}
		r.items = append(r.items, it)
		r.calls += len(it.calls)
		bytes += it.bytes
	}
	if r != nil {
		ln.crowd = r.calls / len(r.items)
		r.done, r.kept = ln.breaker.begin()
	}
	rest := copy(ln.pending, ln.pending[sent:])
	clear(ln.pending[rest:])
	ln.pending = ln.pending[:rest]
	return r
}

// board gives the calls that are still waiting their places; false if there is none.
func (it *item) board() bool {
	aboard := it.calls[:0]
	for _, c := range it.calls {
		if c.state.Load() == waiting {
			c.place = int64(len(aboard))
			aboard = append(aboard, c)
		}
	}
	it.calls, it.count = aboard, int64(len(aboard))
	return it.count > 0
}

// drive sees a run through, then takes what has gathered meanwhile, until
// there is nothing left. Then it stays for a while: a fresh goroutine would grow its stack
// through the whole client again.
func (ln *lane) drive(r *run) {
	for r != nil {
		ln.store.execute(r)
		ln.mu.Lock()
		ln.drop(r)
		notes := ln.collect()
		ln.mu.Unlock()
		for _, it := range r.items {
			for _, c := range it.calls {
				c.answer(nil)
			}
		}
		ln.tell(notes)
		if r.calls >= crowded*len(r.items) {
			runtime.Gosched() // those just answered may ask again, and join the next run
		}
		var stay bool
		if r, stay = ln.next(); stay {
			r = <-ln.work
		}
	}
}

// next is a driver's next run. If there is none the driver may stay, parked.
func (ln *lane) next() (r *run, stay bool) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if len(ln.runs) < ln.store.opts.batch.Runs && !ln.splits() {
		r = ln.takeoff()
	}
	if r != nil {
		return r, false
	}
	ln.settle()
	if ln.closed || ln.parked == cap(ln.work) {
		return nil, false
	}
	ln.parked++
	return nil, true
}

// retire sends the parked drivers home.
func (ln *lane) retire() {
	for ; ln.parked > 0; ln.parked-- {
		ln.work <- nil
	}
}

// drop takes a run that's over off the list; it may be off already, given up by expire.
func (ln *lane) drop(r *run) { ln.remove(r, r.outcome) }

// giveUp takes a run off the list that took its whole budget.
func (ln *lane) giveUp(r *run) {
	err := errBudget(ln.store.opts.timeout)
	ln.remove(r, func() (first, all error) { return err, err })
}

func (ln *lane) remove(r *run, outcome func() (first, all error)) {
	if r.done != nil {
		first, all := outcome()
		r.done(all)
		r.done = nil
		if first != nil {
			ln.note(FailureEvent{Class: ClassOf(first), Err: first, Calls: r.calls})
		}
	}
	for i := range ln.runs {
		if ln.runs[i] == r {
			last := len(ln.runs) - 1
			ln.runs[i], ln.runs[last] = ln.runs[last], nil
			ln.runs = ln.runs[:last]
			return
		}
	}
}

// settle tells Close when nothing is under way any more, and the observer has heard of all.
func (ln *lane) settle() {
	if !ln.closed || len(ln.runs) > 0 || len(ln.pending) > 0 || len(ln.notes) > 0 || ln.telling {
		return
	}
	select {
	case <-ln.idle:
	default:
		close(ln.idle)
	}
	if ln.watch != nil {
		ln.watch.Stop()
	}
	ln.retire()
}

// lookOut is how often a lane in use is looked after at least: a driver that
// nobody needs any more goes home after twice that.
const lookOut = 100 * time.Millisecond

// expire fails the calls that are out of budget, wherever they are, and gives up
// on runs that took a whole budget, so that they hold up nobody else. Budgets are
// watched here, once for all, because a timer a call would cost more than the rest of it.
func (ln *lane) expire() {
	ln.mu.Lock()
	ln.lookAround()
	notes := ln.collect()
	ln.mu.Unlock()
	ln.tell(notes)
}

func (ln *lane) lookAround() {
	ln.soon = false
	now, budget := ln.store.since(), ln.store.opts.timeout
	oldest := now
	check := func(items []*item) {
		for _, it := range items {
			for _, c := range it.calls {
				if now-c.start < budget {
					oldest = min(oldest, c.start)
				} else if c.state.Load() == waiting {
					c.stale = true
					c.answer(errBudget(budget))
				}
			}
		}
	}
	check(ln.pending)
	for i := len(ln.runs) - 1; i >= 0; i-- {
		r := ln.runs[i]
		check(r.items)
		if now-r.start >= budget {
			ln.giveUp(r)
		} else {
			oldest = min(oldest, r.start)
		}
	}
	ln.depart()
	ln.armed = ln.used || len(ln.runs) > 0 || len(ln.pending) > 0
	switch {
	case ln.soon: // armed by splits
	case ln.armed:
		ln.arm(min(lookOut, max(time.Millisecond, budget-(now-oldest))))
	default:
		ln.retire()
	}
	ln.used = false
	ln.settle()
}

// shut makes later calls fail and waits for those under way.
func (ln *lane) shut() {
	ln.mu.Lock()
	ln.closed = true
	ln.breaker.until.Store(0) // calls are to hear ErrClosed
	ln.settle()
	ln.mu.Unlock()
	<-ln.idle
	ln.breaker.until.Store(0)
}
