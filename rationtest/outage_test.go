package rationtest_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

func policyOf(limits ...ration.Limit) ration.Policy {
	return ration.Policy{Name: "login", Limits: limits}
}

func slidingLog(t testing.TB, s *ration.Store, limits ...ration.Limit) ration.Limiter {
	l, err := ration.NewSlidingLog(s, policyOf(limits...))
	require.NoError(t, err)
	return l
}

// Each failure rule shows itself during an outage, and nothing of it is left after.
func TestOutageUnderEachRule(t *testing.T) {
	begin := map[string]func(*rationtest.Redis){
		"stop": (*rationtest.Redis).Stop,
		"fail": func(r *rationtest.Redis) { r.Fail("LOADING Redis is loading the dataset in memory") },
	}
	class := map[string]ration.FailureClass{"stop": ration.ClassConnection, "fail": ration.ClassLoading}
	during := map[ration.FailureRule]string{ration.FailOpen: "AAAAA", ration.FailClosed: "RRRRR", ration.FailLocal(2): "AARRR"}
	for how, begin := range begin {
		for _, rule := range []ration.FailureRule{ration.FailError, ration.FailOpen, ration.FailClosed, ration.FailLocal(2)} {
			t.Run(how+" "+rule.String(), func(t *testing.T) {
				rdb := rationtest.NewRedis(t)
				l := slidingLog(t, rdb.Store(ration.WithOnFailure(rule)), ration.PerMinute(4))
				rationtest.RequireSequence(t, l, "u", "AA")
				begin(rdb)
				if rule == ration.FailError {
					for range 50 { // more than a breaker or a pool would take
						_, err := l.Allow(ctx, "u")
						require.ErrorIs(t, err, ration.ErrUnavailable)
						require.Equal(t, class[how], ration.ClassOf(err))
					}
				} else {
					rationtest.RequireSequence(t, l, "u", during[rule])
					d, err := l.Allow(ctx, "u")
					require.NoError(t, err)
					require.True(t, d.Degraded)
					require.Equal(t, class[how], ration.ClassOf(d.Cause))
				}
				rdb.Recover()
				rationtest.RequireSequence(t, l, "u", "AAR")
				d, err := l.Allow(ctx, "u")
				rationtest.RequireRefused(t, d, err)
				require.False(t, d.Degraded)
			})
		}
	}
}

func TestFailClasses(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	l := slidingLog(t, rdb.Store(), five)
	for reply, class := range map[string]ration.FailureClass{
		"": ration.ClassReply, "OOM command not allowed when used memory > 'maxmemory'": ration.ClassMemory,
		"READONLY You can't write against a read only replica.": ration.ClassReadOnly, "NOPERM no": ration.ClassMisconfigured,
	} {
		rdb.Fail(reply)
		_, err := l.Allow(ctx, "u")
		require.ErrorIs(t, err, ration.ErrUnavailable)
		require.Equal(t, class, ration.ClassOf(err), reply)
	}
}

// The service's own client, by Addr, sees the outage too.
func TestOutageOfAClientOfOnesOwn(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	client := redis.NewClient(&redis.Options{Addr: rdb.Addr()})
	defer client.Close()
	store, err := ration.Open(client, ration.WithBreaker(ration.Breaker{Failures: math.MaxInt32}), ration.WithTimeout(30*time.Second))
	require.NoError(t, err)
	l := slidingLog(t, store, five)
	rationtest.RequireSequence(t, l, "u", "A")
	rdb.Stop()
	for range 30 {
		_, err = l.Allow(ctx, "u")
		require.ErrorIs(t, err, ration.ErrUnavailable)
	}
	rdb.Fail("LOADING wait")
	_, err = l.Allow(ctx, "u")
	require.ErrorIs(t, err, ration.ErrUnavailable)
	rdb.Recover()
	rationtest.RequireSequence(t, l, "u", "AAAAR")
}

// What is stored stays, and ages, while nobody can reach it.
func TestLifetimesGoOnDuringAnOutage(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	l := slidingLog(t, rdb.Store(), ration.PerMinute(1))
	rationtest.RequireSequence(t, l, "u", "AR")
	rdb.Stop()
	rdb.Advance(time.Minute - time.Microsecond)
	rdb.Recover()
	rationtest.RequireSequence(t, l, "u", "R")
	rdb.Stop()
	rdb.Advance(time.Microsecond)
	rdb.Recover()
	rationtest.RequireSequence(t, l, "u", "AR")
}

func TestStoreRefusesABadOption(t *testing.T) {
	r := record(t, func(t testing.TB) { rationtest.NewRedis(t).Store(ration.WithTimeout(0)) })
	require.Len(t, r.fatals, 1)
	require.True(t, strings.HasPrefix(r.fatals[0], "rationtest: "+ration.ErrInvalidOption.Error()), r.fatals[0])
}
