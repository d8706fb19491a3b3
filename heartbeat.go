package ration

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	beatEvery = time.Second
	// beatTerm is for how long an instance counts as there after a beat.
	beatTerm = 3 * time.Second
)

// heartbeat tells the other instances of a policy that this one is there, and counts them. It
// beats once a second while use is called; unused it stops, and its place is free again after beatTerm.
type heartbeat struct {
	store  *Store
	id     string // no other tier has it
	key    string
	places int

	used  atomic.Bool  // since the last beat
	count atomic.Int64 // instances there when last told, this one included
	until atomic.Int64 // on the store's clock: it has a place until then
	away  atomic.Int64 // likewise, since Redis gives no answer and it had one

	wanted, lingers atomic.Int64 // for how long its place is to stay taken afterwards; as Redis knows it

	mu      sync.Mutex
	timer   *time.Timer // nil while nothing is under way
	closed  bool
	working sync.WaitGroup
}

// newHeartbeat makes one for a number of places, or 0: for as many as come.
func newHeartbeat(g *redisLimiter, places int) *heartbeat {
	return &heartbeat{
		store: g.store, places: places,
		id:  g.store.id + strconv.FormatUint(g.store.beats.Add(1), 36),
		key: keyBase(g.store.opts.prefix, g.policy.Name, "in1."+g.code, int64(places)) + "instances}",
	}
}

// linger has the place stay taken for so long after the instance is gone, and
// says whether Redis knows of it.
func (h *heartbeat) linger(d time.Duration) bool {
	for {
		wanted := h.wanted.Load()
		if wanted >= int64(d) || h.wanted.CompareAndSwap(wanted, int64(d)) {
			return h.lingers.Load() >= int64(d)
		}
	}
}

// instances is how many there are, 1 before it's known.
func (h *heartbeat) instances() int64 { return max(1, h.count.Load()) }

// placed says whether this instance has a place. While beat after beat fails it keeps the one it
// had, for nobody else can be given it.
func (h *heartbeat) placed() bool {
	until := h.until.Load()
	return until != 0 && int64(h.store.since()) < max(until, h.away.Load())
}

// use says that the limiter is in use.
func (h *heartbeat) use() {
	if h.used.Load() {
		return
	}
	h.used.Store(true)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timer == nil && !h.closed {
		h.arm(0)
	}
}

// arm has the next beat come, with mu held.
func (h *heartbeat) arm(after time.Duration) {
	h.working.Add(1)
	h.timer = time.AfterFunc(after, h.beat)
}

func (h *heartbeat) beat() {
	defer h.working.Done()
	h.mu.Lock()
	on := h.used.Swap(false) && !h.closed
	if !on {
		h.timer = nil
	}
	h.mu.Unlock()
	if !on {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.store.opts.timeout)
	defer cancel()
	h.send(ctx, beatTerm)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		h.timer = nil
		return
	}
	h.arm(beatEvery)
}

// send sends a beat, after which this instance counts as there for so long.
func (h *heartbeat) send(ctx context.Context, stay time.Duration) {
	began, linger := h.store.since(), h.wanted.Load()
	args := []any{h.id, stay.Microseconds(), time.Duration(linger + 999).Microseconds(), h.places}
	count, placed, err := h.store.runBeat(ctx, h.key, args)
	if err != nil {
		// Until the next beat must have failed. An instance that was stopped meanwhile finds that past: its
		// place may be somebody else's. So does one that had lost it when the beat began.
		if int64(began) < max(h.until.Load(), h.away.Load()) {
			h.away.Store(int64(began + 2*h.store.opts.timeout + 3*beatEvery/2))
		}
		return
	}
	h.count.Store(count)
	h.lingers.Store(linger)
	if placed {
		h.until.Store(int64(began + stay - stay/64))
	} else {
		h.until.Store(0)
	}
	h.away.Store(0)
}

// close stops beating and leaves, all within one budget.
func (h *heartbeat) close() {
	ctx, cancel := context.WithTimeout(context.Background(), h.store.opts.timeout)
	defer cancel()
	h.mu.Lock()
	h.closed = true
	if h.timer != nil && h.timer.Stop() {
		h.working.Done()
	}
	began := h.count.Load() > 0
	h.mu.Unlock()
	h.working.Wait()
	h.until.Store(0) // before it's told: the place is somebody else's a window after that
	if began {
		h.send(ctx, 0)
	}
	h.until.Store(0)
}

// runBeat runs heartbeat.lua, which may be sent again: it changes nothing the second time. It
// ends with ctx, if need be before a client that ignores it.
func (s *Store) runBeat(ctx context.Context, key string, args []any) (count int64, placed bool, err error) {
	type answer struct {
		reply []int64
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil { // a hook of the caller's client, as in execute
				answers <- answer{err: fmt.Errorf("%w: %v", errPanic, p)}
			}
		}()
		argv := append(s.header(beatScript), args...)
		reply, err := s.rdb.EvalSha(ctx, beatScript.sha, []string{key}, argv...).Int64Slice()
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			reply, err = s.rdb.Eval(ctx, beatScript.text, []string{key}, argv...).Int64Slice()
		}
		answers <- answer{reply, err}
	}()
	select {
	case a := <-answers:
		if a.err == nil && (len(a.reply) != 2 || a.reply[0] < 0) {
			a.err = fmt.Errorf("%w: %d values", errReply, len(a.reply))
		}
		if a.err != nil {
			return 0, false, a.err
		}
		return a.reply[0], a.reply[1] == 1, nil
	case <-ctx.Done():
		return 0, false, errBudget(s.opts.timeout)
	}
}
