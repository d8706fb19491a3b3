package rationtest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

var (
	five    = ration.PerMinute(5)
	passes  = ration.Decision{Allowed: true, Granted: 1, Remaining: 4, Limit: five, ResetAfter: time.Minute, Source: ration.Redis}
	refuses = ration.Decision{RetryAfter: 30 * time.Second, Limit: five, ResetAfter: time.Minute, Source: ration.Redis}
	closed  = ration.Decision{RetryAfter: ration.Never, Source: ration.Failure, Degraded: true, Cause: errors.New("gone")}
)

func TestRequireAllowed(t *testing.T) {
	requireSilent(t, func(t testing.TB) { rationtest.RequireAllowed(t, passes, nil) })
	requireFatal(t, "want Allowed, got refused: 5/1m0s, granted 0, remaining 0, retry after 30s, decided by redis",
		func(t testing.TB) { rationtest.RequireAllowed(t, refuses, nil) })
	requireFatal(t, "want Allowed, got refused: no limit, granted 0, remaining 0, retry after never, decided by failure, degraded by: gone",
		func(t testing.TB) { rationtest.RequireAllowed(t, closed, nil) })
	requireFatal(t, "want Allowed, got the error: ration: no answer from Redis",
		func(t testing.TB) { rationtest.RequireAllowed(t, passes, ration.ErrUnavailable) })
}

func TestRequireRefused(t *testing.T) {
	requireSilent(t, func(t testing.TB) { rationtest.RequireRefused(t, refuses, nil) })
	requireFatal(t, "want refused, got Allowed: 5/1m0s, granted 1, remaining 4, retry after 0s, decided by redis",
		func(t testing.TB) { rationtest.RequireRefused(t, passes, nil) })
	requireFatal(t, "want refused, got the error: ration: no answer from Redis",
		func(t testing.TB) { rationtest.RequireRefused(t, ration.Decision{}, ration.ErrUnavailable) })
}

func TestRequireRemaining(t *testing.T) {
	requireSilent(t, func(t testing.TB) { rationtest.RequireRemaining(t, passes, 4) })
	requireFatal(t, "want Remaining 5, got 4: 5/1m0s, granted 1, remaining 4, retry after 0s, decided by redis",
		func(t testing.TB) { rationtest.RequireRemaining(t, passes, 5) })
}

func TestRequireRetryAfter(t *testing.T) {
	requireSilent(t, func(t testing.TB) {
		rationtest.RequireRetryAfter(t, passes, 0)
		rationtest.RequireRetryAfter(t, refuses, 30*time.Second)
		rationtest.RequireRetryAfter(t, closed, ration.Never)
	})
	requireFatal(t, "want RetryAfter never, got 30s: 5/1m0s, granted 0, remaining 0, retry after 30s, decided by redis",
		func(t testing.TB) { rationtest.RequireRetryAfter(t, refuses, ration.Never) })
	requireFatal(t, "want RetryAfter 30.000001s, got 30s: 5/1m0s, granted 0, remaining 0, retry after 30s, decided by redis",
		func(t testing.TB) { rationtest.RequireRetryAfter(t, refuses, 30*time.Second+time.Microsecond) })
}

func TestRequireSequence(t *testing.T) {
	requireSilent(t, func(t testing.TB) {
		rationtest.RequireSequence(t, local(t, ration.PerMinute(3)), "u", "AAARR")
	})
	requireFatal(t, "want AAAA, got AAR: 2/1m0s, granted 0, remaining 0, retry after 1m3s, decided by ring",
		func(t testing.TB) { rationtest.RequireSequence(t, local(t, ration.PerMinute(2)), "u", "AAAA") })
	requireFatal(t, "want AR, got AA: 2/1m0s, granted 1, remaining 0, retry after 0s, decided by ring",
		func(t testing.TB) { rationtest.RequireSequence(t, local(t, ration.PerMinute(2)), "u", "AR") })
	requireFatal(t, "want AA, got A and then the error: boom", func(t testing.TB) {
		f := rationtest.NewFake(t, rationtest.Allowed(1), rationtest.Answer(ration.Decision{}, errors.New("boom")))
		rationtest.RequireSequence(t, f, "u", "AA")
	})
	for _, bad := range []string{"", "AAD", "a", "A R"} {
		r := record(t, func(t testing.TB) { rationtest.RequireSequence(t, local(t, five), "u", bad) })
		require.Len(t, r.fatals, 1, "%q", bad)
	}
}

func TestExhaust(t *testing.T) {
	requireSilent(t, func(t testing.TB) {
		l := local(t, ration.PerMinute(5))
		rationtest.RequireSequence(t, l, "u", "AA")
		require.EqualValues(t, 3, rationtest.Exhaust(t, l, "u"))
		require.EqualValues(t, 0, rationtest.Exhaust(t, l, "u"))
		rationtest.RequireSequence(t, l, "u", "R")
		rationtest.RequireSequence(t, l, "other", "A")
	})
	requireFatal(t, "rationtest: Exhaust got 500 units in 100 calls and no refusal", func(t testing.TB) {
		endless := ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) {
			return ration.Decision{Allowed: true, Granted: 5}, nil
		})
		rationtest.Exhaust(t, endless, "u")
	})
	requireFatal(t, "rationtest: Exhaust got 7 units and then the error: boom", func(t testing.TB) {
		f := rationtest.NewFake(t, rationtest.Available(7), rationtest.Answer(ration.Decision{}, errors.New("boom")))
		rationtest.Exhaust(t, f, "u")
	})
}

// A tier holds units in parts, and Exhaust finds them all.
func TestExhaustTwoTiers(t *testing.T) {
	store := rationtest.NewRedis(t).Store()
	global, err := ration.NewSlidingLog(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(1000)}})
	require.NoError(t, err)
	l, err := ration.NewTwoTier(global)
	require.NoError(t, err)
	defer store.Close()
	require.EqualValues(t, 1000, rationtest.Exhaust(t, l, "u"))
	rationtest.RequireSequence(t, l, "u", "R")
}
