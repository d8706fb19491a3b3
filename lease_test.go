package ration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// lease takes a lease of u and demands what is granted of it. It returns when
// it ends, in microseconds of the server and in seconds of the timeline.
func (tl *timeline) lease(want, share int64, hold float64, granted int64) (end int64, second float64) {
	tl.t.Helper()
	n, term, end, err := ration.LeaseUnits(ctx, tl.l, "u", want, share, seconds(hold))
	require.NoError(tl.t, err)
	require.Equal(tl.t, granted, n)
	if n == 0 {
		require.Zero(tl.t, term)
		require.Zero(tl.t, end)
		return 0, 0
	}
	require.LessOrEqual(tl.t, term, seconds(hold))
	require.Equal(tl.t, tl.b.Now().Add(term).UnixMicro(), end)
	return end, time.UnixMicro(end).Sub(tl.start).Seconds()
}

func (tl *timeline) giveBack(n, end, granted int64) {
	tl.t.Helper()
	got, err := ration.GiveBackUnits(ctx, tl.l, "u", n, end)
	require.NoError(tl.t, err)
	require.Equal(tl.t, granted, got)
}

// stored is all that the timeline's keys hold, with their lifetimes.
func (tl *timeline) stored() map[string]any {
	all := map[string]any{}
	for _, key := range tl.keys() {
		all[key] = []any{tl.b.rdb.Get(ctx, key).Val(), tl.b.rdb.ZRangeWithScores(ctx, key, 0, -1).Val(), tl.b.rdb.PTTL(ctx, key).Val()}
	}
	return all
}

// requireUsed demands what is counted of u.
func (tl *timeline) requireUsed(n int64) {
	tl.t.Helper()
	d := must(tl.l.Peek(ctx, "u"))
	require.Equal(tl.t, n, d.Limit.Units-d.Remaining)
}

// cell is the length of what a strategy counts by, of a minute; 0 for the log.
var cell = map[string]float64{"fixed": 60, "buckets": 3, "log": 0}

func TestLeaseEndsBeforeItsCell(t *testing.T) {
	on(t, leased, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(10))
		tl.at(0.5)
		_, end := tl.lease(1, 1, 0.25, 1)
		require.InDelta(t, 0.75, end, 1e-9, "not as long as it might be")
		width := cell[strategy]
		if width == 0 {
			_, end = tl.lease(1, 1, 1000, 1)
			require.InDelta(t, 1000.5, end, 1e-9)
			return
		}
		tl.at(width - 0.000003)
		_, end = tl.lease(1, 1, 0.000001, 1)
		require.InDelta(t, width-0.000002, end, 1e-9)
		tl.at(width - 0.000002)
		_, end = tl.lease(1, 1, 1000, 1)
		require.InDelta(t, width-0.000001, end, 1e-9)
		tl.at(width - 0.000001)
		before := tl.stored()
		tl.lease(1, 1, 1000, 0)
		require.Equal(t, before, tl.stored())
		tl.at(width)
		_, end = tl.lease(1, 1, 1000, 1)
		require.InDelta(t, 2*width-0.000001, end, 1e-9)
	})
	// Of several limits' cells the first to end counts.
	on(t, "fixed buckets", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(100), ration.Per(100, 7*time.Second), ration.PerHour(100))
		for i := range 60 {
			tl.at(float64(i) * 0.997)
			now, next := b.Now().UnixMicro(), int64(1<<62)
			for _, window := range []int64{7, 60, 3600} {
				width := window * int64(cell[strategy]*1e6) / 60
				next = min(next, now+width-now%width)
			}
			end, _ := tl.lease(1, 1, 10, 1)
			require.Equal(t, next-1, end)
		}
	})
}

func TestLeaseTakesItsShare(t *testing.T) {
	on(t, leased, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(10), ration.PerHour(12))
		tl.lease(5, 11, 1, 0)
		tl.lease(0, 1, 1, 0)
		tl.lease(-1, 1, 1, 0)
		tl.lease(5, 1, 0, 0)
		tl.lease(5, 1, -1, 0)
		require.Empty(t, tl.keys(), "nothing was granted")
		tl.lease(5, 10, 1, 1)
		tl.requireUsed(1)
		tl.lease(5, 2, 1, 4)
		tl.lease(3, 1, 1, 3)
		tl.lease(5, 2, 1, 1)
		tl.lease(1<<62, 1, 1, 1)
		before := tl.stored()
		tl.lease(1, 1, 1, 0)
		require.Equal(t, before, tl.stored())
		d, _, _, err := ration.LeaseReply(ctx, tl.l, "u", 3, 1, 1e6)
		require.NoError(t, err)
		require.Equal(t, must(tl.l.AllowUpTo(ctx, "u", 3)), d, "it's refused as they are")

		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, _, _, err = ration.LeaseUnits(ended, tl.l, "v", 1, 1, time.Second)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, before, tl.stored())
	})
}

// A lease counts from its end on for as long as a call at that time would.
func TestLeaseCountsAsUsedAtItsEnd(t *testing.T) {
	on(t, leased, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(3))
		tl.at(2)
		tl.lease(2, 1, 20, 2)
		tl.at(2.5)
		tl.letters("AD") // charged after it, and gone before it
		until := map[string]float64{"fixed": 60, "buckets": 63, "log": 82}[strategy]
		if strategy == "log" {
			tl.requireLongest(seconds(79.5))
			tl.at(62.499999)
			tl.letters("D")
			tl.at(62.5)
			tl.letters("A") // of the one that was charged at 2.5
		}
		tl.at(until - 0.000001)
		require.Equal(t, time.Microsecond, tl.letters("D").RetryAfter)
		tl.at(until)
		tl.costs(2, "A")
	})
}

// requireLongest demands the log's lifetime, on a server where it counts.
func (tl *timeline) requireLongest(ttl time.Duration) {
	tl.t.Helper()
	require.Equal(tl.t, ttl, tl.b.rdb.PTTL(ctx, tl.keys()[0]).Val())
}

func TestLeaseLifetime(t *testing.T) {
	on(t, "log", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(4))
		end, _ := tl.lease(2, 1, 10, 2)
		tl.requireLongest(seconds(70))
		tl.at(1)
		tl.letters("A")
		tl.requireLongest(seconds(69))
		tl.lease(1, 1, 5, 1)
		tl.requireLongest(seconds(69))
		require.NoError(t, b.rdb.Persist(ctx, tl.keys()[0]).Err())
		tl.lease(1, 1, 5, 0)
		tl.requireLongest(seconds(69))
		tl.at(2)
		tl.giveBack(2, end, 2)
		tl.requireLongest(seconds(64)) // of the lease to 6
		_, err := ration.ShedUnits(ctx, tl.l, "u", 1)
		require.NoError(t, err)
		tl.requireLongest(seconds(64))
	})
	on(t, "fixed buckets", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(4))
		tl.at(1)
		tl.lease(2, 1, 10, 2)
		tl.requireLongest(map[string]time.Duration{"fixed": seconds(59), "buckets": seconds(24*3 - 1)}[strategy])
	})
}

func TestLeaseWithTheClockSetBack(t *testing.T) {
	on(t, leased, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(10))
		tl.at(100)
		tl.letters("A")
		tl.at(59)
		end, second := tl.lease(2, 1, 1000, 2)
		switch strategy {
		case "fixed":
			require.InDelta(t, 119.999999, second, 1e-9)
		case "buckets": // the slot of 100 is [99, 102)
			require.InDelta(t, 101.999999, second, 1e-9)
		}
		tl.giveBack(1, end, 1)
		end, second = tl.lease(2, 1, 0.5, 2)
		require.InDelta(t, 59.5, second, 1e-9)
		if strategy == "log" {
			tl.giveBack(2, end, 2)
		} else {
			tl.giveBack(2, end, 0) // they are counted where the clock was
		}
	})
}

func TestGiveBackOfTheLog(t *testing.T) {
	on(t, "log", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(20))
		first, _ := tl.lease(4, 1, 10, 4)
		second, _ := tl.lease(3, 1, 20, 3)
		tl.at(1)
		same, _ := tl.lease(2, 1, 9, 2)
		require.Equal(t, first, same)
		tl.letters("A")
		before := tl.stored()
		for _, end := range []int64{first - 1, first + 1, 0, -1, 1, 1 << 60} {
			tl.giveBack(9, end, 0)
		}
		tl.giveBack(0, first, 0)
		tl.giveBack(-1, first, 0)
		require.Equal(t, before, tl.stored(), "nothing was given back")
		tl.giveBack(1, first, 1)
		tl.giveBack(4, first, 4)
		tl.giveBack(9, first, 1)
		tl.giveBack(9, first, 0)
		tl.requireUsed(4)

		// Once it has ended it's gone, though it may still be stored.
		tl.at(30)
		tl.letters("A")
		tl.at(79.999999)
		tl.giveBack(1, second, 1)
		tl.at(80)
		before = tl.stored()
		tl.giveBack(1, second, 0)
		require.Equal(t, before, tl.stored())
		require.Len(t, b.rdb.ZRange(ctx, tl.keys()[0], 0, -1).Val(), 3, "the dead one, the live one, the total")
		tl.requireUsed(1)

		again, _ := tl.lease(1, 1, 10, 1)
		require.NoError(t, tl.l.Reset(ctx, "u"))
		tl.giveBack(1, again, 0)
		require.Empty(t, tl.keys())
	})
}

func TestGiveBackOnAGrid(t *testing.T) {
	on(t, "fixed buckets", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(2_000_000)) // the fixed window writes above a million in another way
		first, _ := tl.lease(1_000_003, 1, 1, 1_000_003)
		tl.giveBack(2, first, 2)
		width := cell[strategy]
		tl.at(width)
		second, _ := tl.lease(5, 1, 1, 5)
		before := tl.stored()
		tl.giveBack(9, second+int64(width*1e6), 0)
		tl.giveBack(9, first-int64(width*1e6), 0)
		if strategy == "buckets" { // slots with the key of the first
			tl.giveBack(9, first+21*3e6, 0)
			tl.giveBack(9, first-21*3e6, 0)
		}
		require.Equal(t, before, tl.stored())
		if strategy == "fixed" {
			tl.giveBack(9, first, 0)
			tl.requireUsed(5)
		} else {
			tl.giveBack(2, first, 2)
			tl.requireUsed(999_999 + 5)
			tl.at(62.999999)
			tl.giveBack(1, first, 1)
			tl.at(63)
			tl.giveBack(1, first, 0)
			tl.requireUsed(5)
		}
		tl.giveBack(9, second, 5)
		tl.requireUsed(0)
		again, _ := tl.lease(1, 1, 10, 1)
		require.NoError(t, tl.l.Reset(ctx, "u"))
		tl.giveBack(1, again, 0)
		require.Empty(t, tl.keys())
	})
}

// Shedding takes what surely was used, not what somebody has leased.
func TestShedLeavesTheLeased(t *testing.T) {
	on(t, "log buckets", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(300))
		shed := func(n, granted int64) {
			t.Helper()
			d, err := ration.ShedUnits(ctx, tl.l, "u", n)
			require.NoError(t, err)
			require.Equal(t, granted, d.Granted)
			require.True(t, d.Allowed)
		}
		shed(3, 0)
		require.Empty(t, tl.keys())
		tl.costs(1, "AAA")
		tl.at(3)
		tl.costs(2, "AA")
		tl.at(4)
		end, _ := tl.lease(4, 1, 1, 4)
		shed(4, 4) // 3 of second 0 and 1 of second 3
		tl.requireUsed(7)
		if strategy == "log" {
			tl.at(62.999999)
			tl.requireUsed(7)
			tl.at(63)
			tl.requireUsed(4)
		} else {
			shed(3, 3)
		}
		tl.giveBack(9, end, 4)
		require.Empty(t, tl.keys())
		for range 280 { // more than a page of the log
			tl.letters("A")
		}
		shed(270, 270)
		tl.requireUsed(10)
		shed(99, 10)
		require.Empty(t, tl.keys())
	})
	on(t, "fixed", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(10))
		tl.costs(3, "A")
		d, err := ration.ShedUnits(ctx, tl.l, "u", 2)
		require.NoError(t, err)
		require.EqualValues(t, 2, d.Granted)
		require.EqualValues(t, 9, d.Remaining)
	})
}

// A slot lost to eviction is found missing when units are given back.
func TestRefundAfterEviction(t *testing.T) {
	on(t, "buckets", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(10))
		tl.costs(4, "A")
		lost := tl.keys()[0]
		tl.at(3)
		tl.costs(3, "A")
		require.NoError(t, b.rdb.Del(ctx, lost).Err())
		d := must(tl.l.Refund(ctx, "u", 9))
		require.EqualValues(t, 3, d.Granted)
		require.EqualValues(t, 10, d.Remaining)
	})
}
