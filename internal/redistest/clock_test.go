package redistest

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

var begin = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

var luaTimeScript = redis.NewScript(`local t = redis.call('TIME')
	return {tonumber(t[1]), tonumber(t[2])}`)

// luaTime gives TIME as a script sees it.
func luaTime(t *testing.T, rdb redis.Scripter) time.Time {
	t.Helper()
	v, err := luaTimeScript.Run(t.Context(), rdb, nil).Int64Slice()
	require.NoError(t, err)
	require.Len(t, v, 2)
	return time.Unix(v[0], v[1]*1000).UTC()
}

func TestClockStandsStill(t *testing.T) {
	ctx := t.Context()
	s := Start(t, WithClock(begin))
	rdb := s.Client(t)
	for range 10 {
		require.Equal(t, begin, rdb.Time(ctx).Val().UTC())
		require.Equal(t, begin, luaTime(t, rdb))
		require.Equal(t, begin, s.Now())
		time.Sleep(pollEvery)
	}
	s.Advance(time.Microsecond)
	require.Equal(t, begin.Add(time.Microsecond), rdb.Time(ctx).Val().UTC())
	require.Equal(t, begin.Add(time.Microsecond), luaTime(t, rdb))
	s.Advance(-999 * time.Nanosecond)
	require.Equal(t, begin.Add(time.Microsecond), s.Now())

	s.Restart()
	require.Equal(t, begin.Add(time.Microsecond), luaTime(t, rdb), "a restart keeps the clock")
}

func TestExpiryFollowsTheClock(t *testing.T) {
	ctx := t.Context()
	s := Start(t, WithClock(begin))
	rdb := s.Client(t)
	require.NoError(t, rdb.Set(ctx, "ten", 1, 10*time.Second).Err())
	require.NoError(t, rdb.Set(ctx, "hour", 1, time.Hour).Err())
	s.Advance(1100 * time.Millisecond)
	require.Equal(t, 8900*time.Millisecond, rdb.PTTL(ctx, "ten").Val())
	s.Advance(8899 * time.Millisecond)
	require.EqualValues(t, 1, rdb.Exists(ctx, "ten").Val())
	s.Advance(2 * time.Millisecond)
	require.Zero(t, rdb.Exists(ctx, "ten").Val())

	s.SetTime(begin.Add(-time.Minute))
	require.Equal(t, begin.Add(-time.Minute), luaTime(t, rdb))
	require.Zero(t, rdb.Exists(ctx, "ten").Val())
	require.Equal(t, time.Hour+time.Minute, rdb.PTTL(ctx, "hour").Val())
}

// The server keeps copies of the time in places; none of them may show after
// SetTime has returned.
func TestNextCommandSeesTheNewTime(t *testing.T) {
	ctx := t.Context()
	s := Start(t, WithClock(begin), WithArgs("--hz", "500"))
	rdb := s.Client(t)
	day := 24 * time.Hour
	for i := range 500 {
		now := begin.Add(time.Duration(i%7-3)*day + time.Duration(i)*time.Microsecond)
		s.SetTime(now)
		switch i % 4 {
		case 0:
			require.Equal(t, now, rdb.Time(ctx).Val().UTC())
		case 1:
			require.Equal(t, now, luaTime(t, rdb))
		case 2:
			at := now.Truncate(time.Millisecond).Add(time.Hour)
			require.NoError(t, rdb.Set(ctx, "k", 1, time.Hour).Err())
			require.EqualValues(t, at.UnixMilli(), rdb.Do(ctx, "PEXPIRETIME", "k").Val())
			s.Advance(day)
			require.Zero(t, rdb.Exists(ctx, "k").Val())
		case 3:
			require.NoError(t, rdb.Set(ctx, "k", 1, time.Hour).Err())
			s.Advance(time.Minute)
			left, err := rdb.Eval(ctx, `return redis.call('PTTL', KEYS[1])`, []string{"k"}).Int64()
			require.NoError(t, err)
			require.Equal(t, (59 * time.Minute).Milliseconds(), left)
		}
	}
}

func TestConcurrentAdvancesAddUp(t *testing.T) {
	s := Start(t, WithClock(begin))
	rdb := s.Client(t)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { s.Advance(time.Millisecond) })
		wg.Go(func() { rdb.Time(t.Context()) })
	}
	wg.Wait()
	require.Equal(t, begin.Add(100*time.Millisecond), luaTime(t, rdb))
}

func TestMonotonicTimeStaysReal(t *testing.T) {
	s := Start(t, WithClock(begin))
	rdb := s.Client(t)
	// Redis times a busy script by the monotonic clock.
	require.NoError(t, rdb.ConfigSet(t.Context(), "lua-time-limit", "20").Err())
	busy := s.Client(t, func(o *redis.Options) { o.MaxRetries, o.ReadTimeout = -1, startLimit })
	done := make(chan error, 1)
	go func() { done <- busy.Eval(t.Context(), `while true do end`, nil).Err() }()
	require.NoError(t, poll(startLimit, func() error { return rdb.ScriptKill(t.Context()).Err() }))
	require.ErrorContains(t, <-done, "killed")
}

func TestClockMisuse(t *testing.T) {
	plain := Start(t)
	require.Panics(t, func() { plain.SetTime(begin) })
	require.Panics(t, func() { plain.Advance(1) })
	require.Panics(t, func() { plain.Now() })
	s := Start(t, WithClock(begin))
	require.Panics(t, func() { s.SetTime(time.Time{}) })
	require.Panics(t, func() { s.SetTime(time.Unix(0, 0)) })
	require.Equal(t, begin, s.Now())
	require.WithinDuration(t, time.Now(), luaTime(t, plain.Client(t)), time.Minute)
}
