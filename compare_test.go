package ration_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

func compareOf(t *testing.T, first, second ration.Limiter, opts ...ration.DecoratorOption) (ration.Limiter, *ear) {
	t.Helper()
	heard := &ear{}
	c, err := ration.NewCompare(first, second, append(opts, ration.WithObserver(heard))...)
	require.NoError(t, err)
	return c, heard
}

// A comparison is its first limiter in all that a caller sees, whatever the second does.
func TestCompareIsItsFirst(t *testing.T) {
	var now time.Time
	ring := func(p ration.Policy) (ration.Limiter, error) {
		return ration.NewLocal(p, ration.WithClock(func() time.Time { return now }))
	}
	for name, second := range map[string]ration.Limiter{
		"refuses": answers(ration.Decision{}, nil),
		"allows":  answers(ration.Decision{Allowed: true, Granted: 1}, nil),
		"fails":   answers(ration.Decision{}, errors.New("told to")),
	} {
		t.Run(name, func(t *testing.T) {
			rationtest.Exercise(t, func(t *testing.T) rationtest.Harness {
				now = rationtest.Epoch
				return rationtest.Harness{
					New: func(p ration.Policy) (ration.Limiter, error) {
						first, err := ring(p)
						if err != nil {
							return nil, err
						}
						return ration.NewCompare(first, second)
					},
					Now:     func() time.Time { return now },
					Advance: func(d time.Duration) { now = now.Add(d) },
					Hold:    oneSlot,
					Source:  ration.Ring,
				}
			})
		})
	}
}

// Two limits on the same calls: each kind of difference, and what both said.
func TestCompareTellsKinds(t *testing.T) {
	loose, tight := ration.PerMinute(3), ration.PerHour(2)
	c, heard := compareOf(t, ringOf(t, "loose", loose), ringOf(t, "tight", tight))
	for range 4 {
		must(c.Allow(ctx, "u"))
	}
	must(c.Refund(ctx, "u", 1))
	must(c.AllowUpTo(ctx, "v", 3))
	must(c.AllowN(ctx, "w", 3))
	must(c.Peek(ctx, "w"))
	require.NoError(t, c.Reset(ctx, "w"))
	require.EqualValues(t, 3, must(c.Peek(ctx, "w")).Remaining)
	type told struct {
		op            ration.Op
		n             int64
		kind          ration.CompareKind
		first, second int64 // Granted
	}
	var got []told
	for _, e := range heard.compares {
		require.Equal(t, "loose", e.Name)
		got = append(got, told{e.Op, e.N, e.Kind(), e.First.Granted, e.Second.Granted})
	}
	require.Equal(t, []told{
		{ration.OpAllow, 1, ration.BothAllowed, 1, 1}, {ration.OpAllow, 1, ration.BothAllowed, 1, 1},
		{ration.OpAllow, 1, ration.OnlyFirst, 1, 0}, {ration.OpAllow, 1, ration.BothRefused, 0, 0},
		{ration.OpRefund, 1, 0, 1, 1}, {ration.OpAllowUpTo, 3, ration.BothAllowed, 3, 2},
		{ration.OpAllow, 3, ration.OnlyFirst, 3, 0}, {ration.OpPeek, 0, ration.OnlySecond, 0, 0},
		{ration.OpReset, 0, 0, 0, 0}, {ration.OpPeek, 0, ration.BothAllowed, 0, 0},
	}, got)

	e := heard.compares[3]
	e.First.Latency, e.Second.Latency = 0, 0
	require.Equal(t, loose, e.First.Limit)
	require.Equal(t, tight, e.Second.Limit)
	require.Equal(t, 63*time.Second, e.First.RetryAfter, "of 20 slots the first and one more")
	require.Equal(t, 63*time.Minute, e.Second.RetryAfter)
	require.Zero(t, e.First.Remaining)
	require.EqualValues(t, 2, heard.compares[0].First.Remaining)
	require.EqualValues(t, 1, heard.compares[0].Second.Remaining)
	require.Equal(t, "both allowed, both refused, only first, only second, none", fmt.Sprintf("%v, %v, %v, %v, %v",
		ration.BothAllowed, ration.BothRefused, ration.OnlyFirst, ration.OnlySecond, ration.CompareKind(0)))
}

// Failures of either: the first's is the caller's, the second's is told to nobody but the observer.
func TestCompareOfFailures(t *testing.T) {
	broken := fmt.Errorf("%w: told to", ration.ErrUnavailable)
	c, heard := compareOf(t, answers(ration.Decision{}, broken), ringOf(t, "sound", ration.PerHour(5)))
	_, err := c.Allow(ctx, "u")
	require.Equal(t, broken, err)
	require.Equal(t, broken, c.Reset(ctx, "u"))
	require.Equal(t, broken, heard.compares[0].First.Err)
	require.EqualValues(t, 1, heard.compares[0].Second.Granted, "it's asked all the same")
	require.Zero(t, heard.compares[0].Kind())

	c, heard = compareOf(t, ringOf(t, "sound", ration.PerHour(5)), answers(ration.Decision{Allowed: true, Granted: 9}, broken))
	require.EqualValues(t, 1, must(c.Allow(ctx, "u")).Granted)
	require.NoError(t, c.Reset(ctx, "u"))
	require.Equal(t, broken, heard.compares[0].Second.Err)
	require.Zero(t, heard.compares[0].Second.Granted)
	require.Zero(t, heard.compares[0].Kind())
	require.Equal(t, broken, heard.compares[1].Second.Err)
}

// A mistake or an ended context isn't passed on to the second.
func TestCompareOfMistakes(t *testing.T) {
	asked := 0
	second := ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) {
		asked++
		return ration.Decision{}, nil
	})
	c, heard := compareOf(t, ringOf(t, "sound", ration.PerHour(5)), second)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for want, call := range map[error]func() (ration.Decision, error){
		ration.ErrInvalidKey:  func() (ration.Decision, error) { return c.Allow(ctx, "") },
		ration.ErrInvalidCost: func() (ration.Decision, error) { return c.Refund(ctx, "u", -1) },
		context.Canceled:      func() (ration.Decision, error) { return c.Allow(ended, "u") },
	} {
		_, err := call()
		require.ErrorIs(t, err, want)
	}
	require.Zero(t, asked)
	require.Empty(t, heard.compares)

	// One that ends while the second is asked changes nothing of the first's answer.
	leaving, leave := context.WithCancel(ctx)
	c, heard = compareOf(t, ringOf(t, "sound", ration.PerHour(5)), ration.LimiterFunc(func(ctx context.Context, _ ration.Request) (ration.Decision, error) {
		leave()
		return ration.Decision{}, ctx.Err()
	}))
	require.EqualValues(t, 1, must(c.Allow(leaving, "u")).Granted)
	require.ErrorIs(t, heard.compares[0].Second.Err, context.Canceled)
}

// What each took, and that a caller waits for both.
func TestCompareTellsLatencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(d time.Duration) ration.Limiter {
			return ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) {
				pass(d)
				return ration.Decision{Allowed: true, Granted: 1}, nil
			})
		}
		c, heard := compareOf(t, slow(3*time.Millisecond), slow(5*time.Millisecond))
		began := time.Now()
		must(c.Allow(ctx, "u"))
		require.Equal(t, 8*time.Millisecond, time.Since(began))
		require.Equal(t, 3*time.Millisecond, heard.compares[0].First.Latency)
		require.Equal(t, 5*time.Millisecond, heard.compares[0].Second.Latency)
	})
}

func TestCompareOfManyCallers(t *testing.T) {
	r := rationtest.NewRedis(t)
	store := r.Store()
	policy := ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(50)}}
	first, err := ration.NewFixedWindow(store, policy)
	require.NoError(t, err)
	policy.Limits = []ration.Limit{ration.PerHour(80)}
	second, err := ration.NewSlidingCounter(store, policy)
	require.NoError(t, err)
	c, heard := compareOf(t, first, second)
	var callers sync.WaitGroup
	for range 200 {
		callers.Go(func() {
			if _, err := c.Allow(ctx, "u"); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	var granted [2]int64
	for _, e := range heard.compares {
		granted[0] += e.First.Granted
		granted[1] += e.Second.Granted
	}
	require.Len(t, heard.compares, 200)
	require.Equal(t, [2]int64{50, 80}, granted)
}

// No event has a subject in it.
func TestDecoratorEventsNameNoSubject(t *testing.T) {
	c, heard := compareOf(t, ringOf(t, "p", ration.PerHour(0)), ringOf(t, "q", ration.PerHour(0)))
	must(shadowOf(t, c, ration.WithObserver(heard)).Allow(ctx, "secret-subject"))
	require.Len(t, heard.shadows, 1)
	require.Len(t, heard.compares, 1)
	require.NotContains(t, fmt.Sprintf("%+v %+v", heard.shadows, heard.compares), "secret")
}
