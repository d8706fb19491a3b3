package ration

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// replyFrom makes a reply of bytes: most values are small integers, since only
// a reply that is nearly right gets past the first check.
func replyFrom(data []byte) (reply []any) {
	for len(data) > 0 {
		kind := data[0]
		data = data[1:]
		switch {
		case kind < 200:
			reply = append(reply, int64(kind%16))
		case kind < 230 && len(data) >= 8:
			reply = append(reply, int64(binary.LittleEndian.Uint64(data)))
			data = data[8:]
		case kind < 235:
			reply = append(reply, float64(kind))
		case kind < 240:
			reply = append(reply, string(data))
		case kind < 245:
			reply = append(reply, nil)
		case kind < 250:
			reply = append(reply, []any{int64(1)})
		default:
			reply = append(reply, true)
		}
	}
	return reply
}

// Whatever a server answers, a decoded reply makes a sound decision and
// anything else is an error.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{1, 1, 0, 5}, byte('a'), int64(1), int64(1), 1, false)
	f.Add([]byte{0, 5, 7, 9}, byte('a'), int64(3), int64(1), 1, false)
	f.Add([]byte{2, 2, 0, 5, 2, 0, 5, 9}, byte('u'), int64(7), int64(1), 2, false)
	f.Add([]byte{200, 255, 255, 255, 255, 255, 255, 255, 127, 0, 0, 0}, byte('r'), int64(5), int64(1), 1, false)
	f.Add([]byte{231, 241, 246, 255}, byte('p'), int64(0), int64(1), 1, false)
	f.Add([]byte{}, byte('x'), int64(0), int64(1), 8, false)
	f.Add([]byte{3, 3, 0, 5, 7, 15}, byte('l'), int64(5), int64(1), 1, false)
	f.Add([]byte{2, 0, 0, 0}, byte('b'), int64(5), int64(1), 1, false)
	f.Add([]byte{2, 0, 0, 0}, byte('o'), int64(5), int64(1), 1, false)
	f.Add([]byte{3, 3, 0, 5, 1, 9}, byte('w'), int64(3), int64(1), 1, true)
	f.Add([]byte{3, 3, 0, 5, 1, 3, 0, 9}, byte('c'), int64(3), int64(1), 2, true)
	f.Add([]byte{15, 15, 0, 9, 255}, byte('a'), int64(3), int64(5), 1, true)
	f.Fuzz(func(t *testing.T, data []byte, op byte, n, count int64, limits int, rate bool) {
		ops := map[byte]Op{
			opAllow: OpAllow, opUpTo: OpAllowUpTo, opPeek: OpPeek, opRefund: OpRefund, opReset: OpReset,
			opLease: OpAllowUpTo, opGiveBack: OpRefund, opShed: OpRefund, opReserve: OpAllow, opCancel: OpRefund,
		}
		script := fixedScript
		if rate || op == opReserve || op == opCancel {
			script = tokenScript
		}
		if ops[op] == 0 || n < 0 || n > MaxUnits || count < 1 || n > 0 && count > MaxUnits/n || limits < 1 || limits > MaxLimits {
			return
		}
		if n == 0 && op != opReset {
			op = opPeek // as Request.check has it
		}
		it := &item{script: script, op: op, n: n, count: count, limits: make([]boundLimit, limits), lending: &lending{hold: 10, share: 1}}
		for i := range it.limits {
			it.limits[i].strategy = &strategy{refills: script == tokenScript}
		}
		if it.lone() {
			it.count, count = 1, 1
		}
		if decode(replyFrom(data), []*item{it}) != nil {
			return
		}
		if op == opLease {
			last := len(it.reply) - 2
			term, end := it.reply[last], it.reply[last+1]
			require.Equal(t, it.reply[0] > 0, term > 0)
			require.Equal(t, it.reply[0] > 0, end > 0)
			require.LessOrEqual(t, term, min(end, 10))
			it.reply = it.reply[:last]
		}
		if op == opReserve {
			it.reply = it.reply[:len(it.reply)-1]
		}
		under := slices.Repeat([]Limit{PerSecond(n + 1)}, limits)
		var granted int64
		for place := range min(count, 100) {
			var d Decision
			d.fill(Request{Op: ops[op], N: n}, under, it, place)
			granted += d.Granted
			require.GreaterOrEqual(t, d.Granted, int64(0))
			require.LessOrEqual(t, d.Granted, n)
			require.GreaterOrEqual(t, d.Remaining, int64(0))
			require.GreaterOrEqual(t, d.RetryAfter, time.Duration(0))
			require.GreaterOrEqual(t, d.ResetAfter, time.Duration(0))
			if op == opAllow || op == opUpTo {
				require.Equal(t, d.Granted > 0, d.Allowed)
			}
		}
		if count <= 100 && op != opRefund {
			require.Equal(t, it.reply[0], granted)
		}
	})
}

// lone says that an item of this kind is for one call only.
func (it *item) lone() bool { return strings.ContainsRune("lbowc", rune(it.op)) }

// Two different uses never give one key, and a key is fit for any tool.
func FuzzKeys(f *testing.F) {
	for _, s := range []string{"a", "a b", "{", "}", "{x}1", "%", "%20", "a%7Bb", "\xff", "é", "\u2028", strings.Repeat("a", 129), ":", "u:0"} {
		f.Add("ration", "p", s, int64(60), "ration", "p", s+"x", int64(60))
		f.Add("ration", "p", s, int64(60), "ration:p", "q", s, int64(60))
		f.Add("a:b", "c", s, int64(1), "a", "c", "b:"+s, int64(1))
	}
	f.Fuzz(func(t *testing.T, prefix1, policy1, subject1 string, window1 int64, prefix2, policy2, subject2 string, window2 int64) {
		if !validUse(prefix1, policy1, subject1, window1) || !validUse(prefix2, policy2, subject2, window2) {
			return
		}
		same := prefix1 == prefix2 && policy1 == policy2 && subject1 == subject2 && window1 == window2
		one, two := allKeys(prefix1, policy1, subject1, window1), allKeys(prefix2, policy2, subject2, window2)
		seen := map[string]bool{}
		for _, key := range one {
			require.False(t, seen[key], "%q twice", key)
			seen[key] = true
			requireFit(t, key)
		}
		for _, key := range two {
			require.Equal(t, same, seen[key], "%q", key)
		}
	})
}

func validUse(prefix, policy, subject string, window int64) bool {
	return WithPrefix(prefix).apply(&options{}) == nil && validateName(policy) == nil && subject != "" && window > 0
}

// allKeys has a subject's keys under every strategy.
func allKeys(prefix, policy, subject string, window int64) (keys []string) {
	for _, code := range []string{"fw1", "sl1", "sc1", "sb1.3", "sb1.4"} {
		base := keyBase(prefix, policy, code, window)
		keys = appendKeys(keys, base, escapeSubject(subject), strings.HasPrefix(code, "sb"), 4)
	}
	return keys
}

func requireFit(t *testing.T, key string) {
	require.True(t, utf8.ValidString(key))
	require.Less(t, len(key), 300)
	require.Equal(t, 1, strings.Count(key, "{"))
	require.Equal(t, 1, strings.Count(key, "}"))
	for _, r := range key {
		require.Greater(t, r, ' ')
		require.NotEqual(t, rune(0x7f), r)
	}
	require.Less(t, strings.Index(key, "{")+1, strings.Index(key, "}"), "an empty hash tag is none")
}

func TestSubjectsInKeys(t *testing.T) {
	for subject, want := range map[string]string{
		"user-42":                "user-42",
		"a b":                    "a%20b",
		"a%20b":                  "a%2520b",
		"{x}":                    "%7Bx%7D",
		"é😀":                     "é😀",
		"\u00a0":                 "%C2%A0",
		"\xff":                   "%FF",
		"\ufffd":                 "\ufffd",
		strings.Repeat("a", 128): strings.Repeat("a", 128),
		strings.Repeat(" ", 42):  strings.Repeat("%20", 42),
	} {
		require.Equal(t, want, escapeSubject(subject))
	}
	for _, long := range []string{strings.Repeat("a", 129), strings.Repeat(" ", 43), strings.Repeat("a", 1<<20)} {
		require.Regexp(t, `^%sha256-[A-Za-z0-9_-]{43}$`, escapeSubject(long))
	}
}

func TestWindowsRoundUp(t *testing.T) {
	for window, want := range map[int64]int64{1_000_000: 1000, 1_000_001: 1001, 1_000_999: 1001, 1_001_000: 1001, math.MaxInt64: 9223372036854776} {
		require.Equal(t, want, Limit{Window: time.Duration(window)}.micros())
	}
}
