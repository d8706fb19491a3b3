package ration

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// item is one call, or several equal ones, on the road to a script.
type item struct {
	op     byte // as in scripts/driver.lua
	n      int64
	count  int64
	limits []limitArgs
	keys   []string
	reply  []int64 // filled by the run
}

// limitArgs are a limit's numbers as a script takes them.
type limitArgs struct{ units, width, keys int64 }

// replyLen is the number of integers a script answers to the item.
func (it *item) replyLen() int {
	n := 1 + 3*len(it.limits)
	if len(it.limits) > 1 {
		n++
	}
	return n
}

// ask brings an item to Redis and back. Each call travels alone for now.
//
// The run has a goroutine of its own, since go-redis reads the socket without
// looking at the context: so the caller leaves in time, and the run's goroutine ends when
// the client's own timeouts end it.
func (s *Store) ask(ctx context.Context, sc *script, it *item) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.calls.Done()
	runCtx, cancel := s.runContext(ctx)
	done := make(chan error, 1)
	go func() {
		defer cancel()
		done <- s.run(runCtx, sc, []*item{it})
	}()
	budget := time.NewTimer(s.opts.timeout)
	defer budget.Stop()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-budget.C:
		return errBudget(s.opts.timeout)
	}
}

// run is one EVALSHA for the items. It fills their replies or says why not.
func (s *Store) run(ctx context.Context, sc *script, items []*item) (err error) {
	defer func() {
		// A hook of the caller's client runs here; its panic must not end the process.
		if p := recover(); p != nil {
			err = unavailable(fmt.Errorf("panic in the Redis client: %v", p), items)
		}
	}()
	keys, argv := encode(items, s.header(sc))
	reply, err := sc.eval(ctx, s.rdb, keys, argv)
	if err != nil {
		return unavailable(err, items)
	}
	if err := decode(reply, items); err != nil {
		return unavailable(err, items)
	}
	return nil
}

// encode writes the items after the header as scripts/driver.lua takes them.
func encode(items []*item, argv []any) (keys []string, _ []any) {
	for i, it := range items {
		keys = append(keys, it.keys...)
		op := string(it.op)
		if it.count > 1 {
			op += strconv.FormatInt(it.count, 10)
		}
		argv = append(argv, op, it.n)
		if i > 0 && sameLimits(items[i-1].limits, it.limits) {
			argv = append(argv, 0)
			continue
		}
		argv = append(argv, len(it.limits))
		for _, l := range it.limits {
			argv = append(argv, l.units, l.width, l.keys)
		}
	}
	return keys, argv
}

func sameLimits(a, b []limitArgs) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// decode reads a script's reply. It takes nothing on trust: a proxy, a fork or
// another script may have answered.
func decode(reply []any, items []*item) error {
	want := 0
	for _, it := range items {
		want += it.replyLen()
	}
	if len(reply) != want {
		return fmt.Errorf("the script's reply has %d values, not %d", len(reply), want)
	}
	numbers := make([]int64, want)
	for i, v := range reply {
		n, ok := v.(int64)
		if !ok {
			return fmt.Errorf("the script's reply has a %T at %d", v, i)
		}
		if n < 0 || n > MaxUnits {
			return fmt.Errorf("the script's reply has %d at %d", n, i)
		}
		numbers[i] = n
	}
	for _, it := range items {
		it.reply, numbers = numbers[:it.replyLen()], numbers[it.replyLen():]
		if granted := it.reply[0]; granted > 0 && !it.mayGrant(granted) {
			return fmt.Errorf("the script's reply grants %d units to %d calls of %d", granted, it.count, it.n)
		}
	}
	return nil
}

// mayGrant says whether a script can have granted so many units to the item.
func (it *item) mayGrant(granted int64) bool {
	switch it.op {
	case opAllow:
		return granted%it.n == 0 && granted/it.n <= it.count
	case opUpTo:
		return granted <= it.n*it.count
	case opRefund:
		return granted <= it.n
	}
	return false
}
