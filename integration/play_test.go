package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// variant is a way in which histories are played.
type variant struct {
	name     string
	opts     []ration.Option
	stores   int  // instances of a service, each with a client of its own
	obedient bool // the clients end their I/O with the context
	quit     bool // some callers end their contexts before they have an answer
	cuts     bool // connections are cut on the way
	alone    bool // no call shares a run
}

// stage is where histories are played: a server and clients of it. The clock of the
// server is moved between the acts of a play only.
type stage struct {
	t       testing.TB
	st      strategy
	srv     server
	v       variant
	clients []*redis.Client
	watches []*watch
	proxy   *proxy // before the server, where connections are cut
}

// play is one history: some subjects, limits that may change meanwhile, and callers.
type play struct {
	stage
	rng *rand.Rand

	seq      *sequential
	dynamic  bool
	short    bool         // little is called
	plan     atomic.Int64 // the plan that LimitsFor gives now
	limiters []ration.Limiter
	menu     []input
	start    time.Time

	mu      sync.Mutex
	history []porcupine.Operation
	calls   int64 // that were answered
	lost    int64 // that may have happened or not
}

// seen is the context key under which LimitsFor leaves the plan that a call got.
type seen struct{}

// newPlay makes a play with chance's plans, or with those given.
func newPlay(s stage, rng *rand.Rand, plans ...[]ration.Limit) *play {
	p := &play{stage: s, rng: rng, short: s.v.cuts || s.v.quit, start: time.Now()}
	if len(plans) == 0 {
		plans = p.plans()
	}
	p.dynamic = len(plans) > 1
	slots := rng.IntN(12)
	p.seq = newSequential(s.st.model, int64(slots), plans)
	policy := ration.Policy{Name: "p", Limits: p.seq.plans[0], Slots: slots}
	if p.dynamic {
		policy.LimitsFor = func(ctx context.Context, _ string) ([]ration.Limit, error) {
			plan := p.plan.Load()
			*ctx.Value(seen{}).(*int) = int(plan)
			return p.seq.plans[plan], nil
		}
	}
	prefix := ration.WithPrefix(freshName())
	for _, rdb := range s.clients {
		store := open(s.t, rdb, append([]ration.Option{prefix}, s.v.opts...)...)
		p.limiters = append(p.limiters, s.st.under(s.t, store, policy))
	}
	subjects := []string{"a", "b", "c"}[:1+rng.IntN(3)]
	for range 2 + rng.IntN(5) {
		p.menu = append(p.menu, p.dish(subjects))
	}
	return p
}

var windows = []time.Duration{3333 * time.Microsecond, time.Second, 7 * time.Second, time.Hour}

// plans gives lists of limits: of one, so that equal calls become one item, or of several.
func (p *play) plans() [][]ration.Limit {
	plans := make([][]ration.Limit, 1)
	if p.rng.IntN(2) == 0 {
		plans = make([][]ration.Limit, 2+p.rng.IntN(3))
	}
	most := 1
	if p.rng.IntN(3) == 0 {
		most = 3
	}
	for i := range plans {
		for _, w := range p.rng.Perm(len(windows))[:1+p.rng.IntN(most)] {
			plans[i] = append(plans[i], ration.Limit{
				Name:  []string{"", "burst"}[p.rng.IntN(2)],
				Units: p.rng.Int64N(40), Window: windows[w],
			})
		}
		if i > 0 && most == 1 && p.rng.IntN(2) == 0 { // another limit, the same count
			plans[i][0].Window = plans[0][0].Window
		}
	}
	return plans
}

// dish is one kind of call. Few kinds make many equal calls.
func (p *play) dish(subjects []string) input {
	in := input{key: subjects[p.rng.IntN(len(subjects))]}
	in.op = []ration.Op{
		ration.OpAllow, ration.OpAllow, ration.OpAllow, ration.OpAllow, ration.OpAllowUpTo, ration.OpAllowUpTo,
		ration.OpPeek, ration.OpRefund, ration.OpRefund, ration.OpReset,
	}[p.rng.IntN(10)]
	if in.op != ration.OpPeek && in.op != ration.OpReset {
		units := p.seq.plans[0][0].Units
		in.n = []int64{0, 1, 1, 1, 2, 2, 3, 5, units / 2, units, units + 1, ration.MaxUnits, math.MaxInt64}[p.rng.IntN(13)]
	}
	return in
}

// run plays the history: some calls in a row, then two acts (one if there are calls whose
// effect may come late) in which callers crowd, each at a time of its own.
func (p *play) run() {
	p.srv.Advance(time.Duration(p.rng.IntN(9e6)) * time.Microsecond)
	for range p.rng.IntN(6) {
		p.call(p.rng, 0, false)
		p.srv.Advance(time.Duration(p.rng.IntN(2e6)) * time.Microsecond)
	}
	for act := range 2 {
		if act == 0 || !p.short {
			p.crowd()
			p.srv.Advance(time.Duration(p.rng.IntN(8e6)) * time.Microsecond)
		}
	}
}

// crowd lets callers go at once.
func (p *play) crowd() {
	callers, calls := 6+p.rng.IntN(7), 6+p.rng.IntN(7)
	if p.short {
		callers, calls = min(callers, 8), 6
	}
	var done sync.WaitGroup
	gate := make(chan struct{})
	for i := range callers {
		rng := rand.New(rand.NewPCG(p.rng.Uint64(), 2))
		done.Go(func() {
			<-gate
			for range calls {
				p.call(rng, i, true)
			}
		})
	}
	close(gate)
	if p.v.cuts {
		for range 2 {
			time.Sleep(time.Duration(p.rng.IntN(2000)) * time.Microsecond) // when to cut, not what to wait for
			p.proxy.cut()
		}
	}
	done.Wait()
}

// call makes a call from the menu and records it.
func (p *play) call(rng *rand.Rand, caller int, crowd bool) {
	if p.dynamic && rng.IntN(4) == 0 {
		p.plan.Store(rng.Int64N(int64(len(p.seq.plans))))
	}
	in := p.menu[rng.IntN(len(p.menu))]
	in.at = p.srv.Now().UnixMicro()
	plan := 0
	callCtx, end := context.WithValue(ctx, seen{}, &plan), context.CancelFunc(func() {})
	if crowd && p.v.quit && rng.IntN(5) == 0 {
		callCtx, end = ending(callCtx, rng)
	}
	defer end()
	ended := callCtx.Err() != nil
	began := time.Since(p.start)
	d, err := ration.Request{Op: in.op, Key: in.key, N: in.n}.Do(callCtx, p.limiters[caller%len(p.limiters)])
	back := time.Since(p.start)
	in.plan = plan
	if err != nil {
		p.failed(callCtx, in, err)
		if in.op == ration.OpPeek || ended {
			return // these change nothing
		}
	} else if ended {
		p.t.Errorf("%+v with an ended context: %+v", in, d)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.calls++
	} else {
		p.lost++
	}
	p.history = append(p.history, porcupine.Operation{
		ClientId: caller, Input: in, Call: int64(began), Output: output{d, err == nil}, Return: int64(back),
	})
}

// ending gives a context that ends very soon, in either way.
func ending(parent context.Context, rng *rand.Rand) (context.Context, context.CancelFunc) {
	soon := time.Duration(rng.IntN(500)-50) * time.Microsecond
	if rng.IntN(2) == 0 {
		return context.WithTimeout(parent, soon)
	}
	c, cancel := context.WithCancel(parent)
	timer := time.AfterFunc(soon, cancel)
	return c, func() { timer.Stop(); cancel() }
}

// failed demands that an error is one that the variant brings about.
func (p *play) failed(callCtx context.Context, in input, err error) {
	switch {
	case callCtx.Err() != nil && errors.Is(err, callCtx.Err()) && !errors.Is(err, ration.ErrUnavailable):
	case p.v.cuts && errors.Is(err, ration.ErrUnavailable) && !errors.Is(err, context.Canceled):
	default:
		p.t.Errorf("%+v: %v", in, err)
	}
}

// anyAdmitted picks a call that was let through.
func (p *play) anyAdmitted() *porcupine.Operation {
	for {
		op := &p.history[p.rng.IntN(len(p.history))]
		if op.Output.(output).d.Allowed {
			return op
		}
	}
}

const checkLimit = 20 * time.Second

// check holds the history against the sequential model.
func (p *play) check() porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(p.seq.model(), complete(p.history), checkLimit)
}

// requireLegal demands that there is a serial order which explains all answers.
func (p *play) requireLegal() {
	p.t.Helper()
	if p.check() == porcupine.Ok {
		return
	}
	m := p.seq.model()
	for _, part := range bySubject(complete(p.history)) {
		if got := porcupine.CheckOperationsTimeout(m, part, checkLimit); got != porcupine.Ok {
			var text strings.Builder
			for _, op := range part {
				fmt.Fprintf(&text, "%v to %v: %s\n", time.Duration(op.Call), time.Duration(op.Return), m.DescribeOperation(op.Input, op.Output))
			}
			p.t.Logf("%v:\n%s", got, text.String())
		}
	}
	require.FailNow(p.t, "no serial order explains the answers")
}
