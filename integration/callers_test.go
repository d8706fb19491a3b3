package integration

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
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

// B94: callers that hang up get their own context's error and say nothing about Redis; those that
// had hung up before are charged nothing, no connection is given up, and the next call is as ever.
func TestB94HangingUpIsNotAnOutage(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, st strategy, kind func(*redis.Options)) {
		t.Parallel()
		srv := redistest.Start(t)
		rdb := client(t, srv.Addr(), kind)
		l := st.of(t, open(t, rdb), many)
		requireWorks(t, l)
		rng := seeded(t)
		var callers sync.WaitGroup
		var answered, charged, quit atomic.Int64
		for i := range 1000 {
			callCtx, end := hangUp(i%4, time.Duration(rng.IntN(1000))*time.Microsecond)
			key := "leaving"
			if i%4 < 2 {
				key = "left"
			}
			callers.Go(func() {
				defer end()
				d, err := l.Allow(callCtx, key)
				switch {
				case err == nil && key == "leaving" && d.Allowed && !d.Degraded:
					answered.Add(1)
					charged.Add(d.Granted)
				case err != nil && errors.Is(err, callCtx.Err()) && !errors.Is(err, ration.ErrUnavailable) && d.Source == 0 && !d.Allowed:
					quit.Add(1)
				default:
					t.Errorf("%+v, %v with %v", d, err, callCtx.Err())
				}
			})
		}
		callers.Wait()
		d, err := l.Allow(ctx, "next")
		require.NoError(t, err)
		require.EqualValues(t, many-1, d.Remaining)
		used := st.used(t, srv.Addr(), "leaving", many)
		t.Logf("%d hung up, %d were answered, %d charged", quit.Load(), answered.Load(), used)
		require.GreaterOrEqual(t, quit.Load(), int64(500))
		require.GreaterOrEqual(t, used, charged.Load())
		require.LessOrEqual(t, used, int64(500))
		require.Zero(t, st.used(t, srv.Addr(), "left", many))
		require.Zero(t, rdb.PoolStats().StaleConns)
	})
}

// hangUp gives a context that has ended before the call (ways 0 and 1) or ends soon.
func hangUp(way int, soon time.Duration) (context.Context, context.CancelFunc) {
	switch way {
	case 1:
		return context.WithDeadline(ctx, time.Now().Add(-time.Second))
	case 2:
		return context.WithTimeout(ctx, soon)
	}
	c, end := context.WithCancel(ctx)
	if way == 0 {
		end()
	} else {
		time.AfterFunc(soon, end)
	}
	return c, end
}

// A caller that leaves while its call is in a run with others returns at once; it's charged, since
// the server has run it, and the others get the answers they'd have got anyway.
func TestLeavingAboardHurtsNobody(t *testing.T) {
	each(t, func(t *testing.T, st strategy) {
		srv := redistest.Start(t)
		rdb := client(t, srv.Addr())
		w := watched(&watch{st: st}, rdb)
		l := st.of(t, open(t, rdb, oneRun), 100)
		requireWorks(t, l)
		hold, ran := make(chan struct{}), make(chan struct{})
		shared := w.runsSeen() + 1
		w.on(nil, func(run int) {
			if run == shared {
				close(ran)
				<-hold
			}
		})
		leaver, leave := context.WithCancel(ctx)
		gone := make(chan error, 1)
		var left sync.Map
		calls := []func(){func() {
			_, err := l.Allow(leaver, "u")
			gone <- err
		}}
		for range 9 {
			calls = append(calls, func() {
				d, err := l.Allow(ctx, "u")
				if _, twice := left.LoadOrStore(d.Remaining, true); twice || err != nil || !d.Allowed || d.Remaining < 90 {
					t.Errorf("%+v, %v", d, err)
				}
			})
		}
		wait := together(t, w, func() { _, _ = l.Peek(ctx, "first") }, calls...)
		<-ran
		requireWithin(t, budget, "a cancelled call", func() {
			leave()
			require.ErrorIs(t, <-gone, context.Canceled)
		})
		close(hold)
		wait()
		require.Equal(t, 10, w.tally().most)
		require.EqualValues(t, 10, st.used(t, srv.Addr(), "u", 100))
	})
}

// A hook of the client that breaks leaves nobody waiting, and the store goes on.
func TestBrokenHookLeavesNobodyWaiting(t *testing.T) {
	panics := func() { panic("in a hook") }
	for name, b := range map[string]breakage{
		"a panic before the run":            {end: panics, says: "panic"},
		"a panic after the run":             {end: panics, says: "panic", after: true, charged: 50},
		"the goroutine ends before the run": {end: runtime.Goexit, says: "time is up"},
		"the goroutine ends after the run":  {end: runtime.Goexit, says: "time is up", after: true, charged: 50},
	} {
		t.Run(name, func(t *testing.T) { b.strike(t, strategies["log"]) })
	}
}

// breakage is what a hook does in one run.
type breakage struct {
	end     func()
	after   bool  // the server has run it
	charged int64 // by 50 calls
	says    string
}

func (b breakage) strike(t *testing.T, st strategy) {
	srv := redistest.Start(t)
	rdb := client(t, srv.Addr())
	w := watched(&watch{st: st}, rdb)
	store := open(t, rdb, oneRun, ration.WithTimeout(2*time.Second))
	l := st.of(t, store, many)
	requireWorks(t, l)
	shared := w.runsSeen() + 1
	strike := func(run int) {
		if run == shared {
			b.end()
		}
	}
	if b.after {
		w.on(nil, strike)
	} else {
		w.on(strike, nil)
	}
	calls := slices.Repeat([]func(){func() {
		d, err := l.Allow(ctx, "u")
		checkOutage(t, d, err)
		if !strings.Contains(fmt.Sprint(err), b.says) {
			t.Error(err)
		}
	}}, 50)
	together(t, w, func() { _, _ = l.Peek(ctx, "first") }, calls...)()
	require.Equal(t, b.charged, st.used(t, srv.Addr(), "u", many))
	requireRemaining(t, many-b.charged-1, func() (ration.Decision, error) { return l.Allow(ctx, "u") })
	require.NoError(t, store.Close())
}

// A lone call meets the broken hook on a goroutine of the library's or, where the client keeps
// deadlines, on its own.
func TestPanicUnderALoneCall(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, st strategy, kind func(*redis.Options)) {
		t.Parallel()
		rdb := client(t, redistest.Start(t).Addr(), kind)
		l := st.of(t, open(t, rdb), many)
		w := watched(&watch{st: st}, rdb)
		w.on(func(run int) {
			if run%2 == 0 {
				panic(fmt.Sprint("in run ", run))
			}
		}, nil)
		for range 20 {
			d, err := l.Allow(ctx, "u")
			checkOutage(t, d, err)
			requireWorks(t, l)
		}
	})
}
