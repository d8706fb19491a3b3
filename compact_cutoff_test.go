package ration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
	"github.com/rationgo/ration/rationtest"
)

// A small compact log whose end is missing must be an error, not a script that never ends.
func TestCompactLogCutOff(t *testing.T) {
	for _, r := range []ration.Request{{Op: ration.OpAllow, N: 90}, {Op: ration.OpRefund, N: 15}, {Op: ration.OpPeek}} {
		t.Run(r.Op.String(), func(t *testing.T) {
			s := redistest.Start(t, redistest.WithClock(rationtest.Epoch))
			rdb := s.Client(t)
			store, err := ration.Open(rdb, ration.WithTimeout(3*time.Second), noBreaker)
			require.NoError(t, err)
			l, err := ration.NewCompactLog(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(100)}})
			require.NoError(t, err)
			for range 20 {
				_, err := l.Allow(t.Context(), "u")
				require.NoError(t, err)
				s.Advance(time.Second)
			}
			key := rdb.Keys(t.Context(), "*").Val()[0]
			whole := rdb.Get(t.Context(), key).Val()
			require.Len(t, whole, 43+8*20)
			require.NoError(t, rdb.Set(t.Context(), key, whole[:43+8*5], time.Hour).Err())
			if r.Op == ration.OpPeek {
				s.Advance(50 * time.Second) // the first have ended
			}
			r.Key = "u"
			_, err = r.Do(t.Context(), l)
			t.Log(err)
			require.ErrorContains(t, err, "compact log that is cut off")
		})
	}
}
