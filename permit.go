package ration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Permit is n units in flight, got from [Concurrency.Acquire]. It must be released: one that never
// is stays renewed until the store is closed or the process ends. All methods are safe for
// concurrent use, and on a nil Permit, which holds nothing.
type Permit struct {
	c     *Concurrency
	key   string
	id    string // of its lease; "" if it has none, by the failure rule
	n     int64
	tally *tally // of FailLocal, else nil

	ctx context.Context // ends when the permit does, with ErrPermitLost if it's lost
	end context.CancelCauseFunc

	mu       sync.Mutex
	until    time.Duration // on the store's clock: the lease is surely alive before
	released bool
	timer    *time.Timer // the next renewal, or attempt to give back; nil if there is none
}

// Done gives a channel that is closed when the units are no longer surely held: the permit was released, or is
// lost, because its lease couldn't be renewed for nearly TTL, because Redis doesn't know it any more, or because
// the store was closed. One that has no lease, by FailOpen or FailLocal, is never lost. See Lost for which.
func (p *Permit) Done() <-chan struct{} {
	if p == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	p.expire()
	return p.ctx.Done()
}

// Lost says whether the permit was lost before it was released: its units may be somebody else's now, so the
// work must stop. It looks at the clock in this very moment: who asks after a pause of the process (a stopped
// container, say) gets the truth at once, before any timer has fired. The clock is Go's monotonic one, which some
// machines stop while they are suspended as a whole; such a pause is noticed at the next renewal only.
func (p *Permit) Lost() bool {
	if p == nil {
		return true
	}
	p.expire()
	return context.Cause(p.ctx) == ErrPermitLost
}

// Release gives the units back, once however often it's called. When the first call returns, Redis has them; if
// Redis can't be reached, that call takes as long as any other at most, and more attempts are made in the background
// until the lease has run out. After [Store.Close] nothing is sent: the lease runs out. There is no
// error, since there would be nothing to do about it.
func (p *Permit) Release() {
	if p == nil {
		return
	}
	p.expire()
	p.end(errReleased)
	p.mu.Lock()
	again := p.released
	p.released = true
	if !again {
		p.disarm()
	}
	p.mu.Unlock()
	switch {
	case again:
	case p.tally != nil:
		p.tally.give(p.key, p.n)
	case p.id != "" && p.c.begin():
		p.giveBack(p.c.store.since() + p.c.policy.TTL)
		p.c.work.Done()
	}
}

// errReleased ends a permit in good order.
var errReleased = errors.New("ration: released")

// permit makes one that has no lease yet.
func (c *Concurrency) permit(key string, n int64) *Permit {
	p := &Permit{c: c, key: key, n: n}
	p.ctx, p.end = context.WithCancelCause(context.Background())
	return p
}

// hold makes p the permit of a lease that was asked for when it began.
func (p *Permit) hold(began time.Duration) error {
	p.key = strings.Clone(p.key) // it may be a part of something large
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = began + p.c.term()
	now := p.c.store.since()
	if now >= p.until {
		return errLate
	}
	if !p.c.track(p) {
		return ErrClosed
	}
	p.arm(began+p.c.policy.TTL/3-now, p.renew)
	return nil
}

// term is how long a lease is surely alive from when it was asked for, by a clock that may be a little slow.
func (c *Concurrency) term() time.Duration { return c.policy.TTL - c.policy.TTL/64 }

// retry is the pause after an attempt that failed.
func (c *Concurrency) retry() time.Duration {
	return min(max(c.policy.TTL/24, 10*time.Millisecond), time.Second)
}

// track has Close end p.
func (c *Concurrency) track(p *Permit) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.held[p] = struct{}{}
	}
	return !c.closed
}

func (c *Concurrency) untrack(p *Permit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, p)
}

// arm has f called on a goroutine of its own, with mu held.
func (p *Permit) arm(after time.Duration, f func()) {
	if !p.c.begin() {
		return
	}
	p.timer = time.AfterFunc(after, func() {
		defer p.c.work.Done()
		f()
	})
}

// disarm takes back what arm did, if there is still time, with mu held.
func (p *Permit) disarm() {
	if p.timer != nil && p.timer.Stop() {
		p.c.work.Done()
	}
	p.timer = nil
}

// expire ends a permit whose lease may be over.
func (p *Permit) expire() {
	if p.id == "" || p.ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	over := p.c.store.since() >= p.until
	p.mu.Unlock()
	if over {
		p.lose()
	}
}

// lose ends a permit that wasn't released, and all that is under way for it.
func (p *Permit) lose() {
	p.end(ErrPermitLost)
	p.mu.Lock()
	p.disarm()
	p.mu.Unlock()
	p.c.untrack(p)
}

// renew prolongs the lease, and sees to it that it's called again in time: at the lease's end at the latest.
func (p *Permit) renew() {
	began := p.c.store.since()
	p.mu.Lock()
	left := p.until - began
	p.mu.Unlock()
	if p.ctx.Err() != nil {
		return
	}
	if left <= 0 {
		p.lose()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), left)
	defer cancel()
	reply, err := p.c.ask(ctx, permitKeep, p.key, p.id, p.n, 0)
	now := p.c.store.since()
	p.mu.Lock()
	next := p.c.retry()
	if err == nil {
		next = began + p.c.policy.TTL/3 - now
		p.until = began + p.c.term()
	}
	over := now >= p.until || err == nil && reply[0] == 0
	if !over && p.ctx.Err() == nil {
		p.arm(min(next, p.until-now), p.renew)
	}
	p.mu.Unlock()
	if over {
		p.lose()
	}
}

// giveBack ends the lease in Redis, if need be in several attempts, until it has run out by itself.
func (p *Permit) giveBack(until time.Duration) {
	_, err := p.c.ask(context.Background(), permitRelease, p.key, p.id, p.n, 0)
	if err != nil && p.c.store.since() < until && p.c.track(p) {
		p.mu.Lock()
		p.arm(p.c.retry(), func() { p.giveBack(until) })
		p.mu.Unlock()
		return
	}
	p.c.untrack(p)
}

// abandon gives back what an Acquire may have got whose answer nobody has: at once, and if that found nothing again
// after a budget, since the Acquire may have been overtaken on its way.
func (p *Permit) abandon() {
	reply, err := p.c.ask(context.Background(), permitRelease, p.key, p.id, p.n, 0)
	if err == nil && reply[0] > 0 || !p.c.track(p) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arm(p.c.store.opts.timeout, func() {
		_, _ = p.c.ask(context.Background(), permitRelease, p.key, p.id, p.n, 0)
		p.c.untrack(p)
	})
}

// The letters of scripts/concurrency.lua.
const (
	permitAcquire = "a"
	permitKeep    = "k"
	permitRelease = "r"
	permitLook    = "p"
)

// permitReply is the number of integers that a script answers to a permit's item.
const permitReply = 4

// ask brings a call for a lease to Redis and back. No other call joins it.
func (c *Concurrency) ask(ctx context.Context, op, key, id string, n, limit int64) ([]int64, error) {
	if n > MaxUnits { // it can never pass: Lua need not count so far
		n = MaxUnits + 2
	}
	it, _, err := c.store.lanes.of(key).ask(ctx, mergeKey{}, func() *item {
		name := c.base + escapeSubject(key) + "}"
		return &item{
			script: permitScript, n: n, keys: []string{name}, bytes: len(name) + len(id) + 72,
			permit: []any{op, id, n, limit, c.policy.TTL.Microseconds()},
		}
	})
	if err != nil {
		return nil, err
	}
	return it.reply, nil
}

// encodePermits is encode for scripts/concurrency.lua.
func encodePermits(args []any, items []*item, header []any) []any {
	args = append(args, len(items))
	for _, it := range items {
		args = append(args, it.keys[0])
	}
	args = append(args, header...)
	for _, it := range items {
		args = append(args, it.permit...)
	}
	return args
}

// decodePermits is decode for scripts/concurrency.lua.
func decodePermits(reply []any, items []*item) error {
	if len(reply) != permitReply*len(items) {
		return fmt.Errorf("%w: %d values to %d permits", errReply, len(reply), len(items))
	}
	numbers := make([]int64, len(reply))
	for i, v := range reply {
		n, ok := v.(int64)
		if !ok || n < 0 || n > MaxUnits {
			return fmt.Errorf("%w: a %T at %d out of its range", errReply, v, i)
		}
		if i%permitReply == 0 && n != 0 && n != items[i/permitReply].n {
			return fmt.Errorf("%w: %d of %d units granted", errReply, n, items[i/permitReply].n)
		}
		numbers[i] = n
	}
	for i, it := range items {
		it.reply = numbers[permitReply*i : permitReply*(i+1)]
	}
	return nil
}

// tally counts the units that a process lets through by FailLocal. A subject is there while it holds some.
type tally struct {
	mu    sync.Mutex
	units map[string]int64
}

// take is an Acquire under a process's share of the limit.
func (t *tally) take(r Request, limit, instances int64, d *Decision) {
	share := min(limit, max(1, limit/instances))
	t.mu.Lock()
	defer t.mu.Unlock()
	free := share - t.units[r.Key]
	if d.Allowed = r.N <= free; d.Allowed {
		d.Granted = r.N
		free -= r.N
		t.units[strings.Clone(r.Key)] += r.N
	}
	d.Source, d.Limit, d.Remaining = Ring, Limit{Name: inFlight, Units: share}, max(0, free)
}

func (t *tally) give(key string, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.units[key] -= n; t.units[key] <= 0 {
		delete(t.units, key)
	}
}
