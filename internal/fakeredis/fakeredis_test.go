package fakeredis

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var begin = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

func startFake(t *testing.T, start func(time.Time) (*Server, error)) (*Server, *redis.Client) {
	t.Helper()
	s, err := start(begin)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s, newClient(t, s)
}

func newClient(t *testing.T, s *Server, opts ...func(*redis.Options)) *redis.Client {
	t.Helper()
	rdb := s.Client(opts...)
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	return rdb
}

// luaTime gives TIME as a script sees it.
func luaTime(t *testing.T, rdb redis.Scripter) time.Time {
	t.Helper()
	v, err := redis.NewScript(`local t = redis.call('TIME')
		return {tonumber(t[1]), tonumber(t[2])}`).Run(t.Context(), rdb, nil).Int64Slice()
	require.NoError(t, err)
	require.Len(t, v, 2)
	return time.Unix(v[0], v[1]*1000).UTC()
}

// firstWindow is the plainest limiter, one call per second by a key that
// expires, and depends on nothing else. It is what a fake with two clocks
// breaks.
var firstWindow = redis.NewScript(`return redis.call('SET', KEYS[1], 1, 'PX', 1000, 'NX') and 1 or 0`)

func TestOneClock(t *testing.T) { // B132
	ctx := t.Context()
	s, rdb := startFake(t, Start)
	allow := func() bool {
		n, err := firstWindow.Run(ctx, rdb, []string{"window"}).Int()
		require.NoError(t, err)
		return n == 1
	}
	require.True(t, allow())
	require.False(t, allow())
	require.NoError(t, rdb.Set(ctx, "ten", 1, 10*time.Second).Err())

	s.Advance(1100 * time.Millisecond)
	require.True(t, allow())
	require.Equal(t, 8900*time.Millisecond, rdb.PTTL(ctx, "ten").Val())
	require.Equal(t, begin.Add(1100*time.Millisecond), luaTime(t, rdb))
}

func TestTimeStandsStill(t *testing.T) {
	s, rdb := startFake(t, Start)
	for range 5 {
		require.Equal(t, begin, rdb.Time(t.Context()).Val().UTC())
		require.Equal(t, begin, luaTime(t, rdb))
		require.Equal(t, begin, s.Now())
	}
	s.Advance(time.Microsecond)
	require.Equal(t, begin.Add(time.Microsecond), luaTime(t, rdb))
	s.Advance(999 * time.Nanosecond)
	require.Equal(t, begin.Add(time.Microsecond), s.Now(), "TIME knows whole microseconds only")
}

func TestMovingBackRevivesNothing(t *testing.T) {
	ctx := t.Context()
	for _, read := range []bool{true, false} {
		t.Run(fmt.Sprintf("read in between %t", read), func(t *testing.T) {
			s, rdb := startFake(t, Start)
			require.NoError(t, rdb.Set(ctx, "short", 1, 10*time.Second).Err())
			require.NoError(t, rdb.Set(ctx, "long", 1, 60*time.Second).Err())
			s.Advance(10 * time.Second)
			if read {
				require.Zero(t, rdb.Exists(ctx, "short").Val())
			}
			s.SetTime(begin.Add(-time.Hour))
			require.Equal(t, begin.Add(-time.Hour), luaTime(t, rdb))
			require.Zero(t, rdb.Exists(ctx, "short").Val())
			require.Equal(t, time.Hour+time.Minute, rdb.PTTL(ctx, "long").Val())

			s.SetTime(begin.Add(time.Minute - time.Microsecond))
			require.EqualValues(t, 1, rdb.Exists(ctx, "long").Val())
			s.Advance(time.Microsecond)
			require.Zero(t, rdb.Exists(ctx, "long").Val())
		})
	}
}

func TestWithoutTTL(t *testing.T) {
	ctx := t.Context()
	s, rdb := startFake(t, StartWithoutTTL)
	require.NoError(t, rdb.Set(ctx, "k", 1, 10*time.Second).Err())
	s.Advance(time.Hour)
	require.Equal(t, begin.Add(time.Hour), luaTime(t, rdb))
	require.Equal(t, 10*time.Second, rdb.PTTL(ctx, "k").Val())
	s.SetTime(begin)
	require.Equal(t, 10*time.Second, rdb.PTTL(ctx, "k").Val())
	require.NoError(t, rdb.Del(ctx, "k").Err())
	require.Zero(t, rdb.Exists(ctx, "k").Val())
}

func TestRefusesTheZeroTime(t *testing.T) {
	_, err := Start(time.Time{})
	require.Error(t, err)
	_, err = StartWithoutTTL(time.Time{})
	require.Error(t, err)
	s, _ := startFake(t, Start)
	require.Panics(t, func() { s.SetTime(time.Time{}) })
}

func TestSocketAndMemoryReachTheSameServer(t *testing.T) {
	ctx := t.Context()
	s, inside := startFake(t, Start)
	outside := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer func() { require.NoError(t, outside.Close()) }()
	require.NoError(t, outside.Set(ctx, "k", "v", 0).Err())
	require.Equal(t, "v", inside.Get(ctx, "k").Val())
	require.True(t, s.Mini().Exists("k"))
}

func TestClosedServerIsGone(t *testing.T) {
	ctx := t.Context()
	s, rdb := startFake(t, Start)
	require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err())
	s.Close()
	s.Close()
	require.Error(t, rdb.Get(ctx, "k").Err())
	require.Error(t, rdb.Ping(ctx).Err(), "a new connection must not bring it back")
	require.Empty(t, s.Addr())
}

// A bare net.Pipe stops for good here, until the write times out.
func TestLongPipeline(t *testing.T) {
	ctx := t.Context()
	for protocol := 2; protocol <= 3; protocol++ {
		s, _ := startFake(t, Start)
		rdb := newClient(t, s, func(o *redis.Options) { o.Protocol = protocol }, nil)
		value := strings.Repeat("v", 1000)
		cmds, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 500 {
				p.Set(ctx, fmt.Sprint(i), value, 0)
				p.Get(ctx, fmt.Sprint(i))
			}
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, value, cmds[999].(*redis.StringCmd).Val())
	}
}

func TestReadDeadlineHolds(t *testing.T) {
	s, _ := startFake(t, Start)
	rdb := newClient(t, s, func(o *redis.Options) {
		o.ReadTimeout = 20 * time.Millisecond
		o.MaxRetries = -1
	})
	require.NoError(t, rdb.Ping(t.Context()).Err())
	s.Mini().Lock() // the server answers nothing
	err := rdb.Get(t.Context(), "k").Err()
	s.Mini().Unlock()
	require.ErrorContains(t, err, "timeout")
}

func TestManyCallersInABubble(t *testing.T) {
	// Twice, so that anything the first bubble left in the driver shows.
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			s := Synctest()
			defer s.Close()
			rdb := s.Client()
			defer func() { require.NoError(t, rdb.Close()) }()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { rdb.Incr(ctx, "n") })
			}
			wg.Wait()
			require.Equal(t, "100", rdb.Get(ctx, "n").Val())
		})
	}
}

func TestBubbleClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		s := Synctest()
		defer s.Close()
		rdb := s.Client()
		defer func() { require.NoError(t, rdb.Close()) }()
		require.Empty(t, s.Addr())

		start := time.Now()
		require.NoError(t, rdb.Set(ctx, "k", 1, 10*time.Second).Err())
		require.True(t, start.Equal(luaTime(t, rdb)))
		time.Sleep(1100 * time.Millisecond)
		require.Equal(t, 8900*time.Millisecond, rdb.PTTL(ctx, "k").Val())
		require.True(t, start.Add(1100*time.Millisecond).Equal(luaTime(t, rdb)))
		s.Advance(time.Second)
		require.Equal(t, 7900*time.Millisecond, rdb.PTTL(ctx, "k").Val())
		s.SetTime(start.Add(10 * time.Second))
		require.Zero(t, rdb.Exists(ctx, "k").Val())
		require.True(t, start.Add(10*time.Second).Equal(s.Now()))
		require.Panics(t, func() { s.Advance(-1) })
		require.Panics(t, func() { s.SetTime(start) })
	})
}
