package ration_test

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/rationgo/ration"
)

// live has things happen to the instances until the end.
func (w *simWorld) live() {
	events := w.events()
	for !w.over() {
		if len(events) == 0 {
			pass(time.Until(w.end))
			return
		}
		// At least two holds between changes: an instance that isn't asked doesn't see limits
		// that come and go within one.
		pass(2*w.hold + time.Duration(w.rng.Int64N(int64(w.longest()/2))))
		if !w.over() {
			events[w.rng.IntN(len(events))]()
		}
	}
}

func (w *simWorld) events() (events []func()) {
	for _, e := range []struct {
		on   bool
		what func()
	}{
		{w.pauses, w.pauseSome}, {w.crashes, func() { w.lose((*simInstance).crash) }},
		{w.closes, func() { w.lose((*simInstance).close) }}, {w.outages, w.breakRedis}, {w.changes, w.changeLimits},
	} {
		if e.on {
			events = append(events, e.what)
		}
	}
	return events
}

func (w *simWorld) some() int { return w.rng.IntN(len(w.alive)) }

func (w *simWorld) pauseSome() {
	in := w.alive[w.some()]
	d := time.Duration(w.rng.Int64N(int64(3 * w.longest())))
	if w.rng.IntN(2) == 0 {
		d = time.Duration(w.rng.Int64N(int64(2*w.hold + 1)))
	}
	d = min(d, time.Until(w.end))
	if in.paused.CompareAndSwap(false, true) {
		w.work.Go(func() {
			in.pause(d)
			in.paused.Store(false)
		})
	}
}

// lose ends an instance; mostly another comes.
func (w *simWorld) lose(how func(*simInstance)) {
	i := w.some()
	in := w.alive[i]
	w.mu.Lock()
	w.alive = append(w.alive[:i:i], w.alive[i+1:]...)
	w.gone = append(w.gone, in)
	w.mu.Unlock()
	how(in)
	if len(w.alive) == 0 || w.made < 2*w.instances && w.rng.IntN(4) > 0 {
		w.start()
	}
}

func (w *simWorld) breakRedis() {
	w.outage.Store(1 + w.rng.Int32N(3))
	d := time.Duration(w.rng.Int64N(int64(2 * w.longest())))
	if w.share {
		d = min(d, time.Second) // places aren't given to others meanwhile
	}
	time.AfterFunc(min(d, time.Until(w.end)), func() { w.outage.Store(int32(simUp)) })
}

func (w *simWorld) changeLimits() {
	limits := append([]ration.Limit(nil), w.policy.Limits...)
	for i := range limits {
		limits[i].Units = limits[i].Units*int64(2+w.rng.IntN(5))/4 + 1
	}
	w.mu.Lock()
	for i := range limits {
		w.most[i] = max(w.most[i], limits[i].Units+int64(w.instances)) // shares are rounded
	}
	w.mu.Unlock()
	w.limits.Store(&limits)
}

// simCaller is somebody who asks an instance's limiter.
type simCaller struct {
	in   *simInstance
	rng  *rand.Rand
	last string // a subject
	took int64  // units of it taken lately
	when time.Time
}

// run asks, in bursts, for its part of the demand.
func (c *simCaller) run() {
	w := c.in.w
	lim := w.first()
	burst := 1 + c.rng.IntN(60)
	// So many bursts make up the caller's part of the demand in a window.
	perWindow := w.demand * float64(lim.Units) / (float64(1+w.cost) / 2) / float64(w.instances*w.callers)
	tick := time.Duration(float64(lim.Window) * float64(burst) / max(perWindow, 1))
	for !w.over() && !c.in.stopped.Load() {
		c.in.gate.pass()
		for range burst {
			if retry := c.call(); retry > 0 && !w.rush {
				pass(min(retry, lim.Window/3)/2 + time.Duration(c.rng.Int64N(int64(lim.Window/3))))
				break
			}
			if c.in.stopped.Load() {
				return
			}
		}
		if w.drift > 0 && w.subjects == 1 {
			c.in.lateTimers(false)
		}
		pass(tick/2 + time.Duration(c.rng.Int64N(int64(tick)+1)) + time.Microsecond)
	}
}

// call makes a call and tells what was used. It returns for how long it was refused.
func (c *simCaller) call() time.Duration {
	w := c.in.w
	subject, op, n := w.subject(c.rng), ration.OpAllow, int64(1)
	switch r := c.rng.IntN(200); {
	case r == 0:
		op = ration.OpPeek
	case r == 1 && w.resets:
		op = ration.OpReset
	case r < 6 && w.refunds && c.took > 0 && time.Now().After(c.when):
		subject, op, n = c.last, ration.OpRefund, c.took
	case w.cost > 1:
		n = 1 + c.rng.Int64N(w.cost)
		if r%2 == 0 {
			op = ration.OpAllowUpTo
		}
	}
	var big *simCall
	if op != ration.OpPeek && (n > 1 || op != ration.OpAllow) {
		if big = c.in.alone(subject, n); big == nil {
			op, n = ration.OpAllow, 1 // one such call at a time, so that it's known what Redis did of it
		}
	}
	limits, began := unitsOf(*w.limits.Load()), time.Now()
	d, err := ration.Request{Op: op, Key: subject, N: n}.Do(context.Background(), c.in.limiter)
	c.in.settled(subject, big)
	own := d.Granted
	if d.Source == ration.Redis {
		own = big.own(op, d.Granted)
	} else if err == nil {
		w.local.Add(1)
	}
	w.decisions.Add(1)
	if err != nil {
		w.errors.Add(1)
		return w.first().Window / 20
	}
	c.note(op, subject, began.UnixMicro(), own, d.Granted, limits)
	return d.RetryAfter
}

// note tells what the tier in the process did of a call.
func (c *simCaller) note(op ration.Op, subject string, at, own, granted int64, limits []int64) {
	if op == ration.OpRefund {
		c.in.w.refund(subject, at, own)
		c.took = 0
		return
	}
	c.in.w.used(subject, at, own, limits)
	if granted > 0 {
		c.last, c.took, c.when = subject, granted, time.Now()
	}
}

// alone gives a call that Redis may answer in part, unless there is one already.
func (in *simInstance) alone(subject string, n int64) *simCall {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.big[subject] != nil {
		return nil
	}
	c := &simCall{n: n}
	in.big[subject] = c
	return c
}

func (in *simInstance) settled(subject string, c *simCall) {
	if c != nil {
		in.mu.Lock()
		delete(in.big, subject)
		in.mu.Unlock()
	}
}

// own is what this process granted of a call that Redis had its part in. Where a command that was late
// makes it doubtful it's the least.
func (c *simCall) own(op ration.Op, granted int64) int64 {
	if c == nil || granted == 0 {
		return 0
	}
	if op == ration.OpAllow {
		rest := int64(1) // merged with others, then
		for _, it := range c.parts {
			if it.Op == 'a' && it.N <= c.n && it.Granted > 0 {
				rest = max(rest, it.N)
			}
		}
		return granted - rest
	}
	least := granted
	for _, it := range c.parts {
		if it.Op != 'a' {
			least = min(least, max(0, granted-it.Granted))
		}
	}
	return least
}
