package ration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"
)

// The bounds of a [ConcurrencyPolicy].
const (
	// MinTTL is the shortest TTL of a ConcurrencyPolicy.
	MinTTL = 100 * time.Millisecond
	// MaxTTL is the longest.
	MaxTTL = 24 * time.Hour

	defaultTTL = 30 * time.Second
)

// inFlight is the Name of a concurrency limit in a [Decision].
const inFlight = "in-flight"

// ConcurrencyPolicy is a name and how many units of a subject may be in flight at once.
type ConcurrencyPolicy struct {
	// Name is 1 to 64 characters of A-Z a-z 0-9 _ . and -. It's part of the Redis key: all
	// Concurrency of one name count together, whatever their TTL.
	Name string
	// Limit is the number of units in flight at most, 0 to MaxUnits. 0 refuses everything.
	Limit int64
	// LimitFor, if set, gives a subject its own limit. It's called concurrently, from the
	// caller's goroutine, and its error is returned to the caller, wrapped. A lower limit
	// takes nothing from those who hold a permit: no new one is given until fewer are in flight.
	LimitFor func(ctx context.Context, key string) (int64, error)
	// TTL is the time to live of a permit's lease, MinTTL to MaxTTL; 0 means 30 s. It's renewed
	// every third of it, so it bounds no work, only how long the units of a crashed process are
	// missed. An outage of half of it, less the MaxCooldown of [WithBreaker], loses no permit;
	// it should be ten times [WithTimeout] or more.
	TTL time.Duration
}

func (p ConcurrencyPolicy) validate() error {
	if err := validateName(p.Name); err != nil {
		return err
	}
	if p.TTL != 0 && (p.TTL < MinTTL || p.TTL > MaxTTL) {
		return fmt.Errorf("%w %q: the TTL %v is not in %v to %v", ErrInvalidPolicy, p.Name, p.TTL, MinTTL, MaxTTL)
	}
	return p.validateLimit(p.Limit)
}

func (p ConcurrencyPolicy) validateLimit(limit int64) error {
	if limit < 0 || limit > MaxUnits {
		return fmt.Errorf("%w %q: the Limit %d is not in 0 to 1<<53", ErrInvalidPolicy, p.Name, limit)
	}
	return nil
}

func (p ConcurrencyPolicy) limitFor(ctx context.Context, key string) (int64, error) {
	if p.LimitFor == nil {
		return p.Limit, nil
	}
	limit, err := p.LimitFor(ctx, key)
	if err != nil {
		return 0, fmt.Errorf("ration: limit of policy %q: %w", p.Name, err)
	}
	return limit, p.validateLimit(limit)
}

// Concurrency bounds how many units of a subject are in flight at once, over all instances:
// connections, jobs, requests under way. It's no rate limit: a unit counts from
// [Concurrency.Acquire] until [Permit.Release], however long that takes.
//
// It promises: at any time of the Redis server's clock the leases alive have no more than Limit units,
// whatever crashes, stops or is cut off. A permit is backed by a lease, which is renewed in the background
// while it's held. Who can't renew it finds its permit lost ([Permit.Done]) before others can be given the
// units, and must stop then: so what is really under way is within the limit too, if holders stop at once. A
// crashed holder's units come back when its lease has run out, after TTL at most.
//
// What breaks the promise: a Redis that forgets (a restart without persistence, an eviction, a failover that
// lost writes) gives away what is held, until the holders hear of it at their next renewal, after TTL/3;
// a server clock that is set forward by d ends leases d too early; under [WithClientTime] clocks that differ by d
// do too. A process's clock may run 1.5 % slower than the server's.
//
// All methods are safe for concurrent use. An Acquire, a Release and a renewal are one item of a script run
// each, shared with whatever else goes to that server: O(log n) for n leases, 30 to 120 bytes each in Redis.
type Concurrency struct {
	store  *Store
	policy ConcurrencyPolicy
	base   string // the key up to the subject
	tally  *tally // of FailLocal, else nil

	mu     sync.Mutex
	closed bool
	held   map[*Permit]struct{} // those with a lease that is renewed, or to be given back
	work   sync.WaitGroup       // timers and goroutines of these
}

// NewConcurrency makes a limit of the units in flight. It sends nothing. A nil store is ErrInvalidClient, a bad
// policy ErrInvalidPolicy. There is nothing to close but the store: [Store.Close] ends the
// renewals, and what is held then is lost; so release first. It sends nothing back for those who
// may be at work still: their units come back when the leases run out.
//
// When Redis gives no answer, Acquire does as [WithOnFailure] says:
//
//   - [FailError] gives ErrUnavailable, and no permit.
//   - [FailOpen] gives a permit that is counted nowhere and never lost, if n is within the limit.
//   - [FailClosed] refuses.
//   - [FailLocal] counts in this process, to Limit/instances, rounded down but at least 1. Redis' counts
//     aren't added: while permits from before an outage live, or some from the outage live on after it, at most
//     2·Limit are in flight.
func NewConcurrency(s *Store, p ConcurrencyPolicy) (*Concurrency, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: the store is nil", ErrInvalidClient)
	}
	if err := p.validate(); err != nil {
		return nil, err
	}
	if p.TTL == 0 {
		p.TTL = defaultTTL
	}
	c := &Concurrency{
		store: s, policy: p, held: map[*Permit]struct{}{},
		base: keyBase(s.opts.prefix, p.Name, "cc1", 0), // leases of any TTL count together
	}
	if s.opts.onFailure > 0 {
		shared, _ := s.tallies.LoadOrStore(p.Name, &tally{units: map[string]int64{}})
		c.tally = shared.(*tally)
	}
	s.adopt(c.close)
	return c, nil
}

// Acquire asks for n units, all or nothing; n is 1 or more, else ErrInvalidCost. If they are free it gives a Permit, which
// must be released:
//
//	p, d, err := jobs.Acquire(ctx, user, 1)
//	switch {
//	case err != nil:
//		// a mistake in the call, or no answer from Redis: errors.Is(err, ration.ErrUnavailable)
//	case !d.Allowed:
//		// too many in flight
//	default:
//		defer p.Release()
//	}
//
// A refusal is a Decision with Allowed false, never an error; the Permit is nil then, as it is with an
// error. [Concurrency.Do] is the form in which neither can be overlooked, nor the Release.
//
// The Decision's Remaining is what is free afterwards. RetryAfter is when the units would be free if every holder
// had crashed: they are free sooner if somebody releases, and not yet if leases are renewed. Never means
// that n is above the limit. ResetAfter is likewise. Limit has the Name "in-flight" and no Window.
//
// An Acquire that got no answer, or whose ctx ended meanwhile, may have made a lease that nobody
// holds: it's given back in the background if Redis can be reached, else it runs out after TTL. It's never sent twice.
func (c *Concurrency) Acquire(ctx context.Context, key string, n int64) (*Permit, Decision, error) {
	var d Decision
	began := c.store.since()
	p, err := c.acquire(ctx, key, n, &d)
	if c.store.opts.observer != nil {
		c.store.observe(c.policy.Name, Request{Op: OpAllow, Key: key, N: n}, &d, err, began)
	}
	return p, d, err
}

// The pauses of AcquireWait grow from the one to the other.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// AcquireWait is Acquire again and again until the units are granted or ctx ends, whose error it then gives. An error of
// Acquire ends the wait, and so does a refusal with Never. It asks after 5 to 10 ms, then after ever longer pauses, up to
// half a second: so does it hear of a release, two commands a second. Waiters are not queued.
func (c *Concurrency) AcquireWait(ctx context.Context, key string, n int64) (*Permit, Decision, error) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		p, d, err := c.Acquire(ctx, key, n)
		if p != nil || err != nil || d.RetryAfter == Never {
			return p, d, err
		}
		jittered := pause/2 + rand.N(pause/2)
		if err := sleep(ctx, max(time.Millisecond, min(jittered, d.RetryAfter))); err != nil {
			return nil, Decision{}, err
		}
	}
}

// Do runs f while it holds n units, and releases them however f ends, by a panic too. If they are
// refused f isn't run, and the Decision and the error are Acquire's.
//
//	d, err := jobs.Do(ctx, user, 1, func(ctx context.Context) error {
//		return work(ctx)
//	})
//
// The context that f gets ends when the permit is lost, with ErrPermitLost as its [context.Cause]: f must stop then. The
// error is f's own, or ErrPermitLost if f gave none and had lost the permit when it returned. A nil f is ErrInvalidRequest.
func (c *Concurrency) Do(ctx context.Context, key string, n int64, f func(ctx context.Context) error) (Decision, error) {
	if f == nil {
		return Decision{}, fmt.Errorf("%w: Do needs a function, not nil", ErrInvalidRequest)
	}
	p, d, err := c.Acquire(ctx, key, n)
	if p == nil {
		return d, err
	}
	defer p.Release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(context.Cause(p.ctx)) })()
	if err := f(ctx); err != nil {
		return d, err
	}
	if p.Lost() {
		return d, ErrPermitLost
	}
	return d, nil
}

// InFlight is the number of units of a subject in flight, as Redis counts them: permits of [FailOpen] and
// [FailLocal] are not among them. It changes nothing. Without an answer it gives ErrUnavailable
// under every failure rule.
func (c *Concurrency) InFlight(ctx context.Context, key string) (int64, error) {
	r := Request{Op: OpPeek, Key: key}
	var d Decision
	began := c.store.since()
	units, err := c.look(ctx, r, &d)
	if c.store.opts.observer != nil {
		c.store.observe(c.policy.Name, r, &d, err, began)
	}
	return units, err
}

func (c *Concurrency) look(ctx context.Context, r Request, d *Decision) (int64, error) {
	if _, err := r.check(ctx); err != nil {
		return 0, err
	}
	limit, err := c.policy.limitFor(ctx, r.Key)
	if err != nil {
		return 0, err
	}
	reply, err := c.ask(ctx, permitLook, r.Key, "", 0, limit)
	if err != nil {
		return 0, err
	}
	d.Source, d.Limit, d.Remaining = Redis, Limit{Name: inFlight, Units: limit}, max(0, limit-reply[1])
	d.Allowed = d.Remaining > 0
	return reply[1], nil
}

func (c *Concurrency) acquire(ctx context.Context, key string, n int64, d *Decision) (*Permit, error) {
	r := Request{Op: OpAllow, Key: key, N: n}
	if _, err := r.check(ctx); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, fmt.Errorf("%w: a permit has 1 unit or more", ErrInvalidCost)
	}
	limit, err := c.policy.limitFor(ctx, key)
	if err != nil {
		return nil, err
	}
	p := c.permit(key, n)
	p.id = c.store.id + strconv.FormatUint(c.store.permits.Add(1), 36)
	idle := c.store.lanes.of(key).breaker.wait() > 0 // nothing is sent
	began := c.store.since()
	reply, err := c.ask(ctx, permitAcquire, key, p.id, n, limit)
	if err == nil && reply[0] > 0 {
		err = p.hold(began)
	}
	if err != nil {
		if !idle {
			c.start(p.abandon)
		}
		err = c.store.overdue(ctx, err, began)
		if _, failed := err.(*backendError); failed {
			return c.fail(r, limit, err, d)
		}
		return nil, err
	}
	d.Source, d.Limit, d.Granted = Redis, Limit{Name: inFlight, Units: limit}, reply[0]
	d.Allowed, d.Remaining, d.ResetAfter = d.Granted > 0, max(0, limit-reply[1]), micros(reply[3])
	switch {
	case d.Allowed:
		return p, nil
	case n > limit:
		d.RetryAfter = Never
	default:
		d.RetryAfter = micros(reply[2])
	}
	return nil, nil
}

// errLate is a lease that was over before the answer was here.
var errLate error = &backendError{class: ClassTimeout, cause: fmt.Errorf("%w: the lease was over before its answer came", errTimedOut)}

// fail makes the answer to an Acquire that got none from Redis.
func (c *Concurrency) fail(r Request, limit int64, cause error, d *Decision) (*Permit, error) {
	rule := c.store.opts.onFailure
	if rule == FailError {
		return nil, cause
	}
	d.Degraded, d.Cause = true, cause
	again := max(time.Millisecond, c.store.lanes.of(r.Key).breaker.wait())
	p := c.permit(r.Key, r.N)
	switch {
	case rule == FailOpen:
		d.open(r, []Limit{{Name: inFlight, Units: limit}})
	case rule == FailClosed:
		d.Source, d.RetryAfter = Failure, again
	default:
		p.tally = c.tally
		c.tally.take(r, limit, int64(rule), d)
		if !d.Allowed && r.N > limit {
			d.RetryAfter = Never
		} else if !d.Allowed {
			d.RetryAfter = again
		}
	}
	if !d.Allowed {
		return nil, nil
	}
	return p, nil
}

// start runs f on a goroutine that Close waits for.
func (c *Concurrency) start(f func()) {
	if c.begin() {
		go func() {
			defer c.work.Done()
			f()
		}()
	}
}

// begin says that work may begin, which Close then waits for.
func (c *Concurrency) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.work.Add(1)
	}
	return !c.closed
}

// close ends all renewals.
func (c *Concurrency) close() {
	c.mu.Lock()
	c.closed = true
	held := c.held
	c.held = nil
	c.mu.Unlock()
	for p := range held {
		p.lose()
	}
	c.work.Wait()
}
