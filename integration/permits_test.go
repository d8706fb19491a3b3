package integration

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

const (
	permitTTL = 900 * time.Millisecond
	permitKey = "ration:jobs:cc1:0:{u}"
)

func concurrency(t testing.TB, rdb redis.UniversalClient, limit int64, opts ...ration.Option) *ration.Concurrency {
	t.Helper()
	c, err := ration.NewConcurrency(open(t, rdb, opts...), holding{Limit: limit, TTL: permitTTL}.policy())
	require.NoError(t, err)
	return c
}

// awaitPermit asks all the time until it gets a permit, and says when.
func awaitPermit(t testing.TB, c *ration.Concurrency, key string) (p *ration.Permit, before, after int64) {
	t.Helper()
	until(t, "a permit", func() bool {
		before = time.Now().UnixMicro()
		var err error
		p, _, err = c.Acquire(ctx, key, 1)
		after = time.Now().UnixMicro()
		require.NoError(t, err)
		return p != nil
	})
	return p, before, after
}

// A holder that is killed loses its units when its lease has run out: not before, and soon after.
func TestKilledHolder(t *testing.T) {
	srv := redistest.Start(t)
	c := concurrency(t, client(t, srv.Addr()), 1)
	h := startHolder(t, holding{Addr: srv.Addr(), Limit: 1, TTL: permitTTL})
	got := h.await(gotPermit, 0)
	// It has outlived its first lease: it's renewed.
	h.await(hasPermit, got.at+3*permitTTL.Microseconds()/2)
	h.kill()
	gone := time.Now().UnixMicro()
	last, err := srv.Client(t).ZRangeWithScores(ctx, permitKey, -1, -1).Result()
	require.NoError(t, err)
	ends := int64(last[0].Score)
	require.Greater(t, ends, gone, "its lease was over already")
	require.LessOrEqual(t, ends, gone+permitTTL.Microseconds())
	_, _, after := awaitPermit(t, c, "u")
	require.GreaterOrEqual(t, after, ends, "before its lease had run out")
	require.Less(t, after, ends+time.Second.Microseconds())
	t.Logf("units came back %v after the kill, %v after the lease's end", time.Duration(after-gone)*time.Microsecond, time.Duration(after-ends)*time.Microsecond)
}

// A holder that is stopped for longer than its TTL finds its permit lost as soon as it goes on: it has
// no moment in which it takes itself for the holder while another is.
func TestStoppedHolder(t *testing.T) {
	srv := redistest.Start(t)
	c := concurrency(t, client(t, srv.Addr()), 1)
	h := startHolder(t, holding{Addr: srv.Addr(), Limit: 1, TTL: permitTTL})
	h.await(hasPermit, h.await(gotPermit, 0).at+1)
	h.signal(syscall.SIGSTOP)
	p, before, _ := awaitPermit(t, c, "u")
	require.False(t, p.Lost())
	h.signal(syscall.SIGCONT)
	h.await(lostPermit, 0)
	for _, n := range h.notes() {
		if n.what == hasPermit {
			require.Less(t, n.at, before, "it took itself for the holder when another was")
		}
	}
	require.False(t, p.Lost())
	p.Release()
	h.await(gotPermit, before) // and goes on
	h.end()
}

// Four processes share two units while one of them is stopped for longer than its TTL, one is killed, and Redis
// is frozen for longer than it: at no time have more than two of them a permit.
func TestHoldersOverFaults(t *testing.T) {
	srv := redistest.Start(t)
	rng := seeded(t)
	job := holding{Addr: srv.Addr(), Limit: 2, TTL: 600 * time.Millisecond, Hold: 300 * time.Millisecond}
	var all []*holder
	for range 4 {
		job.Seed = rng.Uint64()
		all = append(all, startHolder(t, job))
	}
	// From then on each that lives must get a permit again.
	everybody := func(since time.Time) {
		t.Helper()
		for _, h := range all {
			if !h.killed {
				h.await(gotPermit, since.UnixMicro())
			}
		}
	}
	everybody(time.Time{})
	for i := range 3 {
		all[i].await(gotPermit, time.Now().UnixMicro())
		all[i].signal(syscall.SIGSTOP)
		time.Sleep(job.TTL * 3 / 2) // the fault's length
		all[i].signal(syscall.SIGCONT)
	}
	everybody(time.Now())
	srv.Freeze()
	time.Sleep(job.TTL * 2) // the fault's length
	srv.Thaw()
	everybody(time.Now())
	all[3].await(gotPermit, time.Now().UnixMicro())
	all[3].kill()
	everybody(time.Now())
	var spans [][2]int64
	lost := 0
	for _, h := range all {
		h.end()
		notes := h.notes()
		spans = append(spans, uses(notes)...)
		for _, n := range notes {
			if n.what == lostPermit {
				lost++
			}
		}
	}
	require.Equal(t, 2, mostAtOnce(spans), "at once")
	require.NotZero(t, lost)
	t.Logf("%d permits, %d lost", len(spans), lost)
}

// Redis is restarted while a permit is held. With its data the permit is kept. Without, the holder
// learns it at the next renewal.
func TestRestartUnderAPermit(t *testing.T) {
	for name, keeps := range map[string]bool{"with its data": true, "empty": false} {
		t.Run(name, func(t *testing.T) {
			opts := []redistest.Option{}
			if keeps {
				opts = append(opts, redistest.WithArgs("--appendonly", "yes", "--appendfsync", "always"))
			}
			srv := redistest.Start(t, opts...)
			store := open(t, client(t, srv.Addr(), dialOnce), ration.WithTimeout(time.Second))
			c, err := ration.NewConcurrency(store, ration.ConcurrencyPolicy{Name: "jobs", Limit: 1, TTL: 10 * time.Second})
			require.NoError(t, err)
			p, _, _ := awaitPermit(t, c, "u")
			srv.Restart()
			began := time.Now()
			until(t, "a renewal after the restart", func() bool {
				select {
				case <-p.Done():
					return true
				default:
					return time.Since(began) > 5*time.Second
				}
			})
			require.Equal(t, !keeps, p.Lost())
			units, err := c.InFlight(ctx, "u")
			require.NoError(t, err)
			if keeps {
				require.EqualValues(t, 1, units)
			} else {
				require.Zero(t, units)
			}
			p.Release()
			p, _, _ = awaitPermit(t, c, "u")
			p.Release()
		})
	}
}

// A frozen Redis keeps nobody: Release and Acquire are back within the budget, Close too, and the permit is lost in time.
func TestFrozenUnderAPermit(t *testing.T) {
	srv := redistest.Start(t)
	store := open(t, client(t, srv.Addr()), ration.WithTimeout(budget))
	c, err := ration.NewConcurrency(store, holding{Limit: 10, TTL: permitTTL}.policy())
	require.NoError(t, err)
	p, before, _ := awaitPermit(t, c, "u")
	other, _, _ := awaitPermit(t, c, "u")
	srv.Freeze()
	requireWithin(t, 2*budget, "Release", other.Release)
	requireWithin(t, 2*budget, "Acquire", func() {
		_, _, err := c.Acquire(ctx, "u", 1)
		require.ErrorIs(t, err, ration.ErrUnavailable)
	})
	<-p.Done()
	require.True(t, p.Lost())
	require.Less(t, time.Now().UnixMicro(), before+2*permitTTL.Microseconds())
	requireWithin(t, 2*budget, "Close", func() { require.NoError(t, store.Close()) })
	srv.Thaw()
}

// On a cluster and with its client: many subjects on all nodes, from many goroutines, over two instances; the
// renewals of one node travel together.
func TestPermitsOnACluster(t *testing.T) {
	cluster := redistest.StartCluster(t)
	const limit = 3
	both := []*ration.Concurrency{concurrency(t, cluster.Client(t), limit), concurrency(t, cluster.Client(t), limit)}
	var now [20]atomic.Int64
	var granted atomic.Int64
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			for n := range 50 {
				subject := (i + n) % len(now)
				p, d, err := both[i%2].Acquire(ctx, fmt.Sprint("u", subject), 1)
				if err != nil {
					t.Error(err)
					return
				}
				if d.Allowed {
					granted.Add(1)
					if flying := now[subject].Add(1); flying > limit {
						t.Errorf("%d in flight", flying)
					}
					time.Sleep(time.Millisecond) // at work
					now[subject].Add(-1)
				}
				p.Release()
			}
		})
	}
	all.Wait()
	require.Greater(t, granted.Load(), int64(200))
	var held []*ration.Permit
	for i := range now {
		p, _, _ := awaitPermit(t, both[0], fmt.Sprint("u", i))
		held = append(held, p)
	}
	began := time.Now()
	until(t, "two TTLs", func() bool { return time.Since(began) > 2*permitTTL })
	for i, p := range held {
		require.False(t, p.Lost())
		units, err := both[1].InFlight(ctx, fmt.Sprint("u", i))
		require.NoError(t, err)
		require.EqualValues(t, 1, units)
		p.Release()
	}
	for i := range now {
		units, err := both[1].InFlight(ctx, fmt.Sprint("u", i))
		require.NoError(t, err)
		require.Zero(t, units)
	}
}

// The commands that the README lists for an ACL user are all that permits need.
func TestPermitsOfARestrictedUser(t *testing.T) {
	srv := redistest.Start(t)
	commands(t, client(t, srv.Addr()), "ACL SETUSER limits on >secret ~ration:* +evalsha +eval +time +zrange +zrangebyscore +zremrangebyscore +zscore +zadd +zrem +del +pttl +pexpire")
	rdb := client(t, srv.Addr(), func(o *redis.Options) { o.Username, o.Password = "limits", "secret" })
	c := concurrency(t, rdb, math.MaxInt32)
	p, _, _ := awaitPermit(t, c, "u")
	began := time.Now()
	until(t, "two TTLs", func() bool { return time.Since(began) > 2*permitTTL })
	require.False(t, p.Lost())
	p.Release()
}
