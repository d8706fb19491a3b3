package fakeredis

import (
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// once leaves out the driver's retries, which take time.
func once(o *redis.Options) { o.MaxRetries = -1 }

// outage is the server from two clients' view, through memory and through a socket.
func outage(t *testing.T, check func(*Server, *redis.Client)) {
	for _, road := range []string{"memory", "socket"} {
		t.Run(road, func(t *testing.T) {
			s, _ := startFake(t, Start)
			rdb := newClient(t, s, once)
			if road == "socket" {
				rdb = redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1})
				t.Cleanup(func() { require.NoError(t, rdb.Close()) })
			}
			check(s, rdb)
		})
	}
}

func TestCutRunsNothingAndRecovers(t *testing.T) {
	ctx := t.Context()
	outage(t, func(s *Server, rdb *redis.Client) {
		require.NoError(t, rdb.Set(ctx, "k", "before", 0).Err())
		s.Cut()
		// More often than any pool dials in vain before it tries once a second only.
		for range 200 {
			err := rdb.Set(ctx, "k", "during", 0).Err()
			require.Error(t, err)
			var reply redis.Error
			require.NotErrorAs(t, err, &reply, "no answer, not one that says no")
		}
		s.Recover()
		require.Equal(t, "before", rdb.Get(ctx, "k").Val())
	})
}

func TestCutSparesUnusedConnections(t *testing.T) {
	s, _ := startFake(t, Start)
	rdb := newClient(t, s, once)
	require.NoError(t, rdb.Ping(t.Context()).Err())
	s.Cut()
	s.Recover()
	require.NoError(t, rdb.Ping(t.Context()).Err())
}

func TestFailAnswersAndRecovers(t *testing.T) {
	ctx := t.Context()
	outage(t, func(s *Server, rdb *redis.Client) {
		require.NoError(t, rdb.Set(ctx, "k", "before", 0).Err())
		s.Fail("OOM out of\r\nmemory")
		require.EqualError(t, rdb.Set(ctx, "k", "during", 0).Err(), "OOM out of  memory")
		s.Fail("")
		require.EqualError(t, rdb.Set(ctx, "k", "during", 0).Err(), "ERR failing")
		s.Cut()
		var reply redis.Error
		require.NotErrorAs(t, rdb.Get(ctx, "k").Err(), &reply)
		s.Recover()
		s.Recover()
		require.Equal(t, "before", rdb.Get(ctx, "k").Val())
	})
}

func TestOutageInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Synctest()
		defer s.Close()
		s.Fail("LOADING wait") // before anybody has connected
		rdb := s.Client(once)
		defer func() { require.NoError(t, rdb.Close()) }()
		require.EqualError(t, rdb.Ping(t.Context()).Err(), "LOADING wait")
		s.Recover()
		require.NoError(t, rdb.Ping(t.Context()).Err())
	})
}

func TestOutageOfAClosedServer(t *testing.T) {
	s, rdb := startFake(t, Start)
	s.Close()
	s.Cut()
	s.Fail("ERR no")
	s.Recover()
	require.Error(t, rdb.Ping(t.Context()).Err())
}
