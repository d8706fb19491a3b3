package model

import (
	"testing"
	"time"

	"github.com/rationgo/ration"
)

func TestOracle(t *testing.T) {
	type step struct {
		at, units int64 // units below 0 are given back
		bad       bool
	}
	cases := []struct {
		name     string
		strategy Strategy
		steps    []step
	}{
		{"log, a window apart", SlidingLog, []step{{0, 5, false}, {10, 5, false}}},
		{"log, a microsecond less", SlidingLog, []step{{0, 5, false}, {9, 1, true}}},
		{"log, told late", SlidingLog, []step{{9, 5, false}, {0, 1, true}}},
		{"log, told late, fits", SlidingLog, []step{{10, 5, false}, {0, 5, false}, {20, 5, false}}},
		{"log, between two", SlidingLog, []step{{0, 3, false}, {14, 3, false}, {7, 2, false}, {6, 1, true}}},
		{"log, given back", SlidingLog, []step{{0, 5, false}, {9, -2, false}, {9, 2, false}, {9, 1, true}}},
		{"log, given back too late", SlidingLog, []step{{0, 5, false}, {10, -2, false}, {9, 1, true}}},
		{"log, newest given back", SlidingLog, []step{{0, 2, false}, {5, 3, false}, {6, -3, false}, {11, 5, false}}},
		{"buckets are a sliding window too", SlidingBuckets, []step{{0, 5, false}, {9, 1, true}}},
		{"fixed, boundary burst", FixedWindow, []step{{9, 5, false}, {10, 5, false}}},
		{"fixed, one window", FixedWindow, []step{{10, 5, false}, {19, 1, true}}},
	}
	lim := []ration.Limit{ration.Per(5, 10*time.Microsecond)}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := NewOracle(c.strategy)
			for _, s := range c.steps {
				if s.units < 0 {
					o.Refund(s.at, -s.units, lim)
					continue
				}
				if err := o.Grant(s.at, s.units, lim); (err != nil) != s.bad {
					t.Fatalf("%+v: %v", s, err)
				}
			}
		})
	}
}

func TestOracleLimits(t *testing.T) {
	o := NewOracle(SlidingLog)
	short, long := ration.Per(2, 10*time.Microsecond), ration.Per(3, 20*time.Microsecond)
	grant := func(at, n int64, bad bool, lim ...ration.Limit) {
		t.Helper()
		if err := o.Grant(at, n, lim); (err != nil) != bad {
			t.Errorf("grant of %d at %d: %v", n, at, err)
		}
	}
	grant(0, 2, false, short, long)
	grant(10, 1, false, short, long)
	grant(11, 1, true, short, long)                 // 4 in 20 µs
	grant(12, 1, true, short)                       // 3 in 10 µs
	grant(12, 0, false, ration.Per(5, long.Window)) // the limit was raised
	o.Reset([]ration.Limit{short, long})
	grant(12, 2, false, short, long)
}
