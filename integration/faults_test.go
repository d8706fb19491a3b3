package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// B27: a call whose reply is lost after the server has run it was charged once. The client would
// resend it: it has its three retries.
func TestB27LostReplyIsChargedOnce(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, st strategy, kind func(*redis.Options)) {
		t.Parallel()
		srv := redistest.Start(t)
		p := newProxy(t, srv.Addr())
		for how, call := range chargingCalls {
			l := st.of(t, open(t, client(t, p.Addr(), kind)), 5)
			requireRemaining(t, 4, call(l, how))
			before := scriptRuns(t, srv)
			p.deafen()
			answer := make(chan error, 1)
			go func() {
				d, err := call(l, how)()
				if d.Allowed || d.Granted != 0 {
					t.Errorf("an answer without a reply: %+v", d)
				}
				answer <- err
			}()
			until(t, "the server has run it", func() bool { return scriptRuns(t, srv) > before })
			p.hearing()
			err := <-answer
			require.ErrorIs(t, err, ration.ErrUnavailable)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, before+1, scriptRuns(t, srv), "it was sent again")
			require.EqualValues(t, 2, st.used(t, srv.Addr(), how, 5))
			requireRemaining(t, 2, call(l, how)) // later connections pass
		}
	})
}

// B27: a reply that comes later than the client waits for it, and one that comes later than
// the library does.
func TestB27LateReplyIsChargedOnce(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, st strategy, kind func(*redis.Options)) {
		t.Parallel()
		srv := redistest.Start(t)
		p := newProxy(t, srv.Addr())
		impatient := client(t, p.Addr(), kind, func(o *redis.Options) { o.ReadTimeout = 50 * time.Millisecond })
		stores := map[string]*ration.Store{
			"client":  open(t, impatient),
			"library": open(t, client(t, p.Addr(), kind), ration.WithTimeout(50*time.Millisecond)),
		}
		for who, store := range stores {
			l := st.of(t, store, 5)
			until(t, "a connection", func() bool { _, err := l.Peek(ctx, who); return err == nil })
			before := scriptRuns(t, srv)
			p.spoil("latency", "latency", 200)
			d, err := l.Allow(ctx, who)
			require.ErrorIs(t, err, ration.ErrUnavailable)
			require.Zero(t, d)
			until(t, "the server has run it", func() bool { return scriptRuns(t, srv) > before })
			p.cure("latency")
			require.NoError(t, store.Close())
			require.Equal(t, before+1, scriptRuns(t, srv), "it was sent again")
			require.EqualValues(t, 1, st.used(t, srv.Addr(), who, 5))
		}
	})
}

// B27: half a reply is none, wherever it is cut.
func TestB27HalfAReplyIsChargedOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, st strategy) {
		t.Parallel()
		srv := redistest.Start(t)
		p := newProxy(t, srv.Addr())
		l := st.of(t, open(t, client(t, p.Addr())), many)
		for cut := range 14 { // "*4\r\n:1\r\n:12\r\n..."
			requireWorks(t, l)
			p.spoil("limit_data", "bytes", cut)
			d, err := l.Allow(ctx, "u")
			checkOutage(t, d, err)
			require.Error(t, err)
			p.cure("limit_data")
			require.EqualValues(t, cut+1, st.used(t, srv.Addr(), "u", many))
		}
	})
}

// chargingCalls are the ways to charge one unit.
var chargingCalls = map[string]func(l ration.Limiter, key string) func() (ration.Decision, error){
	"Allow": func(l ration.Limiter, key string) func() (ration.Decision, error) {
		return func() (ration.Decision, error) { return l.Allow(ctx, key) }
	},
	"AllowUpTo": func(l ration.Limiter, key string) func() (ration.Decision, error) {
		return func() (ration.Decision, error) { return l.AllowUpTo(ctx, key, 1) }
	},
}

func requireRemaining(t *testing.T, want int64, call func() (ration.Decision, error)) {
	t.Helper()
	d, err := call()
	require.NoError(t, err)
	require.True(t, d.Allowed)
	require.Equal(t, want, d.Remaining)
}

// scriptRuns is the number of scripts a server has run.
func scriptRuns(t testing.TB, srv *redistest.Server) (runs int) {
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	defer func() { _ = rdb.Close() }()
	stats, err := rdb.Info(ctx, "commandstats").Result()
	require.NoError(t, err)
	for line := range strings.Lines(stats) {
		for _, name := range []string{"eval", "evalsha"} {
			var n int
			if _, err := fmt.Sscanf(line, "cmdstat_"+name+":calls=%d", &n); err == nil {
				runs += n
			}
		}
	}
	return runs
}

// B27: connections are cut between request and reply under a crowd that shares runs. Each caller
// has ErrUnavailable or its own answer; what is charged lies between what was answered and what
// was asked for.
func TestB27CutCrowd(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, st strategy, kind func(*redis.Options)) {
		t.Parallel()
		srv := redistest.Start(t)
		p := newProxy(t, srv.Addr())
		l := st.of(t, open(t, client(t, p.Addr(), kind)), many)
		c := &crowd{l: l, made: map[string]*atomic.Int64{}, answered: map[string]*sync.Map{}}
		for round := range 4 {
			requireWorks(t, l)
			before := scriptRuns(t, srv)
			p.deafen()
			wait := c.release(t, 100)
			until(t, "a run", func() bool { return scriptRuns(t, srv) > before })
			p.hearing()
			wait()
			require.Positive(t, c.lost.Swap(0), "round %d cut nobody off", round)
		}
		c.requireCharged(t, st, srv.Addr())
	})
}

const many = 1 << 40

// crowd is callers that record what they asked for and what they were answered.
type crowd struct {
	l        ration.Limiter
	made     map[string]*atomic.Int64 // units asked for, by subject
	answered map[string]*sync.Map     // Granted by Remaining
	lost     atomic.Int64             // calls without an answer
}

// release lets callers go at once; wait waits for them.
func (c *crowd) release(t *testing.T, callers int) (wait func()) {
	for _, key := range []string{"a", "b", "c"} {
		if c.made[key] == nil {
			c.made[key], c.answered[key] = &atomic.Int64{}, &sync.Map{}
		}
	}
	var done sync.WaitGroup
	for i := range callers {
		key, n := string(rune('a'+i%3)), int64(1+i%2)
		done.Go(func() {
			c.made[key].Add(n)
			d, err := c.l.AllowN(ctx, key, n)
			if err != nil {
				checkOutage(t, d, err)
				c.lost.Add(1)
				return
			}
			if _, twice := c.answered[key].LoadOrStore(d.Remaining, d.Granted); twice || d.Granted != n || !d.Allowed {
				t.Errorf("a wrong answer: %+v", d)
			}
		})
	}
	return done.Wait
}

func (c *crowd) requireCharged(t *testing.T, st strategy, addr string) {
	t.Helper()
	for key, made := range c.made {
		answered := int64(0)
		c.answered[key].Range(func(_, granted any) bool {
			answered += granted.(int64)
			return true
		})
		used := st.used(t, addr, key, many)
		t.Logf("%s: %d units asked for, %d charged, %d answered", key, made.Load(), used, answered)
		require.LessOrEqual(t, used, made.Load())
		require.GreaterOrEqual(t, used, answered)
		require.Positive(t, answered)
	}
}

// requireWorks demands an answer; the connection it comes over is there for the next call.
func requireWorks(t *testing.T, l ration.Limiter) {
	t.Helper()
	_, err := l.Peek(ctx, "x")
	require.NoError(t, err)
}
