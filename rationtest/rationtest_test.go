package rationtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// One clock moves TIME and lifetimes together.
func TestB132OneClock(t *testing.T) {
	r := rationtest.NewRedis(t)
	l, err := ration.NewFixedWindow(r.Store(), ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerSecond(1)}})
	require.NoError(t, err)
	allow := func() bool {
		d, err := l.Allow(ctx, "u")
		require.NoError(t, err)
		return d.Allowed
	}
	require.Equal(t, rationtest.Epoch, r.Now())
	require.NoError(t, r.Client().Set(ctx, "k", "v", 10*time.Second).Err())
	require.NoError(t, r.Client().Set(ctx, "gone", "v", time.Second).Err())
	require.True(t, allow())
	require.False(t, allow())
	r.Advance(1100 * time.Millisecond)
	require.True(t, allow())
	require.Equal(t, 8900*time.Millisecond, r.Client().PTTL(ctx, "k").Val())
	r.Advance(-time.Second)
	require.NotContains(t, r.Keys(), "gone")
	require.Contains(t, r.Keys(), "k")
	r.SetTime(rationtest.Epoch.Add(time.Minute))
	require.Empty(t, r.Keys())
}

// A limiter of one's own, here a decorator, passes the suite like those of the package.
func TestExerciseADecorator(t *testing.T) {
	rationtest.Exercise(t, func(t *testing.T) rationtest.Harness {
		r := rationtest.NewRedis(t)
		store := r.Store()
		return rationtest.Harness{
			New: func(p ration.Policy) (ration.Limiter, error) {
				l, err := ration.NewSlidingLog(store, p)
				if err != nil {
					return nil, err
				}
				return ration.LimiterFunc(func(ctx context.Context, r ration.Request) (ration.Decision, error) {
					return r.Do(ctx, l)
				}), nil
			},
			Now: r.Now, Advance: r.Advance, Keys: r.Keys, Shared: true, Source: ration.Redis,
		}
	})
}
