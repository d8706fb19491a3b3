package ration

import (
	"fmt"
	"slices"
	"strconv"
)

// item is one or several equal calls on the road to a script, answered together.
type item struct {
	script *script
	op     byte // as in scripts/driver.lua
	n      int64
	limits []boundLimit
	keys   []string
	bytes  int // about what it takes on the wire

	lending *lending // of items that say more than n, else nil
	permit  []any    // of the permitScript: its part of ARGV

	key   mergeKey
	calls []*call // its callers, in the order of their answers
	count int64   // how many of them it asked for when it was sent

	reply []int64 // filled by the run, or
	err   error   // why there is none
}

// boundLimit is a limit made ready for its script and keys.
type boundLimit struct {
	args limitArgs
	base string // the key up to the subject
	argv [5]any // args once more, as the command takes them

	strategy *strategy
}

// limitArgs are a limit's numbers as a script takes them; the last only if it has use for them.
type limitArgs struct{ units, width, keys, rate, kind int64 }

// mergeKey is what calls must have in common to be one item. The zero key
// belongs to items that are for one call only.
type mergeKey struct {
	limiter *redisLimiter
	op      byte
	n       int64
	subject string
	limit   limitArgs // where LimitsFor gave it
	base    string    // likewise: windows that are cut alike have different keys
}

// replyLen is the number of integers a script answers to the item.
func (it *item) replyLen() int {
	n := 1 + it.script.answers*len(it.limits)
	if len(it.limits) > 1 {
		n++
	}
	switch it.op {
	case opLease:
		n += 2
	case opReserve:
		n++
	}
	if it.script == colorScript {
		n += 2
	}
	return n
}

// limitReply is what the script answers about limit number i.
func (it *item) limitReply(i int) []int64 {
	from := 1 + it.script.answers*i
	return it.reply[from : from+it.script.answers]
}

// encode adds the items as scripts/driver.lua takes them to args, which
// already has the command and its script: the keys, then the header, then the items.
func encode(args []any, items []*item, header []any) []any {
	keys, numbers := 0, 0
	for _, it := range items {
		keys += len(it.keys)
		numbers += 3 + 3*len(it.limits)
	}
	args = slices.Grow(args, 1+keys+len(header)+numbers)
	args = append(args, keys)
	for _, it := range items {
		for _, key := range it.keys {
			args = append(args, key)
		}
	}
	args = append(args, header...)
	for i, it := range items {
		args = append(args, it.opText(), it.n)
		if i > 0 && sameLimits(items[i-1].limits, it.limits) {
			args = append(args, 0)
			continue
		}
		args = append(args, len(it.limits))
		for j := range it.limits {
			args = append(args, it.limits[j].argv[:it.script.fields]...)
		}
	}
	return args
}

// opText is an item's first argument: the letter, and how many calls if several, or
// what a lease's item says beside n.
func (it *item) opText() any {
	if it.count > 1 {
		return string(it.op) + strconv.FormatInt(it.count, 10)
	}
	switch it.op { // constants, so that nothing is allocated
	case opAllow:
		return "a"
	case opUpTo:
		return "u"
	case opPeek:
		return "p"
	case opLease:
		return fmt.Sprintf("l%d/%d", it.lending.hold, it.lending.share)
	case opGiveBack:
		return fmt.Sprintf("b%d", it.lending.end)
	case opReserve:
		return fmt.Sprintf("w%d", it.lending.hold)
	case opCancel:
		return fmt.Sprintf("c%d", it.lending.end)
	}
	return string(it.op)
}

func sameLimits(a, b []boundLimit) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].args != b[i].args {
			return false
		}
	}
	return true
}

// decode reads a script's reply to the items. It takes nothing on trust: a
// proxy, a fork or another script may have answered.
func decode(reply []any, items []*item) error {
	want := 0
	for _, it := range items {
		want += it.replyLen()
	}
	if len(reply) != want {
		return fmt.Errorf("%w: %d values, not %d", errReply, len(reply), want)
	}
	numbers := make([]int64, want)
	for i, v := range reply {
		n, ok := v.(int64)
		if !ok {
			return fmt.Errorf("%w: a %T at %d", errReply, v, i)
		}
		if n < 0 || n > MaxUnits {
			return fmt.Errorf("%w: %d at %d", errReply, n, i)
		}
		numbers[i] = n
	}
	replies := make([][]int64, len(items))
	for i, it := range items {
		replies[i], numbers = numbers[:it.replyLen()], numbers[it.replyLen():]
		if granted := replies[i][0]; granted > 0 && !it.mayGrant(granted) {
			return fmt.Errorf("%w: %d units granted to %d calls of %d", errReply, granted, it.count, it.n)
		}
		if it.op == opLease && !it.mayLend(replies[i]) {
			return fmt.Errorf("%w: %v to a lease of %d for %d", errReply, replies[i], it.n, it.lending.hold)
		}
	}
	for i, it := range items {
		it.reply = replies[i]
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
	case opReserve:
		return granted == it.n
	case opRefund, opLease, opGiveBack, opShed, opCancel:
		return granted <= it.n
	}
	return false
}

// mayLend says whether a script can have given this reply's term and end to a lease.
func (it *item) mayLend(reply []int64) bool {
	term, end := reply[len(reply)-2], reply[len(reply)-1]
	if reply[0] == 0 {
		return term == 0 && end == 0
	}
	return term >= 1 && term <= it.lending.hold && end > term
}

// share is what of the item's reply belongs to its call number i: the units
// granted to it, and how many were granted to the calls after it, which it doesn't see.
func (it *item) share(i int64) (granted, later int64) {
	total := it.reply[0]
	switch it.op {
	case opAllow, opUpTo:
		granted = min(it.n, max(0, total-i*it.n))
		return granted, max(0, total-(i+1)*it.n)
	}
	return total, 0
}
