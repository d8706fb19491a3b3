package ration

import (
	"context"
	"sync/atomic"
	"time"
)

// call is one caller's wait for its answer.
type call struct {
	state atomic.Int32
	done  chan struct{} // gets one value when state became answered
	ctx   context.Context
	start time.Duration // on the store's clock, guarded by lane.mu once it has joined
	it    *item
	place int64 // among the item's calls
	err   error // beside the item's own
	stale bool  // a run may still hold it: not to be used again
}

const (
	waiting int32 = iota
	answered
	left // its caller has gone
)

func newCall() any { return &call{done: make(chan struct{}, 1)} }

// answer wakes the caller, unless it has left or got another answer.
func (c *call) answer(err error) {
	if c.state.CompareAndSwap(waiting, answered) {
		c.err = err
		c.done <- struct{}{}
	}
}

// ask brings a call to Redis and back. It returns the call's item and place in it.
func (ln *lane) ask(ctx context.Context, key mergeKey, build func() *item) (*item, int64, error) {
	if err := ln.breaker.admit(); err != nil {
		return nil, 0, err
	}
	c := ln.store.calls.Get().(*call)
	c.ctx, c.start = ctx, ln.store.since()
	own, err := ln.join(c, key, build)
	if err != nil {
		return nil, 0, err
	}
	if own != nil {
		ln.carry(own)
	}
	if ended := ctx.Done(); ended == nil {
		<-c.done
	} else {
		select {
		case <-c.done:
		case <-ended:
			if c.state.CompareAndSwap(waiting, left) {
				return nil, 0, ctx.Err() // a run, or pending, may still hold c
			}
			<-c.done
		}
	}
	it, place, err := c.it, c.place, c.err
	if err == nil {
		err = it.err
	}
	if !c.stale {
		c.ctx, c.it, c.err = nil, nil, nil
		c.state.Store(waiting)
		ln.store.calls.Put(c)
	}
	return it, place, err
}

// carry sees through the run of a caller that found the lane free and waits for nothing but
// the answer, on its own goroutine: that saves two switches. What gathers
// meanwhile goes with a driver.
func (ln *lane) carry(r *run) {
	ln.store.execute(r)
	ln.mu.Lock()
	ln.drop(r)
	ln.depart()
	ln.settle()
	notes := ln.collect()
	ln.mu.Unlock()
	r.items[0].calls[0].answer(nil)
	ln.tell(notes)
}
