package rationtest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/rationgo/ration"
)

// Fake is a [ration.Limiter] that answers by a script instead of counting, for tests of what a
// service does with an answer, and remembers what it was asked:
//
//	login := rationtest.NewFake(t, rationtest.Allowed(4), rationtest.Refused(time.Minute))
//
// Each call takes the next [Step], whatever its method and subject; [Fake.For] gives a subject a script
// of its own. A caller's mistake (an empty key, a negative cost) and a context that has ended give their errors, as
// with every Limiter, and take none.
//
// A call for which no step is left fails the test and gets an error; end the script with [Always] if
// there may be any number. Steps left at the end of the test fail it too.
//
// All methods are safe for concurrent use.
type Fake struct {
	t       testing.TB
	checker ration.Limiter // refuses all, but for mistakes

	mu     sync.Mutex
	limit  ration.Limit
	common *[]Step
	own    map[string]*[]Step // by subject
	calls  []ration.Request
	ended  bool // the test is over
}

var _ ration.Limiter = (*Fake)(nil)

var errNoStep = errors.New("rationtest: the Fake has no step left for the call")

// NewFake makes a Fake with a script. With no steps at all each call fails the test, but for
// subjects that [Fake.For] gives a script. A step that no limiter could answer ends the
// test (t.Fatalf): a negative Remaining, a refusal without RetryAfter, steps after [Always].
func NewFake(t testing.TB, steps ...Step) *Fake {
	t.Helper()
	// A limit of no units charges nobody, and finds mistakes as every limiter does.
	checker, err := ration.NewLocal(ration.Policy{Name: "fake", Limits: []ration.Limit{ration.PerMinute(0)}})
	if err != nil {
		t.Fatalf("rationtest: %v", err)
	}
	checkScript(t, steps)
	common := slices.Clone(steps)
	f := &Fake{t: t, checker: checker, limit: ration.PerMinute(100), common: &common, own: make(map[string]*[]Step)}
	t.Cleanup(f.finish)
	return f
}

// For gives a subject a script of its own; its calls take no step of the others' any more, also when
// it's used up. Called again, it adds steps. It returns f.
func (f *Fake) For(key string, steps ...Step) *Fake {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	script := f.own[key]
	if script == nil {
		script = new([]Step)
		f.own[key] = script
	}
	longer := slices.Concat(*script, steps)
	checkScript(f.t, longer)
	*script = longer
	return f
}

// WithLimit sets the limit that decisions name, which is 100 units a minute by default. Where
// an answer needs more units or a longer window, its decision names such. It returns f.
func (f *Fake) WithLimit(l ration.Limit) *Fake {
	f.t.Helper()
	if l.Units < 0 || l.Units > ration.MaxUnits || l.Window < ration.MinWindow || l.Window > ration.MaxWindow {
		f.t.Fatalf("rationtest: WithLimit: %d units in %v are no limit", l.Units, l.Window)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limit = l
	return f
}

// Calls are the calls so far in their order, as they were made: mistakes, and calls for which no
// step was left, included.
func (f *Fake) Calls() []ration.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// The methods of ration.LimiterFunc would do, but a failure is to show the line that called them.

// Allow takes the next step.
func (f *Fake) Allow(ctx context.Context, key string) (ration.Decision, error) {
	f.t.Helper()
	return f.answer(ctx, ration.Request{Op: ration.OpAllow, Key: key, N: 1})
}

// AllowN takes the next step.
func (f *Fake) AllowN(ctx context.Context, key string, n int64) (ration.Decision, error) {
	f.t.Helper()
	return f.answer(ctx, ration.Request{Op: ration.OpAllow, Key: key, N: n})
}

// AllowUpTo takes the next step.
func (f *Fake) AllowUpTo(ctx context.Context, key string, n int64) (ration.Decision, error) {
	f.t.Helper()
	return f.answer(ctx, ration.Request{Op: ration.OpAllowUpTo, Key: key, N: n})
}

// Peek takes the next step.
func (f *Fake) Peek(ctx context.Context, key string) (ration.Decision, error) {
	f.t.Helper()
	return f.answer(ctx, ration.Request{Op: ration.OpPeek, Key: key})
}

// Refund takes the next step.
func (f *Fake) Refund(ctx context.Context, key string, n int64) (ration.Decision, error) {
	f.t.Helper()
	return f.answer(ctx, ration.Request{Op: ration.OpRefund, Key: key, N: n})
}

// Reset takes the next step, and gives no more of it than the error.
func (f *Fake) Reset(ctx context.Context, key string) error {
	f.t.Helper()
	_, err := f.answer(ctx, ration.Request{Op: ration.OpReset, Key: key})
	return err
}

// answer is every method.
func (f *Fake) answer(ctx context.Context, r ration.Request) (ration.Decision, error) {
	f.t.Helper()
	_, mistake := r.Do(ctx, f.checker)
	step, limit := f.take(r, mistake == nil)
	switch {
	case mistake != nil:
		return ration.Decision{}, mistake
	case step.answer == nil:
		return ration.Decision{}, errNoStep
	}
	if r.N == 0 && r.Op != ration.OpReset {
		r.Op = ration.OpPeek // as the other limiters have it
	}
	return step.answer(ctx, r, limit)
}

// take notes the call and, if it gets one, takes its step.
func (f *Fake) take(r ration.Request, getsOne bool) (Step, ration.Limit) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, r)
	if !getsOne {
		return Step{}, f.limit
	}
	script, has := f.own[r.Key]
	if !has {
		script = f.common
	}
	if len(*script) == 0 {
		if !f.ended { // testing panics at a report that comes too late
			// Not Fatalf: the call may come from another goroutine than the test's.
			f.t.Errorf("rationtest: the Fake has no step left for call %d, %v of %d", len(f.calls), r.Op, r.N)
		}
		return Step{}, f.limit
	}
	step := (*script)[0]
	if !step.always {
		*script = (*script)[1:]
	}
	return step, f.limit
}

// finish reports, once, what nobody has asked for.
func (f *Fake) finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	left := unused(*f.common)
	for _, steps := range f.own {
		left += unused(*steps)
	}
	if left > 0 {
		f.t.Errorf("rationtest: steps of the Fake that no call took: %d (of calls there were %d)", left, len(f.calls))
	}
}

func unused(steps []Step) int {
	if n := len(steps); n > 0 && steps[n-1].always {
		return n - 1
	}
	return len(steps)
}

// checkScript ends the test if no limiter could answer so.
func checkScript(t testing.TB, steps []Step) {
	t.Helper()
	for i, s := range steps {
		switch {
		case s.problem != "":
			t.Fatalf("rationtest: step %d of the Fake: %s", i+1, s.problem)
		case s.answer == nil:
			t.Fatalf("rationtest: step %d of the Fake: the zero Step is none", i+1)
		case s.always && i < len(steps)-1:
			t.Fatalf("rationtest: step %d of the Fake is Always, so later ones would never be used", i+1)
		}
	}
}
