package integration

import (
	"context"
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

// ledger is an observer that adds up what the tiers of a store take and give back.
type ledger struct {
	ration.NopObserver
	taken, unused, lost, blocks, returns atomic.Int64
	failed, changed                      atomic.Int64 // runs; states of a breaker
}

func (l *ledger) Leased(e ration.LeaseEvent) {
	if e.Taken > 0 {
		l.blocks.Add(1)
	} else {
		l.returns.Add(1)
	}
	l.taken.Add(e.Taken)
	l.unused.Add(e.Unused)
	l.lost.Add(e.Lost)
}

func (l *ledger) Failed(ration.FailureEvent)         { l.failed.Add(1) }
func (l *ledger) BreakerChanged(ration.BreakerEvent) { l.changed.Add(1) }

// tiered is a limiter with a tier whose traffic is watched. Its client would resend.
type tiered struct {
	ration.Limiter
	st     strategy
	policy ration.Policy
	store  *ration.Store
	watch  *watch
	ledger *ledger
}

// twoTier makes one of a policy of one limit.
func (st strategy) twoTier(t testing.TB, rdb redis.UniversalClient, p ration.Policy, tier []ration.TierOption, opts ...ration.Option) *tiered {
	t.Helper()
	of := &tiered{st: st, policy: p, watch: &watch{st: st}, ledger: &ledger{}}
	rdb.AddHook(of.watch)
	of.store = open(t, rdb, append([]ration.Option{ration.WithObserver(of.ledger)}, opts...)...)
	var err error
	of.Limiter, err = ration.NewTwoTier(st.under(t, of.store, p), tier...)
	require.NoError(t, err)
	return of
}

// alone is the tier of a service with one instance, which needs no heartbeat.
func alone(hold time.Duration) []ration.TierOption {
	return []ration.TierOption{ration.WithInstances(1), ration.WithHold(hold)}
}

// lasting is a policy whose units don't return while a test runs.
var lasting = ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(many, century)}}

// used is what Redis counts of a subject, as another client sees it.
func (of *tiered) used(t testing.TB, srv *redistest.Server, key string) int64 {
	t.Helper()
	l := of.st.under(t, open(t, client(t, srv.Addr())), of.policy)
	d, err := l.Peek(ctx, key)
	require.NoError(t, err)
	return of.policy.Limits[0].Units - d.Remaining
}

// spend makes calls until they come from a block of at least so many units, and says how many there were.
func (of *tiered) spend(t testing.TB, key string, size int64) (calls int64) {
	t.Helper()
	until(t, "a block", func() bool {
		d, err := of.Allow(ctx, key)
		require.NoError(t, err)
		calls += d.Granted
		return d.Source == ration.Lease && of.ledger.taken.Load() >= size
	})
	return calls
}

// connect gives a client several connections: none can be made while all replies are lost.
func connect(t testing.TB, rdb *redis.Client, n int) {
	t.Helper()
	var all []*redis.Conn
	for range n {
		c := rdb.Conn()
		require.NoError(t, c.Ping(ctx).Err())
		all = append(all, c)
	}
	for _, c := range all {
		require.NoError(t, c.Close())
	}
}

// beforeLease is called when a command that asks for a block is about to be sent.
type beforeLease func()

func (f beforeLease) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f beforeLease) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		for _, arg := range cmd.Args() {
			if op, ok := arg.(string); ok && strings.HasPrefix(op, "l") && strings.Contains(op, "/") {
				f()
			}
		}
		return next(ctx, cmd)
	}
}

func (f beforeLease) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// B27, B128: a lease whose reply is lost was taken once. It's neither asked for again nor given back, and
// its units return when their window ends.
func TestB27LostLeaseIsChargedOnce(t *testing.T) {
	t.Parallel()
	const units, window = 100, 2 * time.Second
	eachOf(t, leased, func(t *testing.T, st strategy) {
		t.Parallel()
		srv := redistest.Start(t)
		p := newProxy(t, srv.Addr())
		policy := ration.Policy{Name: "p", Slots: 2, Limits: []ration.Limit{ration.Per(units, window)}}
		until(t, "the beginning of a slot", func() bool {
			return time.Now().UnixMicro()%(window.Microseconds()/2) < 100_000
		})
		rdb := client(t, p.Addr())
		l := st.twoTier(t, rdb, policy, alone(window/2))
		requireWorks(t, l)
		connect(t, rdb, 4)
		before := scriptRuns(t, srv) - l.watch.runsSeen()
		rdb.AddHook(beforeLease(p.deafen))
		for range 4 { // so many are worth a block, which is asked for after them
			_, err := l.Allow(ctx, "u")
			require.NoError(t, err)
		}
		until(t, "the server has run the lease", func() bool {
			return l.watch.units('l') > 0 && scriptRuns(t, srv) == before+l.watch.runsSeen()
		})
		p.hearing()
		require.Equal(t, 4+l.watch.units('l'), l.used(t, srv, "u"))
		runs := scriptRuns(t, srv)
		require.NoError(t, l.store.Close())
		require.Equal(t, runs, scriptRuns(t, srv), "something was sent again, or given back")
		require.Zero(t, l.watch.items('b'))
		require.Zero(t, l.ledger.taken.Load())
		until(t, "the units' return", func() bool { return l.used(t, srv, "u") == 0 })
	})
}

// B128: a give-back whose reply is lost was made once, and isn't made again: not by the client, not by the
// next block, not by Close.
func TestB128LostGiveBackIsMadeOnce(t *testing.T) {
	t.Parallel()
	eachOf(t, leased, func(t *testing.T, st strategy) {
		t.Parallel()
		srv := redistest.Start(t)
		p := newProxy(t, srv.Addr())
		l := st.twoTier(t, client(t, p.Addr()), lasting, alone(200*time.Millisecond))
		spent := l.spend(t, "u", 1)
		until(t, "a block and nothing under way", func() bool {
			runs := l.watch.runsSeen()
			d, err := l.Allow(ctx, "u")
			require.NoError(t, err)
			spent += d.Granted
			return d.Source == ration.Lease && l.watch.runsSeen() == runs && l.watch.units('l') == l.ledger.taken.Load()
		})
		returns := l.watch.items('b')
		p.deafen()
		until(t, "the give-back", func() bool { return l.watch.items('b') > returns && l.used(t, srv, "u") == spent })
		p.hearing()
		until(t, "the loss", func() bool { return l.ledger.lost.Load() > 0 })
		require.EqualValues(t, spent, l.used(t, srv, "u"))
		require.NoError(t, l.store.Close())
		require.Equal(t, returns+1, l.watch.items('b'))
		require.Equal(t, spent, l.used(t, srv, "u"))
	})
}

// B27, B128: connections are cut all the time. What Redis counts is never less than what was let through, and
// never more than what was sent for and not given back for certain; no block is given back twice.
func TestB27CutTiers(t *testing.T) {
	t.Parallel()
	eachOf(t, leased, func(t *testing.T, st strategy) {
		t.Parallel()
		srv := redistest.Start(t)
		p := newProxy(t, srv.Addr())
		l := st.twoTier(t, client(t, p.Addr()), lasting, alone(20*time.Millisecond), ration.WithTimeout(budget))
		granted, stop := l.callAlways(t, 4)
		for round := range int64(6) {
			until(t, "blocks and returns", func() bool {
				return l.ledger.blocks.Load() > 5*round && l.ledger.returns.Load() > 2*round
			})
			failed := l.ledger.failed.Load()
			p.deafen()
			until(t, "replies that are lost", func() bool { return l.ledger.failed.Load() > failed+1 })
			p.hearing()
		}
		stop()
		require.NoError(t, l.store.Close())
		sent := l.watch.units('a') + l.watch.units('l')
		sure := l.ledger.unused.Load() - l.ledger.lost.Load()
		used := l.used(t, srv, "u")
		t.Logf("%d units let through, %d counted, %d sent for, %d given back for certain", granted.Load(), used, sent, sure)
		require.GreaterOrEqual(t, used, granted.Load())
		require.LessOrEqual(t, used, sent-sure)
		require.LessOrEqual(t, int64(l.watch.items('b')), l.ledger.blocks.Load())
		require.LessOrEqual(t, l.watch.units('b'), l.ledger.taken.Load())
	})
}

// callAlways has some callers ask for one subject all the time, until stop. They may meet an outage.
func (of *tiered) callAlways(t testing.TB, callers int) (granted *atomic.Int64, stop func()) {
	granted = &atomic.Int64{}
	var all sync.WaitGroup
	end := make(chan struct{})
	stop = sync.OnceFunc(func() {
		close(end)
		all.Wait()
	})
	t.Cleanup(stop)
	for range callers {
		all.Go(func() {
			pace := time.NewTicker(time.Millisecond)
			defer pace.Stop()
			for {
				select {
				case <-end:
					return
				case <-pace.C:
				}
				d, err := of.Allow(ctx, "u")
				if err != nil {
					checkOutage(t, d, err)
				}
				granted.Add(d.Granted)
			}
		})
	}
	return granted, stop
}
