package ration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/fakeredis"
	"github.com/rationgo/ration/internal/model"
)

// simWorld is a simulation under way, in a bubble.
type simWorld struct {
	*simPlan
	t      testing.TB
	server *fakeredis.Server
	began  time.Time
	end    time.Time
	outage atomic.Int32
	limits atomic.Pointer[[]ration.Limit] // what LimitsFor says

	work sync.WaitGroup // callers

	mu     sync.Mutex
	rng    *rand.Rand
	trails map[string][]*model.Trail // by subject, one a limit
	reset  map[string]bool           // subjects whose usage was forgotten
	most   []int64                   // the largest Units there were, by limit
	alive  []*simInstance
	gone   []*simInstance
	made   int

	decisions, local, granted, errors atomic.Int64
}

// simInstance is a process of the service.
type simInstance struct {
	w       *simWorld
	net     *simNet
	rdb     *redis.Client
	store   *ration.Store
	limiter ration.Limiter
	rate    float64 // of its clock
	started time.Time
	offset  time.Duration
	gate    simGate
	stopped atomic.Bool // its callers are to go
	paused  atomic.Bool

	mu  sync.Mutex
	big map[string]*simCall // subject to the one call that may be answered by both tiers
}

// simCall is a call that Redis may answer in part.
type simCall struct {
	n     int64
	parts []ration.RunItem // that may be its own
}

func runSim(t testing.TB, p *simPlan) *simWorld {
	w := &simWorld{
		simPlan: p, t: t, server: fakeredis.Synctest(), rng: rand.New(rand.NewPCG(p.seed, 1)),
		trails: map[string][]*model.Trail{}, reset: map[string]bool{},
	}
	defer w.server.Close()
	pass(time.Duration(w.rng.Int64N(int64(p.longest()))))
	w.began = time.Now()
	w.end = w.began.Add(time.Duration(p.windows) * p.longest())
	w.limits.Store(&p.policy.Limits)
	w.most = unitsOf(p.policy.Limits)
	if p.changes {
		w.policy.LimitsFor = func(context.Context, string) ([]ration.Limit, error) { return *w.limits.Load(), nil }
	}
	for range p.instances {
		w.start()
	}
	w.live()
	for _, in := range w.alive {
		in.stopped.Store(true)
	}
	w.work.Wait()
	for _, in := range w.alive {
		in.close()
	}
	for _, in := range append(w.alive, w.gone...) {
		in.store.Close()
		in.rdb.Close()
	}
	w.check()
	return w
}

// check holds what was used against the promise.
func (w *simWorld) check() {
	for subject, trails := range w.trails {
		if w.reset[subject] {
			continue // what others held then may be used beyond the limit
		}
		for _, trail := range trails {
			if err := trail.Check(); err != nil {
				w.t.Errorf("%v: subject %s: %v\nplan: %+v", w.simPlan, subject, err, *w.simPlan)
			}
		}
	}
}

func (w *simWorld) over() bool { return !time.Now().Before(w.end) }

// start starts a new instance with its callers.
func (w *simWorld) start() {
	in := &simInstance{w: w, started: time.Now(), big: map[string]*simCall{}}
	w.mu.Lock()
	w.made++
	rng := rand.New(rand.NewPCG(w.seed, uint64(1000*w.made)))
	w.mu.Unlock()
	in.rate = 1 + w.drift*float64(rng.IntN(3)-1)
	in.offset = time.Duration(rng.Int64N(int64(time.Hour)))
	in.net = &simNet{latency: w.latency, gate: &in.gate, rng: rng, ran: in.ran, outage: func() simOutage { return simOutage(w.outage.Load()) }}
	in.rdb = w.server.Client()
	in.rdb.AddHook(in.net)
	store, err := ration.Open(in.rdb, w.store...)
	if err == nil {
		store.SetClock(in.clock)
		in.store = store
		var global ration.Limiter
		if global, err = strategies[w.strategy](store, w.policy); err == nil {
			in.limiter, err = ration.NewTwoTier(global, w.tier...)
		}
	}
	if err != nil {
		w.t.Errorf("%v: %v", w.simPlan, err)
		return
	}
	ration.SetTierClock(in.limiter, func() time.Time { return time.Unix(1e9, 0).Add(in.clock()) })
	w.mu.Lock()
	w.alive = append(w.alive, in)
	w.mu.Unlock()
	for i := range w.callers {
		c := &simCaller{in: in, rng: rand.New(rand.NewPCG(w.seed, uint64(1000*w.made+i+1)))}
		w.work.Go(c.run)
	}
}

// clock is the instance's own.
func (in *simInstance) clock() time.Duration {
	return in.offset + time.Duration(float64(time.Since(in.started))*in.rate)
}

// lateTimers makes the timers of blocks as fast or slow as the clock, which the bubble's aren't.
func (in *simInstance) lateTimers(stop bool) {
	ration.BlockTimers(in.limiter, func(end time.Duration, timer *time.Timer) {
		if left := end - in.clock(); stop {
			timer.Stop()
		} else {
			timer.Reset(max(0, time.Duration(float64(left)/in.rate)))
		}
	})
}

// pause stops the instance, and has it go on.
func (in *simInstance) pause(d time.Duration) {
	in.gate.close()
	in.lateTimers(true)
	pass(d)
	in.gate.open()
	pass(time.Millisecond) // callers may be quicker than timers that are due
	in.lateTimers(false)
}

// crash has the instance vanish with what it holds.
func (in *simInstance) crash() {
	in.net.cut.Store(true)
	in.stopped.Store(true)
}

// close ends the instance as it should end.
func (in *simInstance) close() {
	if err := in.store.Close(); err != nil {
		in.w.t.Errorf("Close: %v", err)
	}
	in.stopped.Store(true)
	if d, err := in.limiter.Allow(context.Background(), "s0"); d.Allowed || d.Source != ration.DenyCache && !errors.Is(err, ration.ErrClosed) {
		in.w.t.Errorf("after Close: %+v, %v", d, err)
	}
}

// ran hears what Redis did.
func (in *simInstance) ran(args []any, reply any) {
	w, now := in.w, time.Now().UnixMicro()
	for _, it := range ration.RunItems(args, reply) {
		switch it.Op {
		case 'a', 'u':
			w.used(it.Subject, now, it.Granted, it.Units)
		case 'o', 'r':
			w.refund(it.Subject, now, it.Granted)
		case 'x':
			w.mu.Lock()
			w.reset[it.Subject] = true
			w.mu.Unlock()
		}
		in.mu.Lock()
		if c := in.big[it.Subject]; c != nil && it.Op != 'l' && it.Op != 'b' && it.Op != 'p' {
			c.parts = append(c.parts, it)
		}
		in.mu.Unlock()
	}
}

func (w *simWorld) of(subject string) []*model.Trail {
	trails := w.trails[subject]
	if trails == nil {
		for _, lim := range w.policy.Limits {
			trails = append(trails, model.NewTrail(modelOf[w.strategy], lim.Window))
		}
		w.trails[subject] = trails
	}
	return trails
}

// used records units used at a time under limits of so many units.
func (w *simWorld) used(subject string, at, n int64, units []int64) {
	if n == 0 {
		return
	}
	w.granted.Add(n)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.share {
		units = w.most // neither the pool nor another's share knows what was used of the others under larger limits
	}
	for i, trail := range w.of(subject) {
		trail.Use(at, n, units[i])
	}
}

func (w *simWorld) refund(subject string, at, n int64) {
	if n == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, trail := range w.of(subject) {
		trail.Refund(at, n)
	}
}

func unitsOf(limits []ration.Limit) (units []int64) {
	for _, lim := range limits {
		units = append(units, lim.Units)
	}
	return units
}

func (w *simWorld) subject(rng *rand.Rand) string {
	if !w.zipf {
		return fmt.Sprint("s", rng.IntN(w.subjects))
	}
	i := 0
	for i < w.subjects-1 && rng.IntN(2) == 0 {
		i++
	}
	return fmt.Sprint("s", i)
}
