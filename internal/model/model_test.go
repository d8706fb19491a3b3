package model

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/rationgo/ration"
)

// Times in the tables are seconds, from an origin on the grid of all windows
// used (a whole day) unless a table says otherwise.
const day = int64(86400 * 1e6)

const never = -1 // RetryAfter Never, in seconds

// line is one call and its whole answer.
type line struct {
	at  float64
	op  ration.Op
	n   int64
	lim []ration.Limit // nil: as before

	granted   int64
	remaining int64
	retry     float64
	reset     float64
}

func a(at float64, n, granted, remaining int64, retry, reset float64) line {
	return line{at: at, op: ration.OpAllow, n: n, granted: granted, remaining: remaining, retry: retry, reset: reset}
}

func op(o ration.Op, at float64, n, granted, remaining int64, retry, reset float64) line {
	l := a(at, n, granted, remaining, retry, reset)
	l.op = o
	return l
}

func (l line) under(lim ...ration.Limit) line {
	l.lim = lim
	return l
}

func us(seconds float64) int64 { return int64(math.Round(seconds * 1e6)) }

func dur(seconds float64) time.Duration {
	if seconds == never {
		return ration.Never
	}
	return time.Duration(us(seconds)) * time.Microsecond
}

func run(t *testing.T, s Strategy, origin, slots int64, lim []ration.Limit, lines []line) *Model {
	t.Helper()
	m := New(s)
	for i, l := range lines {
		if l.lim != nil {
			lim = l.lim
		}
		d := m.Do(origin+us(l.at), ration.Request{Op: l.op, Key: "k", N: l.n}, lim, slots)
		if l.op == ration.OpReset {
			continue
		}
		if d.Granted != l.granted || d.Remaining != l.remaining || d.RetryAfter != dur(l.retry) || d.ResetAfter != dur(l.reset) {
			t.Errorf("line %d, t=%v %v(%d): got granted %d, remaining %d, retry %v, reset %v\nwant %+v",
				i, l.at, l.op, l.n, d.Granted, d.Remaining, d.RetryAfter, d.ResetAfter, l)
		}
		if d.Allowed != (l.retry == 0) {
			t.Errorf("line %d, t=%v %v(%d): Allowed is %v with RetryAfter %v", i, l.at, l.op, l.n, d.Allowed, d.RetryAfter)
		}
	}
	return m
}

const (
	upTo   = ration.OpAllowUpTo
	peek   = ration.OpPeek
	refund = ration.OpRefund
	reset  = ration.OpReset
)

type handCase struct {
	name     string
	strategy Strategy
	slots    int64
	limits   []ration.Limit
	lines    []line
}

func runAll(t *testing.T, cases []handCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { run(t, c.strategy, 20000*day, c.slots, c.limits, c.lines) })
	}
}

func perMinute(n int64) []ration.Limit { return []ration.Limit{ration.PerMinute(n)} }

func TestByHand(t *testing.T) {
	runAll(t, []handCase{
		{"log, mixed costs", SlidingLog, 0, perMinute(10), []line{
			a(0, 7, 7, 3, 0, 60), a(1, 2, 2, 1, 0, 60), a(2, 1, 1, 0, 0, 60),
			a(3, 1, 0, 0, 57, 59), a(3, 8, 0, 0, 58, 59), a(3, 11, 0, 0, never, 59),
			a(60, 7, 7, 0, 0, 60), a(61, 8, 0, 2, 59, 59),
		}},
		{"log, a unit is gone at exactly a window later", SlidingLog, 0, perMinute(1), []line{
			a(0.000001, 1, 1, 0, 0, 60), a(60, 1, 0, 0, 0.000001, 0.000001), a(60.000001, 1, 1, 0, 0, 60),
		}},
		{"log, boundary burst", SlidingLog, 0, perMinute(10), []line{
			a(59.9, 10, 10, 0, 0, 60), a(60, 1, 0, 0, 59.9, 59.9),
		}},
		{"fixed, boundary burst", FixedWindow, 0, perMinute(10), []line{
			a(59.9, 10, 10, 0, 0, 0.1), a(60, 10, 10, 0, 0, 60), a(60, 1, 0, 0, 60, 60),
		}},
		{"counter, the window before by its share", SlidingCounter, 0, perMinute(100), []line{
			a(30, 50, 50, 50, 0, 90), a(66, 10, 10, 45, 0, 114), a(66, 46, 0, 45, 1.2, 114), op(refund, 70, 20, 20, 66, 0, 50), // 10 of this minute, 10 of the 50
		}},
		{"buckets, boundary burst", SlidingBuckets, 6, perMinute(10), []line{
			// Slots of 10 s: t=59.9 is in slot 5, which counts until 120.
			a(59.9, 10, 10, 0, 0, 60.1), a(60, 1, 0, 0, 60, 60), a(119.999999, 1, 0, 0, 0.000001, 0.000001),
			a(120, 1, 1, 9, 0, 70),
		}},
		{"buckets, cost that needs two slots to end", SlidingBuckets, 3, perMinute(10), []line{
			// Slots of 20 s; slot i counts until 20(i+4).
			a(0, 4, 4, 6, 0, 80), a(20, 3, 3, 3, 0, 80), a(40, 3, 3, 0, 0, 80),
			a(45, 1, 0, 0, 35, 75), a(45, 5, 0, 0, 55, 75), a(45, 8, 0, 0, 75, 75), a(80, 5, 0, 4, 20, 40),
		}},
		{"buckets, slot rounded up", SlidingBuckets, 3, []ration.Limit{ration.Per(1, time.Millisecond)}, []line{
			// Slots of 334 µs. The origin is 260 µs into one, so the next begins at 74 and counts until 1410.
			a(0.000074, 1, 1, 0, 0, 0.001336), a(0.001, 1, 0, 0, 0.00041, 0.00041), a(0.00141, 1, 1, 0, 0, 0.001336),
		}},
	})
}

func TestEdgesByHand(t *testing.T) {
	runAll(t, []handCase{
		{"window rounded up", SlidingLog, 0, []ration.Limit{ration.Per(1, 1500001)}, []line{
			a(0, 1, 1, 0, 0, 0.001501), a(0.0015, 1, 0, 0, 0.000001, 0.000001),
		}},
		{"limit 0", FixedWindow, 0, perMinute(0), []line{
			a(0, 1, 0, 0, never, 0), op(upTo, 0, 5, 0, 0, never, 0), op(peek, 0, 0, 0, 0, never, 0), a(0, 0, 0, 0, never, 0),
		}},
		{"as many as fit", SlidingLog, 0, perMinute(5), []line{
			a(0, 2, 2, 3, 0, 60), op(upTo, 1, 9, 3, 0, 0, 60), op(upTo, 2, 9, 0, 0, 58, 59),
			op(peek, 2, 0, 0, 0, 58, 59), op(peek, 60, 0, 0, 2, 0, 1),
		}},
		{"huge", SlidingLog, 0, perMinute(1 << 53), []line{
			a(0, 1<<53-1, 1<<53-1, 1, 0, 60), a(1, 2, 0, 1, 59, 59), a(1, math.MaxInt64, 0, 1, never, 59),
			op(upTo, 1, math.MaxInt64, 1, 0, 0, 60), op(refund, 2, math.MaxInt64, 1<<53, 1<<53, 0, 0),
		}},
	})
}

func TestByHandHistory(t *testing.T) {
	one := []ration.Limit{ration.PerMinute(10)}
	cases := []struct {
		name     string
		strategy Strategy
		lines    []line
	}{
		{"log, the newest are given back first", SlidingLog, []line{
			a(0, 4, 4, 6, 0, 60), a(10, 3, 3, 3, 0, 60), a(20, 3, 3, 0, 0, 60),
			op(refund, 30, 4, 4, 4, 0, 40), // 4 of t=0 and 2 of t=10 are left
			a(30, 5, 0, 4, 30, 40), a(30, 9, 0, 4, 40, 40),
			op(refund, 61, 9, 2, 10, 0, 0), op(refund, 61, 1, 0, 10, 0, 0),
		}},
		{"fixed, a window that ended gives nothing back", FixedWindow, []line{
			a(0, 10, 10, 0, 0, 60), op(refund, 59.5, 3, 3, 3, 0, 0.5), op(refund, 60, 3, 0, 10, 0, 0),
		}},
		{"lower and raise", SlidingLog, []line{
			a(0, 4, 4, 6, 0, 60), a(10, 4, 4, 2, 0, 60),
			a(20, 1, 0, 0, 50, 50).under(ration.PerMinute(3)), // both have to end for 4 + 1 ≤ 3
			a(20, 1, 0, 0, 40, 50).under(ration.PerMinute(5)),
			a(20, 12, 12, 0, 0, 60).under(ration.PerMinute(20)),
		}},
		{"another window counts afresh and the old one goes on", FixedWindow, []line{
			a(0, 10, 10, 0, 0, 60), a(1, 5, 5, 0, 0, 9).under(ration.Per(5, 10*time.Second)),
			op(reset, 1, 0, 0, 0, 0, 0), op(peek, 1, 0, 0, 5, 0, 0),
			a(2, 1, 0, 0, 58, 58).under(one...),
		}},
		{"log, clock set back", SlidingLog, []line{
			a(100, 6, 6, 4, 0, 60), a(50, 4, 4, 0, 0, 110), // until 160 and 110
			a(50, 1, 0, 0, 60, 110), a(50, 5, 0, 0, 110, 110),
			op(refund, 50, 7, 7, 7, 0, 60), // all of t=100, one of t=50
		}},
		{"fixed, clock set back", FixedWindow, []line{
			a(125, 6, 6, 4, 0, 55), a(59, 4, 4, 0, 0, 121), a(59, 1, 0, 0, 121, 121),
			a(100, 1, 0, 0, 80, 80), a(179, 1, 0, 0, 1, 1), a(180, 10, 10, 0, 0, 60),
		}},
		{"buckets, clock set back", SlidingBuckets, []line{
			// 20 slots of 3 s; slot i counts until 3(i+21).
			a(30, 2, 2, 8, 0, 63), a(60, 3, 3, 5, 0, 63), // slots 10 and 20, until 93 and 123
			a(0, 5, 5, 0, 0, 123), a(0, 1, 0, 0, 93, 123), a(0, 3, 0, 0, 123, 123), // slot 20 is current
			op(refund, 0, 9, 9, 9, 0, 93), a(0, 1, 1, 8, 0, 93), // slot 10 is current again
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { run(t, c.strategy, 20000*day, 0, one, c.lines) })
	}
}

func state(l ration.Limit, remaining int64, retry, reset float64) ration.LimitState {
	return ration.LimitState{Limit: l, Remaining: remaining, RetryAfter: dur(retry), ResetAfter: dur(reset)}
}

func TestSeveralLimitsByHand(t *testing.T) {
	second, minute := ration.PerSecond(10), ration.PerMinute(20)
	m := New(FixedWindow)
	do := func(at float64, n int64, lim ...ration.Limit) ration.Decision {
		return m.Do(20000*day+us(at), ration.Request{Op: ration.OpAllow, Key: "k", N: n}, lim, 0)
	}
	want := func(got, want ration.Decision) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
	for range 10 {
		do(0, 1, second, minute)
	}
	for range 20 {
		want(do(0.1, 1, second, minute), ration.Decision{
			Limit: second, RetryAfter: dur(0.9), ResetAfter: dur(0.9), // at 1 the minute has 10 left: enough
			Limits: []ration.LimitState{state(second, 0, 0.9, 0.9), state(minute, 10, 0, 59.9)},
		})
	}
	for i := range int64(10) {
		want(do(1, 1, second, minute), ration.Decision{
			Allowed: true, Granted: 1, Limit: second, Remaining: 9 - i, ResetAfter: dur(59),
			Limits: []ration.LimitState{state(second, 9-i, 0, 1), state(minute, 9-i, 0, 59)},
		})
	}
	want(do(2, 1, second, minute), ration.Decision{
		Limit: minute, RetryAfter: dur(58), ResetAfter: dur(58),
		Limits: []ration.LimitState{state(second, 10, 0, 0), state(minute, 0, 58, 58)},
	})
	// 11 of 10 never fit; the minute could take them later.
	want(do(2, 11, minute, second), ration.Decision{
		Limit: second, RetryAfter: ration.Never, ResetAfter: dur(58),
		Limits: []ration.LimitState{state(minute, 0, 58, 58), state(second, 10, never, 0)},
	})
	// The wide limit is whole only at 60, yet it can't keep the call from 5.
	wide := ration.PerMinute(25)
	want(do(2, 0, ration.PerSecond(5), wide), ration.Decision{
		Allowed: true, Limit: ration.PerSecond(5), Remaining: 5,
		Limits: []ration.LimitState{state(ration.PerSecond(5), 5, 0, 0), state(wide, 5, 0, 58)},
	})
}

// On the Unix grid windows of 7 s begin at multiples of 7 s since 1970; on Go's they
// don't.
func TestOddWindowsByHand(t *testing.T) {
	origin := int64(1_700_000_001 * 1e6) // 1,700,000,001 = 7·242,857,143
	run(t, FixedWindow, origin, 0, []ration.Limit{ration.Per(1, 7*time.Second)}, []line{
		a(3.5, 1, 1, 0, 0, 3.5), a(4, 1, 0, 0, 3, 3), a(6.999, 1, 0, 0, 0.001, 0.001), a(7, 1, 1, 0, 0, 7),
	})
	for _, w := range []time.Duration{7 * time.Second, 11 * time.Second, 13 * time.Minute, 7 * 24 * time.Hour} {
		m, lim := New(FixedWindow), []ration.Limit{ration.Per(1, w)}
		for at := origin; at < origin+4*w.Microseconds(); at += w.Microseconds() / 14 {
			r := ration.Request{Op: ration.OpAllow, Key: "k", N: 1}
			d := m.Do(at, r, lim, 0)
			if d.Allowed {
				continue
			}
			if end := at + d.RetryAfter.Microseconds(); end%w.Microseconds() != 0 || end-at > w.Microseconds() {
				t.Errorf("window %v: at %d RetryAfter %v", w, at, d.RetryAfter)
			}
		}
	}
}

func TestFloor(t *testing.T) {
	m := run(t, SlidingLog, 20000*day, 0, []ration.Limit{ration.PerMinute(10)}, []line{
		a(0, 1, 1, 9, 0, 60), a(30, 1, 1, 8, 0, 60),
	})
	if got := m.Floor(); got != 0 {
		t.Errorf("nothing has ended: floor %d", got)
	}
	m.ClockAt(20000*day + us(70))
	if got, want := m.Floor(), 20000*day+us(60); got != want {
		t.Errorf("the first unit ended at 60: floor %d, want %d", got, want)
	}
}
