package ration

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"
)

// strategy is what tells the Redis strategies apart on the Go side: a script,
// the code in the key, and how a window is cut.
type strategy struct {
	script *script
	kind   int64 // its place in scripts/combined.lua
	code   func(p Policy) string
	// layout gives the script's width for a window, both in microseconds, and
	// the number of keys.
	layout  func(p Policy, window int64) (width, keys int64)
	slotted bool // its keys carry a slot's number
	leases  bool // it can charge units as used later: NewTwoTier
	refills bool // units come back one by one: Burst, Wait by reservation

	// local makes of a limit the one that an instance of several keeps by itself
	// while Redis is away; nil for Units/instances in the same Window.
	local func(lim Limit, instances int64) Limit
}

// The letters of scripts/driver.lua.
const (
	opAllow  = 'a'
	opUpTo   = 'u'
	opPeek   = 'p'
	opRefund = 'r'
	opReset  = 'x'

	opLease    = 'l' // these are for one call an item
	opGiveBack = 'b'
	opShed     = 'o'

	opReserve = 'w' // likewise, under token buckets
	opCancel  = 'c'
)

// redisLimiter decides by a script. LimiterFunc has the methods that may take longer.
type redisLimiter struct {
	LimiterFunc
	store    *Store
	policy   Policy
	strategy strategy
	code     string
	parts    []*redisLimiter // of a combined one, else nil
	fixed    []boundLimit    // the policy's own limits
	local    *localLimiter   // of FailLocal, else nil
	denied   *denyCache      // nil if there is none
}

func newRedisLimiter(s *Store, p Policy, st strategy) (Limiter, error) {
	l, err := makeRedisLimiter(s, p, st)
	if err != nil {
		return nil, err // not a nil pointer in a Limiter
	}
	return l, nil
}

func makeRedisLimiter(s *Store, p Policy, st strategy) (*redisLimiter, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: the store is nil", ErrInvalidClient)
	}
	p.bursts = st.refills
	if err := p.validate(); err != nil {
		return nil, err
	}
	p.Limits = slices.Clone(p.Limits)
	l := &redisLimiter{store: s, policy: p, strategy: st, code: st.code(p)}
	l.LimiterFunc = l.do
	l.denied = s.denials(p.Name, l.code)
	if p.LimitsFor == nil {
		l.fixed = l.bind(p.Limits)
	}
	if err := l.addLocal(p); err != nil {
		return nil, err
	}
	return l, nil
}

// addLocal makes the ring of FailLocal, if that's the rule.
func (l *redisLimiter) addLocal(p Policy) error {
	s := l.store
	if s.opts.onFailure <= 0 {
		return nil
	}
	local, err := NewLocal(p)
	if err != nil {
		return err
	}
	// As in Redis, limiters of one name and strategy share their counts.
	shared, _ := s.rings.LoadOrStore(fmt.Sprintf("%s:%s:%d", l.policy.Name, l.code, p.slots()), local)
	l.local = shared.(*localLimiter)
	return nil
}

func (l *redisLimiter) bind(limits []Limit) []boundLimit {
	bound := make([]boundLimit, len(limits))
	for i, lim := range limits {
		window := lim.micros()
		width, keys := l.strategy.layout(l.policy, window)
		bound[i] = boundLimit{
			args: limitArgs{units: lim.size(), width: width, keys: keys, rate: lim.Units, kind: l.strategy.kind},
			base: keyBase(l.store.opts.prefix, l.policy.Name, l.code, window),
			argv: [5]any{lim.size(), width, keys, lim.Units, l.strategy.kind},

			strategy: &l.strategy,
		}
	}
	return bound
}

// Allow is OpAllow with N = 1.
func (l *redisLimiter) Allow(ctx context.Context, key string) (d Decision, err error) {
	err = l.decide(ctx, Request{Op: OpAllow, Key: key, N: 1}, &d)
	return d, err
}

// AllowN is OpAllow.
func (l *redisLimiter) AllowN(ctx context.Context, key string, n int64) (d Decision, err error) {
	err = l.decide(ctx, Request{Op: OpAllow, Key: key, N: n}, &d)
	return d, err
}

func (l *redisLimiter) do(ctx context.Context, r Request) (d Decision, err error) {
	err = l.decide(ctx, r, &d)
	return d, err
}

// decide answers a call into d, where the caller wants it: copies of a Decision show.
func (l *redisLimiter) decide(ctx context.Context, r Request, d *Decision) error {
	if l.store.opts.observer == nil {
		return l.answer(ctx, r, d)
	}
	began := l.store.since()
	err := l.answer(ctx, r, d)
	l.store.observe(l.policy.Name, r, d, err, began)
	return err
}

func (l *redisLimiter) answer(ctx context.Context, r Request, d *Decision) error {
	r, err := r.check(ctx)
	if err != nil {
		return err
	}
	limits, bound, err := l.limitsFor(ctx, r.Key)
	if err != nil {
		return err
	}
	return l.answerUnder(ctx, r, limits, bound, d)
}

// limitsFor gives a subject's limits, and made ready.
func (l *redisLimiter) limitsFor(ctx context.Context, key string) ([]Limit, []boundLimit, error) {
	if l.fixed != nil {
		return l.policy.Limits, l.fixed, nil
	}
	if l.parts != nil {
		return l.combine(ctx, key)
	}
	limits, err := l.policy.limitsFor(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	return limits, l.bind(limits), nil
}

// answerUnder answers a call that was checked under limits made ready for it.
func (l *redisLimiter) answerUnder(ctx context.Context, r Request, limits []Limit, bound []boundLimit, d *Decision) (err error) {
	if l.denied == nil {
		err = l.ask(ctx, r, limits, bound, d)
	} else {
		err = l.askOrRemember(ctx, r, limits, bound, d)
	}
	if _, failed := err.(*backendError); failed {
		return l.fail(r, limits, bound, err, d)
	}
	if err == nil && r.Op == OpReset && l.local != nil {
		l.decideLocally(r, limits, bound, &Decision{})
	}
	return err
}

// askOrRemember is ask with the denied-key cache in front.
func (l *redisLimiter) askOrRemember(ctx context.Context, r Request, limits []Limit, bound []boundLimit, d *Decision) error {
	if r.Op == OpRefund || r.Op == OpReset {
		l.store.forgive(r.Key)
		defer l.store.forgive(r.Key) // what was refused before Redis heard of it
	}
	refused, mark := l.denied.refuses(&r, bound, d)
	if refused {
		return nil
	}
	began := l.store.since()
	err := l.ask(ctx, r, limits, bound, d)
	if err == nil {
		l.denied.remember(&r, bound, d, began, mark)
	}
	return err
}

// ask has Redis answer a call that was checked.
func (l *redisLimiter) ask(ctx context.Context, r Request, limits []Limit, bound []boundLimit, d *Decision) error {
	op, n := scriptOp(r)
	key := mergeKey{}
	if len(bound) == 1 && (op == opAllow || op == opUpTo || op == opPeek) {
		// Of several limits the calls of an item would differ in ResetAfter.
		key = mergeKey{limiter: l, op: op, n: n, subject: r.Key}
		if l.fixed == nil {
			key.limit, key.base = bound[0].args, bound[0].base
		}
	}
	began := time.Duration(0)
	if l.store.opts.onFailure != FailError {
		began = l.store.since()
	}
	it, place, err := l.store.lanes.of(r.Key).ask(ctx, key, func() *item { return l.item(op, n, r.Key, bound) })
	if err != nil {
		return l.store.overdue(ctx, err, began)
	}
	if r.Op != OpReset {
		d.fill(r, limits, it, place)
	}
	return nil
}

// scriptOp is a request as scripts/driver.lua takes it. Above MaxUnits a cost can
// never pass, and Lua need not count so far.
func scriptOp(r Request) (op byte, n int64) {
	switch r.Op {
	case OpAllow:
		if r.N > MaxUnits {
			return opAllow, MaxUnits + 2
		}
		return opAllow, r.N
	case OpAllowUpTo:
		return opUpTo, min(r.N, MaxUnits)
	case OpRefund:
		return opRefund, min(r.N, MaxUnits)
	case OpReset:
		return opReset, 0
	}
	return opPeek, 0
}

func (l *redisLimiter) item(op byte, n int64, key string, bound []boundLimit) *item {
	subject := escapeSubject(key)
	it := &item{script: l.strategy.script, op: op, n: n, limits: bound}
	for _, b := range bound {
		it.keys = appendKeys(it.keys, b.base, subject, b.strategy.slotted, b.args.keys)
	}
	for _, key := range it.keys {
		it.bytes += len(key) + 8
	}
	it.bytes += 64 * len(bound)
	return it
}

// fill makes d the answer to call number place of an item.
func (d *Decision) fill(r Request, limits []Limit, it *item, place int64) {
	granted, later := it.share(place)
	d.Granted, d.Source = granted, Redis
	if it.script == colorScript {
		d.fillColor(r, limits, it)
		return
	}
	if len(limits) == 1 {
		part := it.limitReply(0)
		if later > 0 && it.limits[0].strategy.refills {
			part = withoutLater(limits[0], part, later)
		}
		state := limitState(limits[0], part, later)
		d.settleOne(r, &state)
		return
	}
	states := make([]LimitState, len(limits))
	for i, lim := range limits {
		states[i] = limitState(lim, it.limitReply(i), 0)
	}
	d.settle(r, states)
	d.ResetAfter = micros(it.reply[len(it.reply)-1])
}

// limitState is what a script said of a limit, to a call after which units were granted to later ones.
func limitState(lim Limit, part []int64, later int64) LimitState {
	return LimitState{
		Limit:      lim,
		Remaining:  max(0, lim.size()-part[0]+later),
		RetryAfter: micros(part[1]),
		ResetAfter: micros(part[2]),
	}
}

// withoutLater has a bucket be full sooner by what was granted to later calls. A reply that's no script's may have
// any numbers.
func withoutLater(lim Limit, part []int64, later int64) []int64 {
	hi, lo := bits.Mul64(uint64(later), uint64(lim.micros()))
	lo, carry := bits.Add64(lo, uint64(part[3]), 0)
	rate := uint64(lim.Units)
	if hi+carry >= rate {
		return part
	}
	sooner, _ := bits.Div64(hi+carry, lo, rate)
	return []int64{part[0], part[1], max(0, part[2]-int64(min(sooner, math.MaxInt64))), part[3]}
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// settle fills in what follows from every limit's own numbers: the verdict,
// the limit that decided, and its times. Granted is there already; a state's
// RetryAfter is the script's, 0 where the call can never pass.
func (d *Decision) settle(r Request, states []LimitState) {
	d.Remaining = states[0].Remaining
	for i := range states {
		d.Remaining = min(d.Remaining, states[i].Remaining)
	}
	d.Allowed = d.verdict(r)
	decider := &states[0]
	for i := range states {
		s := &states[i]
		s.RetryAfter = d.retryAfter(r, s)
		if s.RetryAfter > decider.RetryAfter || s.RetryAfter == decider.RetryAfter && s.Remaining < decider.Remaining {
			decider = s
		}
	}
	d.Limit, d.RetryAfter, d.ResetAfter = decider.Limit, decider.RetryAfter, decider.ResetAfter
	if len(states) > 1 {
		d.Limits = states
	}
}

// settleOne is settle for one limit, without a slice.
func (d *Decision) settleOne(r Request, s *LimitState) {
	d.Remaining = s.Remaining
	d.Allowed = d.verdict(r)
	d.Limit, d.RetryAfter, d.ResetAfter = s.Limit, d.retryAfter(r, s), s.ResetAfter
}

func (d *Decision) verdict(r Request) bool {
	if r.Op == OpAllow || r.Op == OpAllowUpTo {
		return d.Granted > 0
	}
	return d.Remaining > 0
}

func (d *Decision) retryAfter(r Request, s *LimitState) time.Duration {
	cost := int64(1)
	if r.Op == OpAllow {
		cost = r.N
	}
	switch {
	case d.Allowed:
		return 0
	case cost > s.Limit.size():
		return Never
	}
	return s.RetryAfter
}
