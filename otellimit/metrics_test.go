package otellimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
	"github.com/rationgo/ration/rationtest"
)

func policy(name string, limits ...ration.Limit) ration.Policy {
	return ration.Policy{Name: name, Limits: limits}
}

// call makes a call, whatever comes of it.
func call(t *testing.T, l ration.Limiter, op ration.Op, n int64) (ration.Decision, error) {
	t.Helper()
	return ration.Request{Op: op, Key: hidden, N: n}.Do(ctx, l)
}

// becomes waits for events that may come after the answers.
func (s *scraper) becomes(want string, prefixes ...string) {
	s.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for s.lines(prefixes...) != trimmed(want) && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	require.Equal(s.t, trimmed(want), s.lines(prefixes...))
}

// A known history, as a scrape shows it: every operation, refusals, mistakes, and two policies.
func TestDecisions(t *testing.T) {
	s := newScraper(t)
	store := rationtest.NewRedis(t).Store(ration.WithObserver(s.observer()))
	login, err := ration.NewSlidingLog(store, policy("login", ration.PerMinute(5)))
	require.NoError(t, err)
	api, err := ration.NewFixedWindow(store, policy("api", ration.PerMinute(100)))
	require.NoError(t, err)
	for range 7 {
		_, _ = call(t, login, ration.OpAllow, 1) // 5 pass
	}
	_, _ = call(t, login, ration.OpPeek, 0)
	_, _ = call(t, login, ration.OpRefund, 3)
	_, _ = call(t, login, ration.OpAllowUpTo, 10) // takes 3
	_, _ = call(t, login, ration.OpReset, 0)
	_, _ = call(t, login, ration.OpPeek, 0)
	for range 3 {
		_, _ = call(t, api, ration.OpAllow, 20)
	}
	_, _ = call(t, api, ration.OpAllow, -1)
	_, _ = api.Allow(ctx, "")
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, _ = api.Allow(ended, hidden)
	require.NoError(t, store.Close())
	_, _ = call(t, api, ration.OpAllow, 1)

	require.Equal(t, trimmed(`
		ration_decisions_total{ration_degraded="false",ration_operation="allow",ration_policy="login",ration_source="redis",ration_verdict="allowed"} 5
		ration_decisions_total{ration_degraded="false",ration_operation="allow",ration_policy="login",ration_source="redis",ration_verdict="refused"} 2
		ration_decisions_total{ration_degraded="false",ration_operation="allow_up_to",ration_policy="login",ration_source="redis",ration_verdict="allowed"} 1
		ration_decisions_total{ration_degraded="false",ration_operation="peek",ration_policy="login",ration_source="redis",ration_verdict="refused"} 1
		ration_decisions_total{ration_degraded="false",ration_operation="peek",ration_policy="login",ration_source="redis",ration_verdict="allowed"} 1
		ration_decisions_total{ration_degraded="false",ration_operation="refund",ration_policy="login",ration_source="redis",ration_verdict="done"} 1
		ration_decisions_total{ration_degraded="false",ration_operation="reset",ration_policy="login",ration_verdict="done"} 1
		ration_decisions_total{ration_degraded="false",ration_operation="allow",ration_policy="api",ration_source="redis",ration_verdict="allowed"} 3
		ration_decisions_total{error_type="invalid_cost",ration_degraded="false",ration_operation="allow",ration_policy="api",ration_verdict="error"} 1
		ration_decisions_total{error_type="invalid_key",ration_degraded="false",ration_operation="allow",ration_policy="api",ration_verdict="error"} 1
		ration_decisions_total{error_type="canceled",ration_degraded="false",ration_operation="allow",ration_policy="api",ration_verdict="error"} 1
		ration_decisions_total{error_type="closed",ration_degraded="false",ration_operation="allow",ration_policy="api",ration_verdict="error"} 1
		ration_units_granted_total{ration_degraded="false",ration_policy="login",ration_source="redis"} 8
		ration_units_granted_total{ration_degraded="false",ration_policy="api",ration_source="redis"} 60
		ration_units_refunded_total{ration_degraded="false",ration_policy="login",ration_source="redis"} 3
		ration_decision_duration_seconds_count{ration_operation="allow",ration_policy="login",ration_source="redis"} 7
		ration_decision_duration_seconds_count{ration_operation="allow_up_to",ration_policy="login",ration_source="redis"} 1
		ration_decision_duration_seconds_count{ration_operation="peek",ration_policy="login",ration_source="redis"} 2
		ration_decision_duration_seconds_count{ration_operation="refund",ration_policy="login",ration_source="redis"} 1
		ration_decision_duration_seconds_count{ration_operation="reset",ration_policy="login"} 1
		ration_decision_duration_seconds_count{ration_operation="allow",ration_policy="api",ration_source="redis"} 3
		ration_decision_duration_seconds_count{error_type="invalid_cost",ration_operation="allow",ration_policy="api"} 1
		ration_decision_duration_seconds_count{error_type="invalid_key",ration_operation="allow",ration_policy="api"} 1
		ration_decision_duration_seconds_count{error_type="canceled",ration_operation="allow",ration_policy="api"} 1
		ration_decision_duration_seconds_count{error_type="closed",ration_operation="allow",ration_policy="api"} 1
	`), s.lines("ration_decisions", "ration_units", "ration_decision_duration_seconds_count"))
}

// The errors that are told apart, and nothing of what an error says.
func TestErrorTypes(t *testing.T) {
	s := newScraper(t)
	o := s.observer()
	errs := []error{
		ration.ErrUnavailable, ration.ErrInvalidPolicy, ration.ErrInvalidRequest, context.DeadlineExceeded,
		errors.New(hidden), fmt.Errorf("of %s: %w", hidden, context.Canceled),
	}
	for _, err := range errs {
		o.Decided(ration.DecisionEvent{Policy: "p", Op: ration.OpPeek, Err: err})
	}
	o.Decided(ration.DecisionEvent{Policy: "p", Op: 77, Source: 88, Allowed: true})
	require.Equal(t, trimmed(`
		ration_decisions_total{error_type="unavailable",ration_degraded="false",ration_operation="peek",ration_policy="p",ration_verdict="error"} 1
		ration_decisions_total{error_type="invalid_policy",ration_degraded="false",ration_operation="peek",ration_policy="p",ration_verdict="error"} 1
		ration_decisions_total{error_type="invalid_request",ration_degraded="false",ration_operation="peek",ration_policy="p",ration_verdict="error"} 1
		ration_decisions_total{error_type="deadline_exceeded",ration_degraded="false",ration_operation="peek",ration_policy="p",ration_verdict="error"} 1
		ration_decisions_total{error_type="_OTHER",ration_degraded="false",ration_operation="peek",ration_policy="p",ration_verdict="error"} 1
		ration_decisions_total{error_type="canceled",ration_degraded="false",ration_operation="peek",ration_policy="p",ration_verdict="error"} 1
		ration_decisions_total{ration_degraded="false",ration_operation="_OTHER",ration_policy="p",ration_source="none",ration_verdict="allowed"} 1
	`), s.lines("ration_decisions"))
}

// Latencies fall where they belong, in seconds.
func TestLatency(t *testing.T) {
	s := newScraper(t)
	o := s.observer()
	for _, d := range []time.Duration{time.Microsecond, 1001, 100 * time.Microsecond, 3 * time.Millisecond, time.Second, 2 * time.Second} {
		o.Decided(ration.DecisionEvent{Policy: "p", Op: ration.OpAllow, Source: ration.Redis, Latency: d})
	}
	var want strings.Builder
	for _, bucket := range []struct {
		le    string
		count int
	}{
		{"1e-06", 1}, {"2.5e-06", 2}, {"5e-06", 2}, {"1e-05", 2}, {"2.5e-05", 2}, {"5e-05", 2}, {"0.0001", 3}, {"0.00025", 3}, {"0.0005", 3}, {"0.001", 3},
		{"0.0025", 3}, {"0.005", 4}, {"0.01", 4}, {"0.025", 4}, {"0.05", 4}, {"0.1", 4}, {"0.25", 4}, {"0.5", 4}, {"1", 5}, {"+Inf", 6},
	} {
		fmt.Fprintf(&want, "ration_decision_duration_seconds_bucket{ration_operation=\"allow\",ration_policy=\"p\",ration_source=\"redis\",le=\"%s\"} %d\n", bucket.le, bucket.count)
	}
	require.Equal(t, trimmed(want.String()), s.lines("ration_decision_duration_seconds_bucket"))
	require.Contains(t, s.lines("ration_decision_duration_seconds_sum"), `} 3.003102001`)
}

// A real server goes and comes back: failures by class, the breaker that opens and closes, and
// calls it keeps back, which are no failures of their own.
func TestOutage(t *testing.T) {
	server := redistest.Start(t)
	s := newScraper(t)
	rdb := server.Client(t, func(o *redis.Options) { o.DialerRetries, o.MaxRetries = 1, -1 })
	store, err := ration.Open(rdb, ration.WithObserver(s.observer()), ration.WithTimeout(30*time.Second),
		ration.WithBreaker(ration.Breaker{Failures: 3, Cooldown: time.Hour, MaxCooldown: time.Hour}))
	require.NoError(t, err)
	// The cool-down is short, but only a call ends it.
	quick, err := ration.Open(rdb, ration.WithObserver(s.observer()), ration.WithTimeout(30*time.Second), ration.WithOnFailure(ration.FailOpen),
		ration.WithBreaker(ration.Breaker{Failures: 3, Cooldown: 1, MaxCooldown: 1}))
	require.NoError(t, err)
	stays, err := ration.NewSlidingLog(store, policy("stays", ration.PerMinute(100)))
	require.NoError(t, err)
	heals, err := ration.NewSlidingLog(quick, policy("heals", ration.PerMinute(100)))
	require.NoError(t, err)
	s.becomes(`
		ration_breaker_count{ration_breaker_state="open"} 0
		ration_breaker_count{ration_breaker_state="probing"} 0
	`, "ration_breaker", "ration_redis")
	_, err = call(t, stays, ration.OpAllow, 1)
	require.NoError(t, err)
	server.Stop()
	for range 5 {
		_, err = call(t, stays, ration.OpAllow, 1)
		require.ErrorIs(t, err, ration.ErrUnavailable)
	}
	for range 3 {
		d, err := call(t, heals, ration.OpAllow, 1)
		require.NoError(t, err)
		require.True(t, d.Degraded)
	}
	s.becomes(`
		ration_breaker_count{ration_breaker_state="open"} 2
		ration_breaker_count{ration_breaker_state="probing"} 0
		ration_breaker_changes_total{ration_breaker_state="open"} 2
		ration_redis_failures_total{error_type="connection"} 6
		ration_redis_failed_calls_total{error_type="connection"} 6
	`, "ration_breaker", "ration_redis")
	server.Restart()
	_, err = call(t, heals, ration.OpAllow, 1)
	require.NoError(t, err)
	s.becomes(`
		ration_breaker_count{ration_breaker_state="open"} 1
		ration_breaker_count{ration_breaker_state="probing"} 0
		ration_breaker_changes_total{ration_breaker_state="open"} 2
		ration_breaker_changes_total{ration_breaker_state="probing"} 1
		ration_breaker_changes_total{ration_breaker_state="closed"} 1
		ration_redis_failures_total{error_type="connection"} 6
		ration_redis_failed_calls_total{error_type="connection"} 6
	`, "ration_breaker", "ration_redis")
	require.Equal(t, trimmed(`
		ration_decisions_total{ration_degraded="false",ration_operation="allow",ration_policy="stays",ration_source="redis",ration_verdict="allowed"} 1
		ration_decisions_total{error_type="connection",ration_degraded="false",ration_operation="allow",ration_policy="stays",ration_verdict="error"} 5
		ration_decisions_total{ration_degraded="true",ration_operation="allow",ration_policy="heals",ration_source="failure",ration_verdict="allowed"} 3
		ration_decisions_total{ration_degraded="false",ration_operation="allow",ration_policy="heals",ration_source="redis",ration_verdict="allowed"} 1
		ration_units_granted_total{ration_degraded="false",ration_policy="stays",ration_source="redis"} 1
		ration_units_granted_total{ration_degraded="true",ration_policy="heals",ration_source="failure"} 3
		ration_units_granted_total{ration_degraded="false",ration_policy="heals",ration_source="redis"} 1
	`), s.lines("ration_decisions", "ration_units"))
	require.NoError(t, store.Close())
	require.NoError(t, quick.Close())
}

// Where a probe fails the breaker is open again, and counted once.
func TestBreakerCount(t *testing.T) {
	s := newScraper(t)
	o := s.observer()
	const closed, open, probing = ration.BreakerClosed, ration.BreakerOpen, ration.BreakerProbing
	for _, step := range []struct {
		from, to      ration.BreakerState
		open, probing int
	}{
		{closed, open, 1, 0}, {closed, open, 2, 0}, {open, probing, 1, 1}, {probing, open, 2, 0},
		{open, probing, 1, 1}, {open, probing, 0, 2}, {probing, closed, 0, 1}, {probing, closed, 0, 0},
	} {
		o.BreakerChanged(ration.BreakerEvent{From: step.from, To: step.to})
		require.Equal(t, trimmed(fmt.Sprintf(`
			ration_breaker_count{ration_breaker_state="open"} %d
			ration_breaker_count{ration_breaker_state="probing"} %d
		`, step.open, step.probing)), s.lines("ration_breaker_count"))
	}
	require.Equal(t, trimmed(`
		ration_breaker_changes_total{ration_breaker_state="closed"} 2
		ration_breaker_changes_total{ration_breaker_state="open"} 3
		ration_breaker_changes_total{ration_breaker_state="probing"} 3
	`), s.lines("ration_breaker_changes"))
}

// The denied-key caches of two policies add up, and what is dropped is taken off.
func TestDenyCache(t *testing.T) {
	s := newScraper(t)
	store := rationtest.NewRedis(t).Store(ration.WithObserver(s.observer()), ration.WithDenyCache(1))
	var limiters []ration.Limiter
	for _, name := range []string{"a", "b"} {
		l, err := ration.NewSlidingLog(store, policy(name, ration.PerMinute(1)))
		require.NoError(t, err)
		limiters = append(limiters, l)
		for range 5 { // one passes, one is refused by Redis and stored, three by the cache
			_, err := l.Allow(ctx, hidden)
			require.NoError(t, err)
		}
	}
	require.Equal(t, trimmed(`
		ration_denycache_entries{ration_policy="a"} 1
		ration_denycache_entries{ration_policy="b"} 1
		ration_denycache_stored_total{ration_policy="a"} 1
		ration_denycache_stored_total{ration_policy="b"} 1
		ration_decisions_total{ration_degraded="false",ration_operation="allow",ration_policy="a",ration_source="redis",ration_verdict="allowed"} 1
		ration_decisions_total{ration_degraded="false",ration_operation="allow",ration_policy="a",ration_source="redis",ration_verdict="refused"} 1
		ration_decisions_total{ration_degraded="false",ration_operation="allow",ration_policy="a",ration_source="denycache",ration_verdict="refused"} 3
		ration_decisions_total{ration_degraded="false",ration_operation="allow",ration_policy="b",ration_source="redis",ration_verdict="allowed"} 1
		ration_decisions_total{ration_degraded="false",ration_operation="allow",ration_policy="b",ration_source="redis",ration_verdict="refused"} 1
		ration_decisions_total{ration_degraded="false",ration_operation="allow",ration_policy="b",ration_source="denycache",ration_verdict="refused"} 3
	`), s.lines("ration_denycache", "ration_decisions"))
	for range 2 { // takes the other's place
		_, err := limiters[0].Allow(ctx, hidden+"2")
		require.NoError(t, err)
	}
	require.NoError(t, limiters[1].Reset(ctx, hidden))
	require.Equal(t, trimmed(`
		ration_denycache_entries{ration_policy="a"} 1
		ration_denycache_entries{ration_policy="b"} 0
		ration_denycache_stored_total{ration_policy="a"} 2
		ration_denycache_stored_total{ration_policy="b"} 1
		ration_denycache_evicted_total{ration_policy="a"} 1
	`), s.lines("ration_denycache"))
}

// B127: no number of any metric is below 0, whatever the answers were.
func TestB127NothingNegative(t *testing.T) {
	s := newScraper(t)
	rdb := rationtest.NewRedis(t)
	store := rdb.Store(ration.WithObserver(s.observer()), ration.WithDenyCache(10), ration.WithOnFailure(ration.FailClosed))
	l, err := ration.NewSlidingLog(store, policy("p", ration.PerMinute(2)))
	require.NoError(t, err)
	for _, stopped := range []bool{false, true} {
		if stopped {
			rdb.Stop()
		}
		for _, op := range []ration.Op{ration.OpAllow, ration.OpAllow, ration.OpAllow, ration.OpAllowUpTo, ration.OpPeek, ration.OpRefund} {
			d, err := ration.Request{Op: op, Key: hidden, N: 1}.Do(ctx, l)
			require.NoError(t, err)
			require.Equal(t, d.Allowed, d.RetryAfter == 0)
		}
	}
	require.Contains(t, s.text(), "ration_decision_duration_seconds_sum")
	require.NotRegexp(t, `(?m)^ration_.* -`, s.text())
}

// Both decorators, of limiters in Redis and of one that fails.
func TestShadowAndCompare(t *testing.T) {
	s := newScraper(t)
	o := ration.WithObserver(s.observer())
	rdb := rationtest.NewRedis(t)
	log, err := ration.NewSlidingLog(rdb.Store(), policy("log", ration.PerMinute(1)))
	require.NoError(t, err)
	window, err := ration.NewFixedWindow(rdb.Store(), policy("window", ration.PerMinute(1)))
	require.NoError(t, err)
	both, err := ration.NewCompare(log, window, o, ration.WithName("trial"))
	require.NoError(t, err)
	shadow, err := ration.NewShadow(both, o, ration.WithName("shadow"))
	require.NoError(t, err)
	for range 3 {
		_, err := shadow.Allow(ctx, hidden)
		require.NoError(t, err)
	}
	_, err = window.Refund(ctx, hidden, 1)
	require.NoError(t, err)
	_, err = shadow.Allow(ctx, hidden)
	require.NoError(t, err)
	rdb.Stop()
	_, err = shadow.Allow(ctx, hidden)
	require.NoError(t, err)
	require.Equal(t, trimmed(`
		ration_shadow_let_through_total{ration_operation="allow",ration_policy="shadow"} 3
		ration_shadow_let_through_total{error_type="connection",ration_operation="allow",ration_policy="shadow"} 1
		ration_compare_decisions_total{ration_compare_kind="both_allowed",ration_operation="allow",ration_policy="trial"} 1
		ration_compare_decisions_total{ration_compare_kind="both_refused",ration_operation="allow",ration_policy="trial"} 2
		ration_compare_decisions_total{ration_compare_kind="only_second",ration_operation="allow",ration_policy="trial"} 1
	`), s.lines("ration_shadow", "ration_compare"))
}

// tally adds up what another observer hears of blocks.
type tally struct {
	ration.NopObserver
	mu                         sync.Mutex
	count, taken, unused, lost int64
}

func (l *tally) Leased(e ration.LeaseEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Taken > 0 {
		l.count++
	}
	l.taken, l.unused, l.lost = l.taken+e.Taken, l.unused+e.Unused, l.lost+e.Lost
}

// value is the number of a series that must be there once.
func (s *scraper) value(series string) (n int64) {
	s.t.Helper()
	_, err := fmt.Sscanf(strings.TrimPrefix(s.lines(series), series), "%d", &n)
	require.NoError(s.t, err, s.lines(series))
	return n
}

// Two tiers: what was taken is what was used from memory and what came back; what can't come back, as the
// server is gone, is lost.
func TestLeases(t *testing.T) {
	for _, gone := range []bool{false, true} {
		server := redistest.Start(t)
		rdb := server.Client(t, func(o *redis.Options) { o.DialerRetries, o.MaxRetries = 1, -1 })
		s, heard := newScraper(t), &tally{}
		store, err := ration.Open(rdb, ration.WithObserver(s.observer(), heard), ration.WithTimeout(10*time.Second))
		require.NoError(t, err)
		global, err := ration.NewSlidingLog(store, policy("api", ration.PerHour(1e6)))
		require.NoError(t, err)
		l, err := ration.NewTwoTier(global, ration.WithHold(20*time.Minute), ration.WithInstances(1))
		require.NoError(t, err)
		deadline := time.Now().Add(20 * time.Second)
		for local := int64(0); local < 10; {
			require.True(t, time.Now().Before(deadline), "no block came")
			d, err := call(t, l, ration.OpAllow, 1)
			require.NoError(t, err)
			if d.Source == ration.Lease {
				local++
			}
		}
		if gone {
			server.Stop()
		}
		require.NoError(t, store.Close())
		count, taken := s.value(`ration_lease_count_total{ration_policy="api"}`), s.value(`ration_lease_taken_total{ration_policy="api"}`)
		unused := s.value(`ration_lease_unused_total{ration_policy="api"}`)
		used := s.value(`ration_units_granted_total{ration_degraded="false",ration_policy="api",ration_source="lease"}`)
		require.Equal(t, []int64{heard.count, heard.taken, heard.unused}, []int64{count, taken, unused})
		require.Equal(t, taken, used+unused)
		require.Equal(t, int64(10), used)
		require.Positive(t, unused)
		if gone {
			lost := s.value(`ration_lease_lost_total{ration_policy="api"}`)
			require.Equal(t, heard.lost, lost)
			require.Positive(t, lost) // less than unused, if an earlier block had come back
		} else {
			require.Empty(t, s.lines("ration_lease_lost"))
		}
	}
}
