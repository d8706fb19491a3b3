package integration

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// watch is a go-redis hook that counts a client's script runs and what they ask, and holds
// or breaks them where a test wants it.
type watch struct {
	st strategy

	mu sync.Mutex
	// before and after, if set, run around each command or pipeline that asks something,
	// with the number of those seen so far.
	before, after func(run int)

	seen  int   // commands and pipelines
	runs  int   // scripts
	calls int   // calls answered by them
	most  int   // calls in one item
	asks  int   // items
	sizes []int // items of each run, however many scripts it is
	ops   map[byte]asked
}

// asked is what was asked for under one letter of scripts/driver.lua.
type asked struct {
	items int
	units int64
}

func (w *watch) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *watch) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return w.around([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (w *watch) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return w.around(cmds, func() error { return next(ctx, cmds) })
	}
}

func (w *watch) around(cmds []redis.Cmder, send func() error) error {
	if cmds[0].Name() != "evalsha" { // an EVAL asks again what an EVALSHA has asked
		return send()
	}
	w.mu.Lock()
	run := w.seen
	w.seen++
	asks := w.asks
	for _, cmd := range cmds {
		w.count(cmd.Args())
	}
	w.sizes = append(w.sizes, w.asks-asks)
	before, after := w.before, w.after
	w.mu.Unlock()
	if before != nil {
		before(run)
	}
	err := send()
	if after != nil {
		after(run)
	}
	return err
}

// count reads a command as scripts/driver.lua does.
func (w *watch) count(args []any) {
	w.runs++
	for args = args[3+args[2].(int)+w.st.header:]; len(args) > 0; w.asks++ {
		op, limits := args[0].(string), args[2].(int)
		calls := 1
		if len(op) > 1 && (op[0] == 'a' || op[0] == 'u') {
			calls, _ = strconv.Atoi(op[1:])
		}
		w.note(op[0], args[1].(int64)*int64(calls))
		w.calls += calls
		w.most = max(w.most, calls)
		args = args[3+w.st.fields*limits:]
	}
}

// note counts an item. The caller has the lock.
func (w *watch) note(op byte, units int64) {
	if w.ops == nil {
		w.ops = map[byte]asked{}
	}
	w.ops[op] = asked{w.ops[op].items + 1, w.ops[op].units + units}
}

// items is how many were sent under a letter, units how many units they were for.
func (w *watch) items(op byte) int   { return w.sent(op).items }
func (w *watch) units(op byte) int64 { return w.sent(op).units }

func (w *watch) sent(op byte) asked {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ops[op]
}

// tally is what a watch has counted so far.
type tally struct{ runs, items, calls, most int }

func (w *watch) tally() tally {
	w.mu.Lock()
	defer w.mu.Unlock()
	return tally{w.runs, w.asks, w.calls, w.most}
}

func (w *watch) runsSeen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

func (w *watch) lastSize() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sizes[len(w.sizes)-1]
}

// on sets what runs before and after each run.
func (w *watch) on(before, after func(run int)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.after = before, after
}

// add sums up, but for most.
func (a tally) add(b tally) tally {
	return tally{a.runs + b.runs, a.items + b.items, a.calls + b.calls, max(a.most, b.most)}
}

// watched makes a client with a watch.
func watched(w *watch, rdb redis.UniversalClient) *watch {
	rdb.AddHook(w)
	return w
}

// together makes calls ride in one run, which needs a store of one run at a time: it holds
// a call of its own on its way until all the others wait behind it, and lets go of it.
// It returns when the calls are under way; wait waits for their answers.
func together(t testing.TB, w *watch, first func(), calls ...func()) (wait func()) {
	t.Helper()
	held, gate := w.runsSeen(), make(chan struct{})
	w.mu.Lock()
	before, after := w.before, w.after
	w.mu.Unlock()
	w.on(func(run int) {
		if run == held {
			<-gate
		} else if before != nil {
			before(run)
		}
	}, after)
	var callers sync.WaitGroup
	callers.Go(first)
	until(t, "the first call's run", func() bool { return w.runsSeen() > held })
	for _, call := range calls {
		callers.Go(call)
	}
	awaitCalls(t, 1+len(calls))
	close(gate)
	return func() {
		callers.Wait()
		w.on(before, after)
	}
}
