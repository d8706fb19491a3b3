package rationtest_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

var (
	hundred = ration.PerMinute(100)
	every   = []ration.Op{ration.OpAllow, ration.OpAllowUpTo, ration.OpPeek, ration.OpRefund, ration.OpReset}
)

// request is one with n units where the operation takes some.
func request(op ration.Op, n int64) ration.Request {
	if op == ration.OpPeek || op == ration.OpReset {
		n = 0
	}
	return ration.Request{Op: op, Key: "u", N: n}
}

// answer is a fresh Fake's answer by one step.
func answer(t testing.TB, s rationtest.Step, r ration.Request) ration.Decision {
	t.Helper()
	d, err := r.Do(ctx, rationtest.NewFake(t, s))
	require.NoError(t, err)
	return d
}

func TestStepsByOperation(t *testing.T) {
	lets := func(granted, remaining int64) ration.Decision {
		return ration.Decision{Allowed: true, Granted: granted, Remaining: remaining, Limit: hundred, ResetAfter: time.Minute, Source: ration.Redis}
	}
	refuses := func(remaining int64, after time.Duration) ration.Decision {
		return ration.Decision{Remaining: remaining, RetryAfter: after, Limit: hundred, ResetAfter: time.Minute, Source: ration.Redis}
	}
	for _, tt := range []struct {
		name string
		step rationtest.Step
		want [4]ration.Decision // AllowN, AllowUpTo, Peek and Refund of 3
	}{
		{"Allowed(7)", rationtest.Allowed(7), [4]ration.Decision{lets(3, 7), lets(3, 7), lets(0, 7), lets(3, 7)}},
		{"Allowed(0)", rationtest.Allowed(0), [4]ration.Decision{lets(3, 0), lets(3, 0), refuses(0, time.Minute), lets(3, 3)}},
		{"Available(7)", rationtest.Available(7), [4]ration.Decision{lets(3, 4), lets(3, 4), lets(0, 7), lets(0, 7)}},
		{"Available(2)", rationtest.Available(2), [4]ration.Decision{refuses(2, time.Minute), lets(2, 0), lets(0, 2), lets(0, 2)}},
		{"Refused(20s)", rationtest.Refused(20 * time.Second), [4]ration.Decision{
			refuses(0, 20*time.Second), refuses(0, 20*time.Second), refuses(0, 20*time.Second), refuses(0, 20*time.Second)}},
	} {
		for i, op := range every[:4] {
			require.Equal(t, tt.want[i], answer(t, tt.step, request(op, 3)), "%s %v", tt.name, op)
		}
		require.Zero(t, answer(t, tt.step, request(ration.OpReset, 0)), tt.name)
	}
	require.Zero(t, answer(t, rationtest.Allowed(100), request(ration.OpPeek, 0)).ResetAfter, "nothing is used")
}

// Whatever a script says, the decision is one that a limiter could make.
func TestStepsAreConsistent(t *testing.T) {
	steps := map[string]rationtest.Step{}
	for _, n := range []int64{0, 1, 5, 100, ration.MaxUnits} {
		steps[fmt.Sprintf("Allowed(%d)", n)] = rationtest.Allowed(n)
		steps[fmt.Sprintf("Available(%d)", n)] = rationtest.Available(n)
	}
	for _, d := range []time.Duration{1, time.Second, time.Hour, ration.MaxWindow, ration.Never} {
		steps[fmt.Sprintf("Refused(%d)", d)] = rationtest.Refused(d)
	}
	for _, rule := range []ration.FailureRule{ration.FailOpen, ration.FailLocal(1), ration.FailLocal(1000)} {
		steps["Failed "+rule.String()] = rationtest.Failed(rule)
	}
	for name, step := range steps {
		for _, limit := range []ration.Limit{hundred, ration.PerSecond(0), ration.PerSecond(1), ration.Per(ration.MaxUnits, ration.MaxWindow)} {
			for _, op := range every[:4] {
				for _, n := range []int64{1, 2, 101, ration.MaxUnits, math.MaxInt64} {
					r := request(op, n)
					d, err := r.Do(ctx, rationtest.NewFake(t, step).WithLimit(limit))
					require.NoError(t, err)
					consistent(t, d, r, fmt.Sprintf("%s under %v, %v of %d: %+v", name, limit, op, n, d))
				}
			}
		}
	}
}

// consistent demands what holds of every decision.
func consistent(t *testing.T, d ration.Decision, r ration.Request, what string) {
	asks := r.Op == ration.OpAllow || r.Op == ration.OpAllowUpTo
	require.True(t, d.Remaining >= 0 && d.Remaining <= d.Limit.Units && d.Limit.Units <= ration.MaxUnits, what)
	require.True(t, d.Granted >= 0 && d.Granted <= r.N && d.Granted <= d.Limit.Units, what)
	require.Equal(t, d.Allowed, d.RetryAfter == 0, what)
	require.GreaterOrEqual(t, d.RetryAfter, time.Duration(0), what)
	require.GreaterOrEqual(t, d.ResetAfter, time.Duration(0), what)
	cost := int64(1)
	if r.Op == ration.OpAllow {
		cost = r.N
		require.True(t, d.Granted == 0 || d.Granted == r.N, what)
	}
	if asks {
		require.Equal(t, d.Allowed, d.Granted > 0, what)
	} else {
		require.Equal(t, d.Allowed, d.Remaining > 0, what)
	}
	if !d.Allowed && !d.Degraded {
		require.Equal(t, cost > d.Limit.Units, d.RetryAfter == ration.Never, what)
	}
	if asks && d.Source == ration.Redis {
		require.LessOrEqual(t, d.Granted+d.Remaining, d.Limit.Units, what)
		require.Equal(t, d.Remaining == d.Limit.Units, d.ResetAfter == 0, what)
	}
}

// A failure rule answers as that of a store whose Redis is gone.
func TestFailedIsTheRule(t *testing.T) {
	for _, rule := range []ration.FailureRule{ration.FailError, ration.FailOpen, ration.FailClosed, ration.FailLocal(4)} {
		rdb := rationtest.NewRedis(t)
		rdb.Stop()
		real, err := ration.NewFixedWindow(rdb.Store(ration.WithOnFailure(rule)), policyOf(hundred))
		require.NoError(t, err)
		f := rationtest.NewFake(t, rationtest.Always(rationtest.Failed(rule)))
		for _, op := range every {
			for _, n := range []int64{1, 20, 101} {
				want, wantErr := request(op, n).Do(ctx, real)
				got, err := request(op, n).Do(ctx, f)
				require.Equal(t, wantErr != nil, err != nil)
				if err != nil {
					require.ErrorIs(t, err, ration.ErrUnavailable)
					require.Equal(t, ration.ClassConnection, ration.ClassOf(err))
					require.Equal(t, ration.Decision{}, got)
					continue
				}
				require.Equal(t, ration.ClassConnection, ration.ClassOf(got.Cause))
				require.NotContains(t, got.Cause.Error(), "u1")
				if rule == ration.FailLocal(4) { // by two clocks: these may differ by a moment
					want.RetryAfter, got.RetryAfter = want.RetryAfter.Round(10*time.Second), got.RetryAfter.Round(10*time.Second)
					want.ResetAfter, got.ResetAfter = want.ResetAfter.Round(10*time.Second), got.ResetAfter.Round(10*time.Second)
				}
				want.Cause, got.Cause = nil, nil
				require.Equal(t, want, got, "%v %v %d", rule, op, n)
			}
		}
	}
	_, err := rationtest.NewFake(t, rationtest.Unavailable()).Allow(ctx, "u")
	require.ErrorIs(t, err, ration.ErrUnavailable)
}

func TestAnswersOfOnesOwn(t *testing.T) {
	boom := errors.New("boom")
	f := rationtest.NewFake(t,
		rationtest.Answer(passes, nil),
		rationtest.Answer(ration.Decision{}, boom),
		rationtest.AnswerFunc(func(ctx context.Context, r ration.Request) (ration.Decision, error) {
			require.Equal(t, ration.Request{Op: ration.OpAllowUpTo, Key: "v", N: 9}, r)
			<-ctx.Done()
			return ration.Decision{}, ctx.Err()
		}),
		rationtest.Answer(ration.Decision{}, boom),
	)
	d, err := f.Allow(ctx, "u")
	require.NoError(t, err)
	require.Equal(t, passes, d)
	_, err = f.Allow(ctx, "u")
	require.Equal(t, boom, err)
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, err = f.AllowUpTo(short, "v", 9)
	require.Equal(t, context.DeadlineExceeded, err)
	require.Equal(t, boom, f.Reset(ctx, "u"))
}

// Mistakes and ended contexts get the errors that a real limiter gives, and take no step.
func TestFakeFindsMistakes(t *testing.T) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	f := rationtest.NewFake(t, rationtest.Allowed(4))
	for _, op := range every {
		_, err := ration.Request{Op: op, Key: "", N: 1}.Do(ctx, f)
		require.ErrorIs(t, err, ration.ErrInvalidKey)
		_, err = ration.Request{Op: op, Key: "", N: -1}.Do(ended, f)
		require.Equal(t, context.Canceled, err)
	}
	for _, op := range []ration.Op{ration.OpAllow, ration.OpAllowUpTo, ration.OpRefund} {
		_, err := ration.Request{Op: op, Key: "u", N: -1}.Do(ctx, f)
		require.ErrorIs(t, err, ration.ErrInvalidCost)
	}
	require.Len(t, f.Calls(), 13)
	rationtest.RequireSequence(t, f, "u", "A")
}

func TestCallForNothingIsAPeek(t *testing.T) {
	for _, op := range []ration.Op{ration.OpAllow, ration.OpAllowUpTo, ration.OpRefund} {
		d := answer(t, rationtest.Allowed(4), ration.Request{Op: op, Key: "u"})
		require.Equal(t, ration.Decision{Allowed: true, Remaining: 4, Limit: hundred, ResetAfter: time.Minute, Source: ration.Redis}, d)
	}
}

func TestFakeRemembersItsCalls(t *testing.T) {
	f := rationtest.NewFake(t, rationtest.Always(rationtest.Allowed(9)))
	require.Empty(t, f.Calls())
	f.Allow(ctx, "a")
	f.AllowN(ctx, "b", 0)
	f.AllowUpTo(ctx, "a", 7)
	f.Peek(ctx, "c")
	f.Refund(ctx, "a", 2)
	f.AllowN(ctx, "a", -1)
	require.NoError(t, f.Reset(ctx, "a"))
	calls := f.Calls()
	require.Equal(t, []ration.Request{
		{Op: ration.OpAllow, Key: "a", N: 1}, {Op: ration.OpAllow, Key: "b"}, {Op: ration.OpAllowUpTo, Key: "a", N: 7}, {Op: ration.OpPeek, Key: "c"},
		{Op: ration.OpRefund, Key: "a", N: 2}, {Op: ration.OpAllow, Key: "a", N: -1}, {Op: ration.OpReset, Key: "a"},
	}, calls)
	calls[0].Key = "z"
	require.Equal(t, "a", f.Calls()[0].Key, "the list is a copy")
}

func TestScriptIsUsedUp(t *testing.T) {
	var f *rationtest.Fake
	r := record(t, func(t testing.TB) {
		f = rationtest.NewFake(t, rationtest.Allowed(4))
		rationtest.RequireSequence(t, f, "u", "A")
		d, err := f.AllowN(ctx, "user-42", 3)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "user-42")
		require.Equal(t, ration.Decision{}, d)
	})
	want := []string{"rationtest: the Fake has no step left for call 2, AllowN of 3"}
	require.Equal(t, want, r.errors)
	_, err := f.Allow(ctx, "u")
	require.Error(t, err)
	require.Equal(t, want, r.errors, "a call after the test is no matter of the test")
	require.Len(t, f.Calls(), 3)
}

func TestAlways(t *testing.T) {
	requireSilent(t, func(t testing.TB) {
		f := rationtest.NewFake(t, rationtest.Refused(time.Second), rationtest.Always(rationtest.Allowed(9)))
		rationtest.RequireSequence(t, f, "u", "RAAAA")
		rationtest.NewFake(t, rationtest.Always(rationtest.Allowed(9))) // never asked
	})
}

func TestUnusedSteps(t *testing.T) {
	r := record(t, func(t testing.TB) {
		f := rationtest.NewFake(t, rationtest.Allowed(4), rationtest.Allowed(3), rationtest.Always(rationtest.Refused(time.Second)))
		f.For("v", rationtest.Allowed(1), rationtest.Allowed(0))
		rationtest.RequireSequence(t, f, "u", "A")
		rationtest.RequireSequence(t, f, "v", "A")
	})
	require.Equal(t, []string{"rationtest: steps of the Fake that no call took: 2 (of calls there were 2)"}, r.errors)
	r.finish()
	require.Len(t, r.errors, 1, "once")
}

func TestScriptsOfTheirOwn(t *testing.T) {
	r := record(t, func(t testing.TB) {
		f := rationtest.NewFake(t, rationtest.Always(rationtest.Allowed(9))).For("bad", rationtest.Refused(time.Minute))
		f.For("bad", rationtest.Allowed(1))
		rationtest.RequireSequence(t, f, "good", "AA")
		rationtest.RequireSequence(t, f, "bad", "RA")
		f.Allow(ctx, "bad")
	})
	require.Equal(t, []string{"rationtest: the Fake has no step left for call 5, AllowN of 1"}, r.errors)
}

func TestFakeLimit(t *testing.T) {
	limit := ration.Limit{Name: "login", Units: 5, Window: time.Hour}
	f := rationtest.NewFake(t, rationtest.Always(rationtest.Available(5))).WithLimit(limit)
	require.Equal(t, limit, must(f.Allow(ctx, "u")).Limit)
	d := must(f.AllowN(ctx, "u", 6))
	require.Equal(t, ration.Limit{Name: "login", Units: 6, Window: time.Hour}, d.Limit, "a later 6 may pass, it says")
	f = rationtest.NewFake(t, rationtest.Refused(time.Hour), rationtest.Refused(ration.Never))
	require.Equal(t, ration.PerHour(100), must(f.Allow(ctx, "u")).Limit)
	require.Equal(t, ration.PerMinute(6), must(f.AllowN(ctx, "u", 7)).Limit)
}

func must(d ration.Decision, err error) ration.Decision {
	if err != nil {
		panic(err)
	}
	return d
}

func TestBadScripts(t *testing.T) {
	for want, steps := range map[string][]rationtest.Step{
		"step 1 of the Fake: Allowed needs 0 to 1<<53 remaining units":                                 {rationtest.Allowed(-1)},
		"step 2 of the Fake: Available needs 0 to 1<<53 units":                                         {rationtest.Allowed(1), rationtest.Available(1<<53 + 1)},
		"step 1 of the Fake: Refused needs a time above 0 and up to ration.MaxWindow, or ration.Never": {rationtest.Refused(0)},
		"step 1 of the Fake: AnswerFunc needs a function, not nil":                                     {rationtest.AnswerFunc(nil)},
		"step 2 of the Fake: the zero Step is none":                                                    {rationtest.Allowed(1), {}},
		"step 1 of the Fake is Always, so later ones would never be used":                              {rationtest.Always(rationtest.Allowed(1)), rationtest.Allowed(0)},
		"step 1 of the Fake: ration: invalid option: WithOnFailure: not a failure rule":                {rationtest.Failed(ration.FailLocal(0))},
	} {
		requireFatal(t, "rationtest: "+want, func(t testing.TB) { rationtest.NewFake(t, steps...) })
		requireFatal(t, "rationtest: "+want, func(t testing.TB) { rationtest.NewFake(t).For("u", steps...) })
	}
	for _, bad := range []ration.Limit{ration.PerMinute(-1), ration.PerMinute(1<<53 + 1), ration.Per(1, 0), ration.Per(1, ration.MaxWindow+1)} {
		r := record(t, func(t testing.TB) { rationtest.NewFake(t).WithLimit(bad) })
		require.Len(t, r.fatals, 1)
	}
}

func TestFakeIsSafeForConcurrentUse(t *testing.T) {
	steps := make([]rationtest.Step, 0, 100)
	for i := range 50 {
		steps = append(steps, rationtest.Allowed(int64(i)), rationtest.Refused(time.Second))
	}
	f := rationtest.NewFake(t, steps...).For("own", rationtest.Always(rationtest.Failed(ration.FailOpen)))
	var allowed atomic.Int64
	var seen sync.Map
	var callers sync.WaitGroup
	for range 100 {
		callers.Go(func() {
			d := must(f.Allow(ctx, "u"))
			if d.Allowed {
				allowed.Add(1)
				_, twice := seen.LoadOrStore(d.Remaining, true)
				require.False(t, twice)
			}
			must(f.Allow(ctx, "own"))
			f.Calls()
		})
	}
	callers.Wait()
	require.EqualValues(t, 50, allowed.Load())
	require.Len(t, f.Calls(), 200)
}
