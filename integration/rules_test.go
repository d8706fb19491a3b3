package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// rules are the failure rules.
var rules = []ration.FailureRule{ration.FailError, ration.FailOpen, ration.FailClosed, ration.FailLocal(4)}

// standard is the default budget, and usual a breaker with the default settings.
const standard = 100 * time.Millisecond

var usual = ration.WithBreaker(ration.Breaker{})

// slowest is how long after Redis decisions are normal again, with the default settings.
const slowest = 2*time.Second + standard

// eachRule runs a test for every rule with either kind of client, and a strategy that changes.
func eachRule(t *testing.T, run func(t *testing.T, st strategy, kind func(*redis.Options), rule ration.FailureRule)) {
	names := []string{"fixed", "log", "buckets", "compact", "counter"}
	for i, rule := range rules {
		for j, yes := range []bool{false, true} {
			name := names[(i+j)%len(names)]
			t.Run(fmt.Sprintf("%v, %s, obedient %v", rule, name, yes), func(t *testing.T) { run(t, strategies[name], obedient(yes), rule) })
		}
	}
}

// requireDegraded demands what a rule gives to a call of one unit that none was counted before, for a class of failure.
func requireDegraded(t testing.TB, rule ration.FailureRule, d ration.Decision, err error, classes ...ration.FailureClass) {
	t.Helper()
	require.NoError(t, degraded(rule, d, err, classes...))
}

// degraded says what is wrong with such an answer.
func degraded(rule ration.FailureRule, d ration.Decision, err error, classes ...ration.FailureClass) error {
	cause, source := d.Cause, ration.Failure
	switch rule {
	case ration.FailError:
		cause, source = err, 0
	case ration.FailLocal(4):
		source = ration.Ring
	}
	refuses := rule == ration.FailError || rule == ration.FailClosed
	blank := d.Limit == ration.Limit{} && d.Limits == nil && d.Remaining == 0 && d.ResetAfter == 0 && d.Granted == 0
	switch {
	case (rule == ration.FailError) != (err != nil), d.Degraded != (err == nil), d.Source != source, d.Allowed == refuses, blank != refuses:
		return fmt.Errorf("not the rule %v: %+v, %w", rule, d, err)
	case !slices.Contains(classes, ration.ClassOf(cause)) || strings.Contains(cause.Error(), "subject"):
		return fmt.Errorf("not %v: %w", classes, cause)
	}
	return nil
}

// observer counts events.
type observer struct {
	ration.NopObserver
	mu        sync.Mutex
	decisions []ration.DecisionEvent
	failures  []ration.FailureEvent
	changes   []ration.BreakerEvent
}

func (o *observer) Decided(e ration.DecisionEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.decisions = append(o.decisions, e)
}

func (o *observer) Failed(e ration.FailureEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failures = append(o.failures, e)
}

func (o *observer) BreakerChanged(e ration.BreakerEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changes = append(o.changes, e)
}

// counted gives the number of decisions, failures and breaker changes heard of.
func (o *observer) counted() (decisions, failures, changes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.decisions), len(o.failures), len(o.changes)
}

// dialOnce has a client say at once that nobody listens. By default it tries for longer than the budget,
// so that what the call hears may be the end of that.
func dialOnce(o *redis.Options) { o.DialerRetries = 1 }

// listen is a server that isn't Redis: it does what serve does with each connection.
func listen(t testing.TB, serve func(net.Conn)) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var conns []net.Conn
	var serving sync.WaitGroup
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
			serving.Go(func() { serve(c) })
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-stopped
		for _, c := range conns {
			_ = c.Close()
		}
		serving.Wait()
	})
	return l.Addr().String()
}

// mute is a server that accepts and never answers.
func mute(t testing.TB) (addr string) { return listen(t, func(net.Conn) {}) }

// crowdOf has callers ask at once, each for a subject of its own, and checks the answers.
func crowdOf(t *testing.T, callers int, l ration.Limiter, rule ration.FailureRule, classes ...ration.FailureClass) {
	t.Helper()
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			d, err := l.Allow(ctx, fmt.Sprint("subject", i))
			if err := degraded(rule, d, err, classes...); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// A frozen Redis costs a call its caller's deadline or the budget, also where 200 wait, and nothing once the
// breaker is open; after Close nothing is left. When it goes on, so does the limiter, by itself.
func TestFrozenUnderEveryRule(t *testing.T) {
	srv := redistest.Start(t)
	eachRule(t, func(t *testing.T, st strategy, kind func(*redis.Options), rule ration.FailureRule) {
		store, err := ration.Open(client(t, srv.Addr(), kind), ration.WithPrefix(freshName()), ration.WithOnFailure(rule))
		require.NoError(t, err)
		l := st.of(t, store, 400)
		until(t, "an answer", func() bool { d, err := l.AllowN(ctx, "counted", 7); return err == nil && !d.Degraded })
		before, err := l.Peek(ctx, "counted")
		require.NoError(t, err)
		srv.Freeze()
		defer srv.Thaw()
		requireWithin(t, 40*time.Millisecond, "a deadline of 40 ms", func() {
			short, cancel := context.WithTimeout(ctx, 40*time.Millisecond)
			defer cancel()
			d, err := l.Allow(short, "deadline")
			if rule == ration.FailError {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Zero(t, d)
				return
			}
			requireDegraded(t, rule, d, err, ration.ClassTimeout)
		})
		requireWithin(t, standard+budget, "200 calls", func() { crowdOf(t, 200, l, rule, ration.ClassTimeout) })
		for range 3 { // the first run and those of the crowd may not have made three yet
			_, _ = l.Allow(ctx, "other")
		}
		requireWithin(t, standard+budget, "200 calls of which one may be a probe", func() {
			crowdOf(t, 200, l, rule, ration.ClassTimeout)
		})
		srv.Thaw()
		requireNormal(t, slowest, l, "counted", before.Remaining-1)
		require.NoError(t, store.Close())
		until(t, "nothing runs", func() bool { return goroutines("rationgo/ration.(*") == 0 })
	})
}

// requireNormal demands that Redis decides again within a time, and goes on from its own count.
func requireNormal(t *testing.T, within time.Duration, l ration.Limiter, key string, remaining int64) {
	t.Helper()
	requireWithin(t, within, "normal again", func() {
		var d ration.Decision
		sent := int64(0) // that failed, and may have been charged
		until(t, "Redis decides", func() bool {
			var err error
			d, err = l.Allow(ctx, key)
			if cause := errors.Join(err, d.Cause); cause != nil && !strings.Contains(cause.Error(), "not asked") {
				sent++
			}
			return err == nil && !d.Degraded
		})
		require.Equal(t, ration.Redis, d.Source)
		require.NoError(t, d.Cause)
		require.True(t, d.Allowed)
		require.LessOrEqual(t, d.Remaining, remaining)
		require.GreaterOrEqual(t, d.Remaining, remaining-sent)
	})
}

// So after a restart, by a client that stayed.
func TestRestartUnderEveryRule(t *testing.T) {
	srv := redistest.Start(t)
	eachRule(t, func(t *testing.T, st strategy, kind func(*redis.Options), rule ration.FailureRule) {
		opts := []ration.Option{ration.WithPrefix(freshName()), ration.WithOnFailure(rule),
			ration.WithBreaker(ration.Breaker{MaxCooldown: 200 * time.Millisecond})}
		l := st.of(t, open(t, client(t, srv.Addr(), kind, dialOnce), opts...), 400)
		until(t, "an answer", func() bool { d, err := l.Allow(ctx, "subject"); return err == nil && !d.Degraded })
		srv.Stop()
		until(t, "no answer", func() bool { d, err := l.Allow(ctx, "subject"); return err != nil || d.Degraded })
		for range 500 {
			d, err := l.Allow(ctx, "subject")
			if rule == ration.FailLocal(4) { // its 100 units are used up
				require.True(t, d.Degraded)
				continue
			}
			requireDegraded(t, rule, d, err, ration.ClassConnection)
		}
		srv.Restart()
		requireNormal(t, 200*time.Millisecond, l, "subject", 399)
	})
}
