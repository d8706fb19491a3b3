package ration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
	"github.com/rationgo/ration/rationtest"
)

// Values of the counter that no call of ours wrote: "a value of another form counts as none and is written over".
func TestHostileCounterValues(t *testing.T) {
	s := redistest.Start(t, redistest.WithClock(rationtest.Epoch))
	rdb := s.Client(t)
	store, err := ration.Open(rdb, noBreaker)
	require.NoError(t, err)
	l, err := ration.NewSlidingCounter(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(5)}})
	require.NoError(t, err)
	_, err = l.Allow(t.Context(), "u")
	require.NoError(t, err)
	key := rdb.Keys(t.Context(), "*").Val()[0]
	k := rdb.Get(t.Context(), key).Val()
	t.Log(k)
	for _, v := range []string{"", "x", "1 2", "29453760 9007199254740992 9007199254740992", "29453760 99999999999999999999 0", "999999999999999999999999 1 1", "-1 1 1", "29453760 1 99999999999999999999999999"} {
		require.NoError(t, rdb.Set(t.Context(), key, v, time.Hour).Err())
		d, err := l.Allow(t.Context(), "u")
		t.Logf("%q: %v %v %v %v | now %q", v, d.Allowed, d.Remaining, d.RetryAfter, err, rdb.Get(t.Context(), key).Val())
		d, err = l.Refund(t.Context(), "u", 3)
		t.Logf("   refund %v %v | now %q", d.Granted, err, rdb.Get(t.Context(), key).Val())
	}
}
