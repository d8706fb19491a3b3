package integration

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/model"
)

// input is a call as it was made: when by the server's clock, what, and under
// which of its history's plans (lists of limits).
type input struct {
	at   int64     // µs since 1970
	op   ration.Op // 0 is the end of a history
	key  string
	n    int64
	plan int
	late int // 1 for the first call of its kind without an answer, 2 for the second, ...
}

// output is its answer. Of a call that ended without one nobody knows whether
// it happened.
type output struct {
	d     ration.Decision
	known bool
}

// sequential is what a limiter has to answer one call at a time: the model of
// its strategy in the shape porcupine takes. The model's own state changes in place,
// so a state here is the list of what counts, and a step builds a model from it.
type sequential struct {
	strategy model.Strategy
	slots    int64
	plans    [][]ration.Limit

	mu     sync.Mutex
	states map[string]*state
	steps  map[step]after
}

// state is one subject's usage. There is one state of a kind, so pointers tell them apart.
type state struct {
	counts []count
	late   map[input]int // of each kind the calls without an answer that happened
	ended  bool          // all calls with an answer have happened
	id     uint64
}

// count is units charged under one window at one time.
type count struct {
	window time.Duration
	at     int64
	units  int64
}

type step struct {
	from *state
	in   input
}

type after struct {
	d  ration.Decision
	to *state
}

func newSequential(s model.Strategy, slots int64, plans [][]ration.Limit) *sequential {
	return &sequential{
		strategy: s, slots: slots, plans: plans,
		states: map[string]*state{}, steps: map[step]after{},
	}
}

// model gives s as porcupine takes it: each subject a history of its own.
func (s *sequential) model() porcupine.Model {
	return porcupine.Model{
		Partition: bySubject,
		Init:      func() any { return s.intern(state{}) },
		Step: func(from, in, out any) (bool, any) {
			if o := out.(output); o.known {
				next := s.step(from.(*state), in.(input))
				return reflect.DeepEqual(next.d, o.d), next.to
			}
			return s.unknown(from.(*state), in.(input))
		},
		Hash: func(of any) uint64 { return of.(*state).id },
		DescribeOperation: func(in, out any) string {
			return fmt.Sprintf("%+v under %+v -> %+v", in, s.plans[in.(input).plan], out)
		},
	}
}

func bySubject(history []porcupine.Operation) (parts [][]porcupine.Operation) {
	places := map[string]int{}
	for _, op := range history {
		key := op.Input.(input).key
		place, ok := places[key]
		if !ok {
			place = len(parts)
			places[key] = place
			parts = append(parts, nil)
		}
		parts[place] = append(parts[place], op)
	}
	return parts
}

// unknown makes a call that nobody knows the answer of, or ends the history. Such a call
// may happen at any time from its beginning on, or never, which is after the end.
// Where it would change nothing it may as well happen later; and of calls of a kind the
// one that began first may as well happen first. That leaves little to try.
func (s *sequential) unknown(from *state, in input) (bool, *state) {
	kind := in
	kind.late = 0
	switch {
	case in.op == 0:
		return true, s.intern(state{counts: from.counts, late: from.late, ended: true})
	case from.ended:
		return true, from
	case from.late[kind] != in.late-1:
		return false, from
	}
	next := s.step(from, kind).to
	if next == from {
		return false, from
	}
	late := maps.Clone(from.late)
	if late == nil {
		late = map[input]int{}
	}
	late[kind]++
	return true, s.intern(state{counts: next.counts, late: late})
}

// complete gives a history as model takes it: with an end for each subject.
func complete(history []porcupine.Operation) (whole []porcupine.Operation) {
	history = slices.SortedFunc(slices.Values(history), func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	ends, late := map[string]int64{}, map[input]int{}
	for _, op := range history {
		in := op.Input.(input)
		if op.Output.(output).known {
			ends[in.key] = max(ends[in.key], op.Return)
		} else {
			ends[in.key] = max(ends[in.key], op.Call)
			late[in]++
			in.late = late[in]
			op.Input, op.Return = in, math.MaxInt64
		}
		whole = append(whole, op)
	}
	for key, at := range ends {
		whole = append(whole, porcupine.Operation{Input: input{key: key}, Call: at + 1, Output: output{}, Return: at + 1})
	}
	return whole
}

// step remembers what it has worked out: a search comes by the same places often.
func (s *sequential) step(from *state, in input) after {
	s.mu.Lock()
	known, ok := s.steps[step{from, in}]
	s.mu.Unlock()
	if ok {
		return known
	}
	d, counts := s.do(from.counts, in)
	a := after{d, s.intern(state{counts: counts, late: from.late})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps[step{from, in}] = a
	return a
}

// do makes the call on a model that has what counts, and sees by what each
// window counts before and after what it did to it.
func (s *sequential) do(counts []count, in input) (ration.Decision, []count) {
	m := model.New(s.strategy)
	for _, c := range counts {
		m.Do(c.at, ration.Request{Op: ration.OpAllow, Key: in.key, N: c.units}, whole(c.window), s.slots)
	}
	used := func(window time.Duration) int64 { return m.Held(in.at, in.key, window, s.slots) }
	limits := s.plans[in.plan]
	before := make([]int64, len(limits))
	for i, l := range limits {
		before[i] = used(l.Window)
	}
	d := m.Do(in.at, ration.Request{Op: in.op, Key: in.key, N: in.n}, limits, s.slots)
	if in.op != ration.OpReset {
		d.Source = ration.Redis
	}
	counts = slices.Clone(counts)
	for i, l := range limits {
		counts = change(counts, l.Window, in.at, used(l.Window)-before[i], in.op == ration.OpReset)
	}
	return d, counts
}

// whole is the largest limit over a window: what it leaves tells what is used.
func whole(window time.Duration) []ration.Limit {
	return []ration.Limit{ration.Per(ration.MaxUnits, window)}
}

// change charges more units under a window or takes them back, the newest first.
func change(counts []count, window time.Duration, at, more int64, reset bool) []count {
	for i := len(counts) - 1; i >= 0; i-- {
		c := &counts[i]
		switch {
		case c.window != window:
			continue
		case reset:
			c.units = 0
		case more < 0:
			back := min(-more, c.units)
			c.units -= back
			more += back
		case more > 0 && c.at == at:
			c.units += more
			return counts
		}
		if c.units == 0 {
			counts = slices.Delete(counts, i, i+1)
		}
	}
	if more > 0 {
		counts = append(counts, count{window, at, more})
	}
	return counts
}

// intern gives the one state like s.
func (s *sequential) intern(like state) *state {
	texts := make([]string, len(like.counts))
	for i, c := range like.counts {
		texts[i] = fmt.Sprint(c)
	}
	slices.Sort(texts)
	text := fmt.Sprint(texts, like.late, like.ended)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.states[text] == nil {
		like.id = uint64(len(s.states))
		s.states[text] = &like
	}
	return s.states[text]
}
