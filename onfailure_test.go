package ration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

// rules are the failure rules; that of the ring halves every limit.
var rules = []ration.FailureRule{ration.FailError, ration.FailOpen, ration.FailClosed, ration.FailLocal(2)}

// hidden is a subject whose name must show nowhere.
const hidden = "nobody-may-read-this"

// failing is a policy with the limits that hold for every subject, and their halves.
type failing struct {
	policy        ration.Policy
	limits, halve []ration.Limit
}

var failingPolicies = map[string]failing{
	"one limit": {
		ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(10)}},
		[]ration.Limit{ration.PerHour(10)}, []ration.Limit{ration.PerHour(5)},
	},
	"several limits": {
		ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(11), ration.PerMinute(4), ration.PerDay(100)}},
		[]ration.Limit{ration.PerHour(11), ration.PerMinute(4), ration.PerDay(100)},
		[]ration.Limit{ration.PerHour(5), ration.PerMinute(2), ration.PerDay(50)},
	},
	"fewer units than instances": {
		ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(1)}},
		[]ration.Limit{ration.PerHour(1)}, []ration.Limit{ration.PerHour(1)},
	},
	"no units": {
		ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(0)}},
		[]ration.Limit{ration.PerHour(0)}, []ration.Limit{ration.PerHour(0)},
	},
	"LimitsFor": {
		ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(1000)}, LimitsFor: limitsFor(ration.PerHour(7))},
		[]ration.Limit{ration.PerHour(7)}, []ration.Limit{ration.PerHour(3)},
	},
	"LimitsFor, several": {
		ration.Policy{Name: "p", LimitsFor: limitsFor(ration.PerMinute(3), ration.PerHour(6))},
		[]ration.Limit{ration.PerMinute(3), ration.PerHour(6)}, []ration.Limit{ration.PerMinute(1), ration.PerHour(3)},
	},
}

func limitsFor(limits ...ration.Limit) func(context.Context, string) ([]ration.Limit, error) {
	return func(context.Context, string) ([]ration.Limit, error) { return limits, nil }
}

// everyRequest is a request of each kind, without a key.
var everyRequest = []ration.Request{
	{Op: ration.OpAllow, N: 1}, {Op: ration.OpAllow, N: 2}, {Op: ration.OpAllow, N: 3}, {Op: ration.OpAllow, N: 5},
	{Op: ration.OpAllow, N: 12}, {Op: ration.OpAllow}, {Op: ration.OpAllowUpTo, N: 1}, {Op: ration.OpAllowUpTo, N: 1000},
	{Op: ration.OpPeek}, {Op: ration.OpRefund, N: 2}, {Op: ration.OpReset},
}

// Every rule holds for every way to fail, every call, strategy and kind of policy, whether the call was
// sent or kept back by the breaker.
func TestOnFailure(t *testing.T) {
	for name, o := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			budget := time.Minute
			if name == "silence" {
				budget = time.Millisecond
			}
			for _, rule := range rules {
				w := offline(t, o.fault)
				opts := []ration.Option{ration.WithTimeout(budget), ration.WithOnFailure(rule)}
				usual, patient := w.store(opts...), w.store(append(opts, noBreaker)...)
				for kind, p := range failingPolicies {
					requireRule(w, patient, "fixed", kind, rule, o.class, p)
					requireRule(w, patient, "log", kind, rule, o.class, p)
					requireRule(w, usual, "buckets", kind, rule, o.class, p)
				}
			}
		})
	}
}

func requireRule(w *world, store *ration.Store, strategy, kind string, rule ration.FailureRule, class ration.FailureClass, p failing) {
	w.Helper()
	l := w.of(strategy, store, p.policy)
	for i, r := range everyRequest {
		r.Key = fmt.Sprint(hidden, kind, i)
		d, err := r.Do(ctx, l)
		what := fmt.Sprintf("%v, %s of %s, %v %d", rule, strategy, kind, r.Op, r.N)
		requireByRule(w.T, what, rule, class, p, r, d, err)
	}
}

// requireByRule holds an answer to a subject's first request against the rule.
func requireByRule(t *testing.T, what string, rule ration.FailureRule, class ration.FailureClass, p failing, r ration.Request, d ration.Decision, err error) {
	t.Helper()
	cause := err
	if rule != ration.FailError && r.Op != ration.OpReset {
		require.NoError(t, err, what)
		require.True(t, d.Degraded, what)
		cause, d.Cause, d.Degraded = d.Cause, nil, false
		p.require(t, what, rule, r, d)
	} else {
		require.Zero(t, d, what)
	}
	require.ErrorIs(t, cause, ration.ErrUnavailable, what)
	require.NotErrorIs(t, cause, context.DeadlineExceeded, what)
	require.Equal(t, class == ration.ClassMisconfigured, errors.Is(cause, ration.ErrMisconfigured), what)
	require.Equal(t, class, ration.ClassOf(cause), "%s: %v", what, cause)
	require.NotContains(t, fmt.Sprintf("%+v %v", d, cause), hidden, what)
}

// require holds a decision, but for the cause, against a rule that makes one.
func (p failing) require(t *testing.T, what string, rule ration.FailureRule, r ration.Request, d ration.Decision) {
	t.Helper()
	if rule == ration.FailClosed {
		require.Positive(t, d.RetryAfter, what)
		require.LessOrEqual(t, d.RetryAfter, 2*time.Second, what)
		d.RetryAfter = 0
		require.Equal(t, ration.Decision{Source: ration.Failure}, d, what)
		return
	}
	limits, source := p.limits, ration.Failure
	if rule == ration.FailLocal(2) {
		limits, source = p.halve, ration.Ring
	}
	room, whole := limits[0].Units, p.limits[0].Units
	for i := range limits {
		room, whole = min(room, limits[i].Units), min(whole, p.limits[i].Units)
	}
	granted, cost := int64(0), max(1, r.N)
	switch {
	case r.Op == ration.OpAllow && r.N <= room:
		granted = r.N
	case r.Op == ration.OpAllowUpTo:
		granted, cost = min(room, r.N), 1
	case r.Op == ration.OpRefund:
		cost = 1
	}
	require.Equal(t, granted, d.Granted, what)
	require.Equal(t, source, d.Source, what)
	require.Equal(t, cost <= room, d.Allowed, what)
	require.Contains(t, limits, d.Limit, what)
	switch {
	case d.Allowed:
		require.Zero(t, d.RetryAfter, what)
	case cost > whole:
		require.Equal(t, ration.Never, d.RetryAfter, what)
	default: // Redis may let it pass when it's back
		require.Positive(t, d.RetryAfter, what)
		require.Less(t, d.RetryAfter, time.Hour, what)
	}
	if source == ration.Ring {
		room -= granted
	}
	require.Equal(t, room, d.Remaining, what)
}

// A caller's mistakes, its ended context and a closed store are errors under every rule, also while Redis
// fails and the breaker is open.
func TestMistakesAreErrorsUnderEveryRule(t *testing.T) {
	ended, end := context.WithCancel(ctx)
	end()
	late, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	defer cancel()
	broken := offline(t, refused)
	_, elsewhere := broken.limiter(broken.store(), ration.PerHour(5)).Allow(ctx, "u")
	require.ErrorIs(t, elsewhere, ration.ErrUnavailable)
	for _, rule := range rules {
		w := offline(t, refused)
		store := w.store(ration.WithOnFailure(rule))
		give := func(limits []ration.Limit, err error) ration.Limiter {
			return w.of("fixed", store, ration.Policy{Name: "p", LimitsFor: func(context.Context, string) ([]ration.Limit, error) { return limits, err }})
		}
		l := w.limiter(store, ration.PerHour(5))
		for _, c := range []struct {
			ctx  context.Context
			l    ration.Limiter
			r    ration.Request
			want error
		}{
			{ctx, l, ration.Request{Op: ration.OpAllow, N: 1}, ration.ErrInvalidKey},
			{ctx, l, ration.Request{Op: ration.OpReset}, ration.ErrInvalidKey},
			{ctx, l, ration.Request{Op: ration.OpAllow, Key: "u", N: -1}, ration.ErrInvalidCost},
			{ctx, l, ration.Request{Op: ration.OpRefund, Key: "u", N: -1}, ration.ErrInvalidCost},
			{ctx, l, ration.Request{Op: 99, Key: "u"}, ration.ErrInvalidRequest},
			{ended, l, ration.Request{Op: ration.OpAllow, Key: "u", N: 1}, context.Canceled},
			{late, l, ration.Request{Op: ration.OpAllow, Key: "u", N: 1}, context.DeadlineExceeded},
			{late, l, ration.Request{Op: ration.OpReset, Key: "u"}, context.DeadlineExceeded},
			{ctx, give(nil, nil), ration.Request{Op: ration.OpAllow, Key: "u", N: 1}, ration.ErrInvalidPolicy},
			{ctx, give([]ration.Limit{ration.PerHour(-1)}, nil), ration.Request{Op: ration.OpPeek, Key: "u"}, ration.ErrInvalidPolicy},
			{ctx, give(nil, elsewhere), ration.Request{Op: ration.OpAllow, Key: "u", N: 1}, elsewhere},
		} {
			for range 5 { // the breaker opens meanwhile
				d, err := c.r.Do(c.ctx, c.l)
				require.ErrorIs(t, err, c.want, rule)
				require.Zero(t, d, rule)
				_, _ = l.Allow(ctx, "u")
			}
		}
		require.NoError(t, store.Close())
		for _, r := range everyRequest {
			r.Key = "u"
			d, err := r.Do(ctx, l)
			require.ErrorIs(t, err, ration.ErrClosed, rule)
			require.NotErrorIs(t, err, ration.ErrUnavailable, rule)
			require.Zero(t, d, rule)
		}
	}
}

// What Redis answers has no trace of a rule, whatever was decided without it before: the answers are
// those of a store that never decided itself.
func TestRedisAnswersAreNeverDegraded(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for strategy := range strategies {
		r := rationtest.NewRedis(t)
		w := &world{T: t, line: &line{}, rdb: r.Client()}
		w.rdb.AddHook(w.line)
		p := ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(9), ration.PerHour(20)}}
		var limiters []ration.Limiter
		for _, rule := range rules {
			store := w.store(ration.WithPrefix(freshPrefix()), ration.WithOnFailure(rule), ration.WithTimeout(time.Minute), noBreaker)
			limiters = append(limiters, w.of(strategy, store, p))
		}
		for range 100 {
			req := everyRequest[rng.IntN(len(everyRequest))]
			req.Key = fmt.Sprint(rng.IntN(3))
			down := rng.IntN(3) == 0
			if down {
				w.spoil(refused)
			}
			want, err := req.Do(ctx, limiters[0])
			require.Equal(t, down, err != nil)
			for i, l := range limiters[1:] {
				d, err := req.Do(ctx, l)
				require.Equal(t, down && req.Op == ration.OpReset, err != nil)
				require.Equal(t, down && req.Op != ration.OpReset, d.Degraded)
				if !down {
					require.Equal(t, want, d, rules[i+1])
				}
			}
			w.spoil(nil)
			r.Advance(time.Duration(rng.IntN(10)) * time.Second)
		}
	}
}

// The share of an instance is the policy's, however many limiters it makes of it, and as in Redis
// nobody else's.
func TestLocalShareIsThePolicys(t *testing.T) {
	w := offline(t, refused)
	store := w.store(ration.WithOnFailure(ration.FailLocal(4)))
	admitted := func(strategy string, name string, units int64, key string) (n int64) {
		for range 3 {
			l := w.of(strategy, store, ration.Policy{Name: name, Limits: []ration.Limit{ration.PerHour(units)}})
			for range 20 {
				n += must(l.Allow(ctx, key)).Granted
			}
		}
		return n
	}
	require.EqualValues(t, 10, admitted("log", "p", 40, "u"))
	require.EqualValues(t, 10, admitted("log", "p", 40, "v"))
	require.EqualValues(t, 10, admitted("log", "q", 40, "u"))
	require.EqualValues(t, 10, admitted("fixed", "p", 40, "u"))
	require.EqualValues(t, 2, admitted("log", "p", 48, "u")) // new numbers hold for what is counted
	require.Zero(t, admitted("log", "p", 40, "u"))
	require.EqualValues(t, 1, admitted("buckets", "p", 3, "u"))
	require.EqualValues(t, 2, admitted("buckets", "p", 11, "w"))
}

// A Reset that Redis has done ends what the ring counts too; one that failed ends at least that.
func TestResetForgetsTheRing(t *testing.T) {
	inBubble(t, func(w *world) {
		l := w.limiter(w.store(noBreaker, ration.WithOnFailure(ration.FailLocal(2))), ration.PerHour(2))
		for _, down := range []fault{nil, refused} {
			w.spoil(refused)
			require.True(w, must(l.Allow(ctx, "u")).Allowed)
			require.False(w, must(l.Allow(ctx, "u")).Allowed)
			w.spoil(down)
			require.Equal(w, down != nil, l.Reset(ctx, "u") != nil)
			w.spoil(refused)
			require.True(w, must(l.Peek(ctx, "u")).Allowed)
		}
	})
}

// A caller's deadline that passes while Redis keeps the call waiting is a failure of Redis, from 10 ms
// on and where a rule decides.
func TestDeadlineThatRedisMakesPass(t *testing.T) {
	p := failingPolicies["several limits"]
	for _, rule := range rules {
		for _, wait := range []time.Duration{time.Nanosecond, 9999 * time.Microsecond, 10 * time.Millisecond, 99 * time.Millisecond} {
			inBubble(t, func(w *world) {
				l := w.of("log", w.store(ration.WithOnFailure(rule), noBreaker), p.policy)
				w.spoil(silence)
				for i, r := range everyRequest {
					r.Key = fmt.Sprint(i)
					short, cancel := context.WithTimeout(ctx, wait)
					began := time.Now()
					d, err := r.Do(short, l)
					cancel()
					require.Equal(w, wait, time.Since(began), rule)
					if rule == ration.FailError || wait < 10*time.Millisecond {
						require.ErrorIs(w, err, context.DeadlineExceeded)
						require.NotErrorIs(w, err, ration.ErrUnavailable)
						require.Zero(w, d)
						continue
					}
					requireByRule(w.T, fmt.Sprint(rule, r.Op), rule, ration.ClassTimeout, p, r, d, err)
				}
			})
		}
	}
}

// lateContext ends later than its deadline says, as all do on a busy machine.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

func TestLateWakeUpIsNoFailure(t *testing.T) {
	for deadline, degraded := range map[time.Duration]bool{9 * time.Millisecond: false, 10 * time.Millisecond: true} {
		inBubble(t, func(w *world) {
			l := w.limiter(w.store(ration.WithOnFailure(ration.FailOpen)), ration.PerHour(5))
			w.spoil(silence)
			long, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			d, err := l.Allow(lateContext{long, time.Now().Add(deadline)}, "u")
			require.Equal(w, degraded, d.Degraded)
			require.Equal(w, !degraded, errors.Is(err, context.DeadlineExceeded))
		})
	}
}

// The end of a context for any other reason never is, however long Redis keeps the call waiting.
func TestCancelledContextIsNoFailure(t *testing.T) {
	for _, rule := range rules {
		inBubble(t, func(w *world) {
			l := w.limiter(w.store(ration.WithOnFailure(rule)), ration.PerHour(5))
			w.spoil(silence)
			leaver, leave := context.WithCancelCause(ctx)
			time.AfterFunc(60*time.Millisecond, func() { leave(context.DeadlineExceeded) })
			d, err := l.Allow(leaver, "u")
			require.Equal(w, context.Canceled, err)
			require.Zero(w, d)
		})
	}
}

func TestOnFailureOptions(t *testing.T) {
	w := offline(t, refused)
	for _, rule := range []ration.FailureRule{ration.FailLocal(0), ration.FailLocal(-1), -3, -4, -1 << 40} {
		_, err := ration.Open(w.rdb, ration.WithOnFailure(rule))
		require.ErrorIs(t, err, ration.ErrInvalidOption)
		require.Equal(t, "invalid", rule.String())
	}
	var names []string
	for _, rule := range rules {
		names = append(names, rule.String())
	}
	require.Equal(t, "error open closed local(2)", strings.Join(names, " "))
	require.Empty(t, ration.ClassOf(nil))
	require.Empty(t, ration.ClassOf(context.Canceled))
}
