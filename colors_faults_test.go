package ration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

// A key of the three colours that's lost costs what it had, and no answer.
func TestColorsOfALostKey(t *testing.T) {
	srv := rationtest.NewRedis(t)
	store := srv.Store()
	l := threeColor(t, store, ration.ThreeColor{Name: "c", Committed: bucket(1, time.Second, 5), Excess: 2})
	must(l.AllowN(ctx, "u", 5))
	for _, k := range srv.Keys() {
		if k[:11] == "ration:c:te" {
			require.NoError(t, srv.Client().Del(ctx, k).Err())
		}
	}
	_, err := l.Peek(ctx, "u")
	require.NoError(t, err)
}

// The same by a clock set back after a Refund.
func TestColorsClockSetBack(t *testing.T) {
	srv := rationtest.NewRedis(t)
	l := threeColor(t, srv.Store(), ration.ThreeColor{Name: "c", Committed: bucket(1, time.Second, 10), Excess: 10})
	began := srv.Now()
	must(l.AllowN(ctx, "u", 10)) // green
	srv.Advance(9 * time.Second)
	require.Equal(t, ration.Yellow, must(l.AllowN(ctx, "u", 10)).Color)
	must(l.Refund(ctx, "u", 10))
	srv.SetTime(began)
	_, err := l.Peek(ctx, "u")
	require.NoError(t, err)
}

// Refund of buckets that are overfull gives back what it says.
func TestColorsRefundOverfull(t *testing.T) {
	srv := rationtest.NewRedis(t)
	store := srv.Store()
	a := threeColor(t, store, ration.ThreeColor{Name: "c", Committed: bucket(1, time.Second, 10), Excess: 10})
	must(a.AllowN(ctx, "u", 10))
	must(a.AllowN(ctx, "u", 10))
	b := threeColor(t, store, ration.ThreeColor{Name: "c", Committed: bucket(1, time.Second, 2), Excess: 2})
	before := must(b.Peek(ctx, "u"))
	d := must(b.Refund(ctx, "u", 5))
	after := must(b.Peek(ctx, "u"))
	require.EqualValues(t, 5, d.Granted)
	require.Equal(t, before.ResetAfter-5*time.Second, after.ResetAfter)
}

// By FailLocal the committed bucket decides.
func TestColorsByTheRing(t *testing.T) {
	w := offline(t, refused)
	l := threeColor(t, w.store(ration.WithOnFailure(ration.FailLocal(1))), ration.ThreeColor{Name: "c", Committed: bucket(1, time.Second, 5), Excess: 2})
	d := must(l.Allow(ctx, "u"))
	require.EqualValues(t, 4, d.Remaining)
}

// Three colours when nothing is committed.
func TestColorsNothingCommitted(t *testing.T) {
	srv := rationtest.NewRedis(t)
	l := threeColor(t, srv.Store(), ration.ThreeColor{Name: "c", Committed: ration.PerSecond(0), Excess: 2})
	d := must(l.Allow(ctx, "u"))
	require.False(t, d.Allowed)
	require.Equal(t, ration.Never, d.RetryAfter)
	require.Equal(t, ration.Red, d.Color)
}

// A cost that only the excess bucket can take passes when Redis is back, so no failure rule says Never.
func TestColorsOfACostForTheExcessAlone(t *testing.T) {
	for _, rule := range []ration.FailureRule{ration.FailOpen, ration.FailLocal(1)} {
		w := offline(t, refused)
		l := threeColor(t, w.store(ration.WithOnFailure(rule)), ration.ThreeColor{Name: "c", Committed: bucket(1, time.Second, 5), Excess: 10})
		d := must(l.AllowN(ctx, "u", 8)) // with Redis: Yellow
		require.NotEqual(t, ration.Never, d.RetryAfter, rule)
	}
}

// All calls get answers when one of the two keys is lost.
func TestColorsGoOnAfterALostKey(t *testing.T) {
	srv := rationtest.NewRedis(t)
	l := threeColor(t, srv.Store(), ration.ThreeColor{Name: "c", Committed: bucket(7, 3*time.Second, 5), Excess: 2})
	must(l.AllowN(ctx, "u", 5))
	require.NoError(t, srv.Client().Del(ctx, "ration:c:te1:3000000:{u}").Err())
	for range 20 {
		srv.Advance(100 * time.Millisecond)
		for _, op := range []ration.Op{ration.OpAllow, ration.OpRefund, ration.OpAllowUpTo, ration.OpPeek} {
			_, err := ration.Request{Op: op, Key: "u", N: 2}.Do(ctx, l)
			require.NoError(t, err)
		}
	}
}
