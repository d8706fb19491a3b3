package ration_test

import (
	"cmp"
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pgregory.net/rapid"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/model"
)

// history is one limiter, some subjects, and what the model knows of them.
type history struct {
	world   playWorld
	limiter ration.Limiter
	model   *model.Model
	oracles map[string]*model.Oracle

	keys    []string
	mix     []string       // of the limits, if they have strategies of their own
	limits  []ration.Limit // as of now
	initial []ration.Limit
	dynamic bool // the limits change
	slots   int
	now     int64 // µs
	loans   []loan

	// clock makes of the clock set here the time that counts; nil if the
	// backend takes it as it is.
	clock *standingClock
}

var histories atomic.Int64

func newHistory(t *rapid.T, w playWorld) *history {
	h := &history{
		world:   w,
		model:   model.New(w.strategy),
		oracles: make(map[string]*model.Oracle),
		dynamic: rapid.Bool().Draw(t, "limits change"),
		slots:   rapid.IntRange(0, 40).Draw(t, "slots"),
	}
	if w.strategy == model.Mixed {
		h.mix = rapid.SliceOfN(rapid.SampledFrom(mixable), 3, 3).Draw(t, "mix")
		var models []model.Strategy
		for _, name := range h.mix {
			models = append(models, playStrategies[name].model)
		}
		h.model = model.NewMixed(models...)
	}
	h.limits = h.genLimits(t)
	h.initial = h.limits
	subject := rapid.SampledFrom([]string{"a", "user:{1}\n%", "é\xff"}).Draw(t, "subject")
	h.keys = []string{subject, subject + string(rune('0'+histories.Add(1)%10))}
	for _, key := range h.keys {
		h.oracles[key] = model.NewOracle(w.strategy)
	}
	p := ration.Policy{Name: "p", Limits: h.limits, Slots: h.slots}
	if h.dynamic {
		p.LimitsFor = func(context.Context, string) ([]ration.Limit, error) { return h.limits, nil }
	}
	if w.clock != nil {
		h.clock = w.clock(p)
	}
	h.setTime(t, rapid.Int64Range(1e15, 4e15).Draw(t, "start"))
	var err error
	if h.mix != nil {
		h.limiter, err = h.combine(p)
	} else {
		h.limiter, err = w.limiter(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *history) setTime(t *rapid.T, now int64) {
	t.Logf("clock %d", now)
	h.now = now
	h.world.setTime(time.UnixMicro(now))
	if h.clock == nil {
		h.model.ClockAt(now)
	}
}

// at is the time that counts if the next call is made now.
func (h *history) at() int64 {
	if h.clock == nil {
		return h.now
	}
	c := *h.clock
	return c.read(h.now)
}

// do makes a call and holds the answer against the model's and the promise.
func (h *history) do(t *rapid.T, op ration.Op, key string, n int64) ration.Decision {
	r := ration.Request{Op: op, Key: key, N: n}
	at := h.at()
	want := h.expect(r)
	got, err := h.ask(r)
	if err != nil {
		t.Fatalf("%v: %v", r, err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%v at %d under %v:\n got %+v\nwant %+v", r, at, h.limits, got, want)
	}
	t.Logf("%v: %+v", r, got)
	h.tellOracle(t, at, r, got)
	return got
}

// expect is the model's answer.
func (h *history) expect(r ration.Request) ration.Decision {
	at := h.at()
	if h.clock != nil {
		h.clock.read(h.now)
	}
	d := h.model.Do(at, r, h.limits, int64(h.slots))
	if r.Op != ration.OpReset {
		d.Source = h.world.source
	}
	return d
}

// ask uses the methods with fewer arguments where they say the same.
func (h *history) ask(r ration.Request) (ration.Decision, error) {
	if r.Op == ration.OpAllow && r.N == 1 {
		return h.limiter.Allow(context.Background(), r.Key)
	}
	return r.Do(context.Background(), h.limiter)
}

func (h *history) tellOracle(t *rapid.T, at int64, r ration.Request, d ration.Decision) {
	if h.untold() || h.mix != nil || h.dynamic && h.world.strategy == model.TokenBucket {
		return
	}
	oracle := h.oracles[r.Key]
	switch {
	case r.Op == ration.OpReset:
		oracle.Reset(h.limits)
	case r.Op == ration.OpRefund:
		oracle.Refund(at, d.Granted, h.limits)
	case d.Granted > 0:
		if err := oracle.Grant(at, d.Granted, h.limits); err != nil {
			t.Fatalf("the promise is broken for %q: %v", r.Key, err)
		}
	}
}

// untold says that the oracle isn't told: a window that the clock enters twice isn't counted twice.
func (h *history) untold() bool { return h.world.back && h.world.strategy != model.SlidingLog }

// peek asks the model only: it guides what is tried next.
func (h *history) peek(key string) ration.Decision {
	return h.model.Do(h.at(), ration.Request{Op: ration.OpPeek, Key: key}, h.limits, int64(h.slots))
}

func (h *history) smallest() int64 {
	return model.Size(slices.MinFunc(h.limits, func(a, b ration.Limit) int { return int(model.Size(a) - model.Size(b)) }))
}

func (h *history) key(t *rapid.T) string { return rapid.SampledFrom(h.keys).Draw(t, "key") }

func (h *history) call(t *rapid.T) {
	key := h.key(t)
	op := rapid.SampledFrom([]ration.Op{
		ration.OpAllow, ration.OpAllow, ration.OpAllow, ration.OpAllow, ration.OpAllow,
		ration.OpAllowUpTo, ration.OpAllowUpTo, ration.OpRefund, ration.OpRefund, ration.OpPeek, ration.OpReset,
	}).Draw(t, "op")
	n := int64(0)
	if op != ration.OpPeek && op != ration.OpReset {
		left, most := h.peek(key).Remaining, h.smallest()
		n = rapid.OneOf(
			rapid.Just[int64](1),
			rapid.Int64Range(0, 35),
			rapid.Int64Range(0, most),
			rapid.SampledFrom([]int64{left, left + 1, left / 2, most, most + 1}),
			rapid.SampledFrom([]int64{ration.MaxUnits, ration.MaxUnits + 1, math.MaxInt64}),
		).Draw(t, "n")
	}
	h.do(t, op, key, n)
	if op == ration.OpReset { // it needn't look at the clock; now all have seen it
		h.do(t, ration.OpPeek, key, 0)
	}
}

// useUp leaves none, one, or a few units.
func (h *history) useUp(t *rapid.T) {
	key := h.key(t)
	spare := rapid.Int64Range(0, 3).Draw(t, "spare")
	h.do(t, ration.OpAllow, key, max(0, h.peek(key).Remaining-spare))
}

// crowd makes equal calls at once, for each subject its own: each must get
// the answer of one of them made in a row.
func (h *history) crowd(t *rapid.T) {
	var calls []ration.Request
	cost := rapid.OneOf(rapid.Int64Range(1, 5), rapid.Int64Range(1, h.smallest()+1))
	for _, key := range h.keys {
		op := rapid.SampledFrom([]ration.Op{ration.OpAllow, ration.OpAllowUpTo}).Draw(t, "op")
		r := ration.Request{Op: op, Key: key, N: cost.Draw(t, "n")}
		calls = append(calls, slices.Repeat([]ration.Request{r}, rapid.IntRange(0, 9).Draw(t, "calls"))...)
	}
	at := h.at()
	want, got := make([]ration.Decision, len(calls)), make([]ration.Decision, len(calls))
	errs := make([]error, len(calls))
	var wg sync.WaitGroup
	for i, r := range calls {
		want[i] = h.expect(r)
	}
	for i, r := range calls {
		wg.Go(func() { got[i], errs[i] = h.ask(r) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%v: %v", calls, err)
	}
	for _, key := range h.keys {
		mine := func(answers []ration.Decision) (list []ration.Decision) {
			for i, r := range calls {
				if r.Key == key {
					list = append(list, answers[i])
				}
			}
			return list
		}
		sorted := slices.SortedFunc(slices.Values(mine(got)), func(a, b ration.Decision) int {
			return cmp.Or(cmp.Compare(b.Granted, a.Granted), cmp.Compare(b.Remaining, a.Remaining))
		})
		if !reflect.DeepEqual(sorted, mine(want)) {
			t.Fatalf("%v at %d under %v:\n got %+v\nwant %+v", calls, at, h.limits, sorted, mine(want))
		}
	}
	for i, r := range calls {
		h.tellOracle(t, at, r, got[i])
	}
}

// move sets the clock forward, often to where something ends.
func (h *history) move(t *rapid.T) {
	peek := h.peek(h.key(t))
	i := rapid.IntRange(0, len(h.limits)-1).Draw(t, "limit")
	window := micros(h.limits[i].Window)
	slot := max(1, window/int64(max(1, h.slots)))
	var step int64
	switch rapid.SampledFrom([]string{"µs", "inside", "grid", "slot", "windows", "retry", "reset", "limit"}).Draw(t, "move") {
	case "µs":
		step = 1
	case "inside":
		step = rapid.Int64Range(0, window).Draw(t, "inside")
	case "grid":
		step = window - h.at()%window
	case "slot":
		step = slot - h.at()%slot
	case "windows":
		step = window * rapid.Int64Range(1, 3).Draw(t, "windows")
	case "retry":
		if peek.RetryAfter != ration.Never {
			step = micros(peek.RetryAfter)
		}
	case "reset":
		step = micros(peek.ResetAfter)
	case "limit":
		if peek.Limits != nil {
			step = micros(peek.Limits[i].ResetAfter)
		}
	}
	step += rapid.Int64Range(-1, 1).Draw(t, "beside")
	h.setTime(t, h.now+max(0, step))
}

// moveBack sets the clock back, but not so far that units which had ended would count
// again: nobody promises anything for these.
func (h *history) moveBack(t *rapid.T) {
	l := rapid.SampledFrom(h.limits).Draw(t, "limit")
	window := micros(l.Window)
	step := rapid.OneOf(
		rapid.Int64Range(1, 3*window), rapid.Int64Range(1, window), rapid.Int64Range(1, 1+window/int64(h.slots+1)),
	).Draw(t, "back")
	was, floor := h.now, h.model.Floor()
	h.now -= step
	if h.at() < floor {
		h.now = min(was, was-step+floor-h.at())
	}
	h.setTime(t, h.now)
	h.do(t, ration.OpPeek, h.keys[0], 0) // so that the step is seen
}

func (h *history) changeLimits(t *rapid.T) {
	switch rapid.SampledFrom([]string{"units", "all", "initial"}).Draw(t, "change") {
	case "units":
		h.limits = slices.Clone(h.limits)
		i := rapid.IntRange(0, len(h.limits)-1).Draw(t, "limit")
		h.limits[i].Units = genUnits().Draw(t, "units")
		h.limits[i].Burst = h.genBurst(t, i, h.limits[i])
	case "all":
		if h.mix == nil {
			h.limits = h.genLimits(t)
		}
	case "initial":
		h.limits = h.initial
	}
	t.Logf("limits %v", h.limits)
}

// checkRemaining makes sure that Remaining units pass at once and no more.
func (h *history) checkRemaining(t *rapid.T) {
	key := h.key(t)
	left := h.do(t, ration.OpPeek, key, 0).Remaining
	if left <= 35 {
		for range left {
			if d := h.do(t, ration.OpAllow, key, 1); !d.Allowed {
				t.Fatalf("refused with units remaining: %+v", d)
			}
		}
	} else if d := h.do(t, ration.OpAllow, key, left); !d.Allowed {
		t.Fatalf("refused what remained: %+v", d)
	}
	if d := h.do(t, ration.OpAllow, key, 1); d.Allowed {
		t.Fatalf("allowed with nothing remaining: %+v", d)
	}
	if d := h.do(t, ration.OpRefund, key, left); d.Remaining != left || d.Granted != left {
		t.Fatalf("refund of %d: %+v", left, d)
	}
}

// checkRetryAfter has a call refused and tries it again a microsecond too
// early, then in time.
func (h *history) checkRetryAfter(t *rapid.T) {
	key := h.key(t)
	left, most := h.peek(key).Remaining, h.smallest()
	if left >= most {
		t.Skip("every possible cost fits")
	}
	n := rapid.Int64Range(left+1, most).Draw(t, "n")
	d := h.do(t, ration.OpAllow, key, n)
	if d.Allowed || d.RetryAfter <= 0 || d.RetryAfter == ration.Never {
		t.Fatalf("%d of %d remaining: %+v", n, left, d)
	}
	at := h.now + micros(d.RetryAfter)
	h.setTime(t, at-1)
	if d := h.do(t, ration.OpAllow, key, n); d.Allowed {
		t.Fatalf("allowed too early: %+v", d)
	}
	h.setTime(t, at)
	if d := h.do(t, ration.OpAllow, key, n); !d.Allowed {
		t.Fatalf("refused after RetryAfter: %+v", d)
	}
}

// checkResetAfter waits until the whole limit remains.
func (h *history) checkResetAfter(t *rapid.T) {
	key, most := h.key(t), h.smallest()
	d := h.do(t, ration.OpPeek, key, 0)
	if d.ResetAfter == 0 || most == 0 {
		t.Skip("it remains now")
	}
	at := h.now + micros(d.ResetAfter)
	h.setTime(t, at-1)
	if d := h.do(t, ration.OpPeek, key, 0); d.Remaining >= most {
		t.Fatalf("whole too early: %+v", d)
	}
	h.setTime(t, at)
	if d := h.do(t, ration.OpPeek, key, 0); d.Remaining != most || d.ResetAfter != 0 {
		t.Fatalf("not whole after ResetAfter: %+v", d)
	}
}
