package model

import (
	"testing"

	"github.com/rationgo/ration"
)

func TestLeasesByHand(t *testing.T) {
	const second = int64(1e6)
	limits := perMinute(10)
	for _, c := range []struct {
		strategy Strategy
		at, hold int64 // seconds
		term     int64 // µs
	}{
		{SlidingLog, 50, 20, 20 * second},
		{FixedWindow, 50, 5, 5 * second},
		{FixedWindow, 50, 20, 10*second - 1},
		{SlidingBuckets, 50, 20, second - 1}, // its slot is [48, 51)
	} {
		m, now := New(c.strategy), 20000*day+c.at*second
		lent, d := m.Lease(now, "k", 4, 2, c.hold*second, limits, 0)
		if want := (Leased{Units: 4, Term: c.term, End: now + c.term}); lent != want || !d.Allowed || d.Remaining != 6 {
			t.Errorf("%v: %+v, %+v, want %+v", c.strategy, lent, d, want)
		}
		if lent, d := m.Lease(now, "k", 4, 7, c.hold*second, limits, 0); lent != (Leased{}) || d.Allowed {
			t.Errorf("%v: leased %+v of 6, a part in 7", c.strategy, lent)
		}
		if d := m.GiveBack(now, "k", 1, lent.End, limits, 0); d.Granted != 1 || d.Remaining != 7 {
			t.Errorf("%v: given back %+v", c.strategy, d)
		}
		if d := m.GiveBack(now, "k", 9, lent.End+60*second, limits, 0); d.Granted != 0 {
			t.Errorf("%v: given back of nothing %+v", c.strategy, d)
		}
		if d := m.GiveBack(now, "k", 9, lent.End, limits, 0); d.Granted != 3 || d.Remaining != 10 {
			t.Errorf("%v: given back %+v", c.strategy, d)
		}
	}
}

func TestShedByHand(t *testing.T) {
	m := run(t, SlidingLog, 20000*day, 0, perMinute(10), []line{a(0, 2, 2, 8, 0, 60), a(10, 3, 3, 5, 0, 60)})
	if d := m.Shed(20000*day+us(20), "k", 3, perMinute(10), 0); d.Granted != 3 || d.Remaining != 8 || d.ResetAfter != dur(50) {
		t.Errorf("%+v", d)
	}
	d := m.Do(20000*day+us(65), ration.Request{Op: peek, Key: "k"}, perMinute(10), 0)
	if d.Remaining != 8 || d.ResetAfter != dur(5) {
		t.Errorf("the newest are left: %+v", d)
	}
}

func TestOracleTakesBack(t *testing.T) {
	limits := perMinute(10)
	for _, s := range []Strategy{FixedWindow, SlidingLog, SlidingBuckets} {
		o := NewOracle(s)
		grant := func(at float64, n int64, bad bool) {
			t.Helper()
			if err := o.Grant(us(at), n, limits); (err != nil) != bad {
				t.Errorf("%v: grant of %d at %v: %v", s, n, at, err)
			}
		}
		grant(0, 4, false)
		grant(10, 3, false)
		grant(20, 3, false)
		o.GiveBack(us(5), us(10), 2, limits)
		grant(59, 2, false)
		o.Shed(us(59), 3, limits) // of 0
		grant(59, 3, false)
		grant(59.5, 1, true)
	}
}
