package ration_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

// ear is an observer of decorators.
type ear struct {
	ration.NopObserver
	mu       sync.Mutex
	shadows  []ration.ShadowEvent
	compares []ration.CompareEvent
}

func (e *ear) Shadowed(s ration.ShadowEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shadows = append(e.shadows, s)
}

func (e *ear) Compared(c ration.CompareEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.compares = append(e.compares, c)
}

// takeShadows gives what was heard since the last time.
func (e *ear) takeShadows() []ration.ShadowEvent {
	e.mu.Lock()
	defer e.mu.Unlock()
	heard := e.shadows
	e.shadows = nil
	return heard
}

func shadowOf(t *testing.T, l ration.Limiter, opts ...ration.DecoratorOption) ration.Limiter {
	t.Helper()
	s, err := ration.NewShadow(l, opts...)
	require.NoError(t, err)
	return s
}

// answers is a limiter that always gives the same.
func answers(d ration.Decision, err error) ration.Limiter {
	return ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) { return d, err })
}

// ringOf is a limiter in this process whose clock stands at rationtest.Epoch.
func ringOf(t *testing.T, name string, limits ...ration.Limit) ration.Limiter {
	t.Helper()
	l, err := ration.NewLocal(ration.Policy{Name: name, Limits: limits}, ration.WithClock(func() time.Time { return rationtest.Epoch }))
	require.NoError(t, err)
	return l
}

// Every strategy in the shadow lets all pass, and charges what it would charge otherwise.
func TestShadowRefusesNobody(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(3), ration.PerHour(100))
		heard := &ear{}
		shadow := shadowOf(t, tl.l, ration.WithObserver(heard))
		for i := range 3 {
			d := must(shadow.Allow(ctx, "u"))
			require.False(t, d.Shadowed)
			require.EqualValues(t, 2-i, d.Remaining)
		}
		require.Empty(t, heard.takeShadows(), "nothing but what the limiter would have stopped")
		stored := tl.stored()
		refused := must(tl.l.Peek(ctx, "u"))
		for range 5 {
			d := must(shadow.AllowN(ctx, "u", 2))
			require.True(t, d.Allowed)
			require.True(t, d.Shadowed)
			require.EqualValues(t, 2, d.Granted)
			require.Zero(t, d.Remaining)
			require.Zero(t, d.RetryAfter)
			require.Equal(t, refused.ResetAfter, d.ResetAfter)
			require.Equal(t, ration.PerMinute(3), d.Limit)
			require.Equal(t, ration.Redis, d.Source)
			require.False(t, d.Degraded)
			require.Len(t, d.Limits, 2)
			require.Zero(t, d.Limits[0].RetryAfter)
			require.EqualValues(t, 97, d.Limits[1].Remaining)
		}
		require.Equal(t, stored, tl.stored(), "what was refused isn't charged")
		events := heard.takeShadows()
		require.Len(t, events, 5)
		require.Positive(t, events[0].RetryAfter)
		events[0].RetryAfter = 0
		require.Equal(t, ration.ShadowEvent{Name: "p", Op: ration.OpAllow, N: 2, Limit: ration.PerMinute(3)}, events[0])
	})
}

// Each method's answer, of a limit of 5 with 2 left and with none.
func TestShadowOfEachMethod(t *testing.T) {
	heard := &ear{}
	shadow := shadowOf(t, ringOf(t, "api", ration.PerMinute(5)), ration.WithObserver(heard), ration.WithName("trial"))
	must(shadow.AllowN(ctx, "u", 3))
	d := must(shadow.AllowUpTo(ctx, "u", 4))
	require.EqualValues(t, 4, d.Granted, "to cut it would be to enforce")
	require.True(t, d.Shadowed)
	require.Equal(t, []ration.ShadowEvent{{Name: "trial", Op: ration.OpAllowUpTo, N: 4, Granted: 2, Limit: ration.PerMinute(5)}}, heard.takeShadows())

	d = must(shadow.AllowUpTo(ctx, "u", 4))
	require.EqualValues(t, 4, d.Granted)
	for _, d := range []ration.Decision{must(shadow.Peek(ctx, "u")), must(shadow.AllowN(ctx, "u", 0)), must(shadow.AllowN(ctx, "u", 99))} {
		require.True(t, d.Allowed && d.Shadowed)
		require.Zero(t, d.RetryAfter)
		require.Zero(t, d.Remaining)
	}
	require.Zero(t, must(shadow.Peek(ctx, "u")).Granted)
	require.Equal(t, ration.Never, heard.takeShadows()[3].RetryAfter, "of 99 units")

	d = must(shadow.Refund(ctx, "u", 3))
	require.EqualValues(t, 3, d.Granted)
	require.EqualValues(t, 3, d.Remaining)
	require.False(t, d.Shadowed)
	require.NoError(t, shadow.Reset(ctx, "u"))
	require.EqualValues(t, 5, must(shadow.Peek(ctx, "u")).Remaining)
	require.Empty(t, heard.takeShadows())

	// A Refund may leave none, where Units have become fewer; it says what it gave back.
	d = must(shadowOf(t, answers(ration.Decision{Granted: 2, RetryAfter: time.Second}, nil)).Refund(ctx, "u", 7))
	require.Equal(t, ration.Decision{Allowed: true, Granted: 2, Shadowed: true}, d)
}

func TestShadowHidesFailures(t *testing.T) {
	for _, cause := range []error{fmt.Errorf("%w: told to", ration.ErrUnavailable), ration.ErrClosed, errors.New("LimitsFor's own"), context.DeadlineExceeded} {
		heard := &ear{}
		shadow := shadowOf(t, answers(ration.Decision{}, cause), ration.WithObserver(heard))
		want := ration.Decision{Allowed: true, Granted: 7, Source: ration.Failure, Degraded: true, Cause: cause}
		require.Equal(t, want, must(shadow.AllowN(ctx, "u", 7)))
		require.Equal(t, want, must(shadow.AllowUpTo(ctx, "u", 7)))
		want.Granted = 0
		require.Equal(t, want, must(shadow.Peek(ctx, "u")))
		require.Equal(t, want, must(shadow.Refund(ctx, "u", 7)))
		require.Equal(t, cause, shadow.Reset(ctx, "u"), "it can't have been done")
		events := heard.takeShadows()
		require.Len(t, events, 5)
		require.Equal(t, ration.ShadowEvent{Op: ration.OpAllow, N: 7, Err: cause}, events[0])
		require.Equal(t, ration.ShadowEvent{Op: ration.OpReset, Err: cause}, events[4])
		must(shadowOf(t, answers(ration.Decision{}, cause)).Allow(ctx, "u")) // nobody hears
	}
}

// A failure rule that refuses is a refusal, too.
func TestShadowOfFailClosed(t *testing.T) {
	w := offline(t, refused)
	d := must(shadowOf(t, w.limiter(w.store(ration.WithOnFailure(ration.FailClosed)), ration.PerHour(1))).Allow(ctx, "u"))
	require.True(t, d.Allowed && d.Shadowed && d.Degraded)
	require.ErrorIs(t, d.Cause, ration.ErrUnavailable)
	require.Zero(t, d.RetryAfter)
	require.EqualValues(t, 1, d.Granted)
}

func TestShadowLeavesMistakesErrors(t *testing.T) {
	heard := &ear{}
	shadow := shadowOf(t, ringOf(t, "api", ration.PerMinute(5)), ration.WithObserver(heard))
	for want, call := range map[error]func() (ration.Decision, error){
		ration.ErrInvalidKey:  func() (ration.Decision, error) { return shadow.Allow(ctx, "") },
		ration.ErrInvalidCost: func() (ration.Decision, error) { return shadow.AllowN(ctx, "u", -1) },
		context.Canceled: func() (ration.Decision, error) {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			return shadow.Allow(ended, "u")
		},
		ration.ErrInvalidPolicy: func() (ration.Decision, error) {
			return shadowOf(t, answers(ration.Decision{}, fmt.Errorf("%w: by LimitsFor", ration.ErrInvalidPolicy))).Allow(ctx, "u")
		},
		ration.ErrInvalidRequest: func() (ration.Decision, error) {
			return shadow.(ration.LimiterFunc)(ctx, ration.Request{Op: 99, Key: "u"})
		},
	} {
		d, err := call()
		require.ErrorIs(t, err, want)
		require.Equal(t, ration.Decision{}, d)
	}
	require.Empty(t, heard.takeShadows())
}

// The limiter's own slice isn't written to.
func TestShadowCopiesLimits(t *testing.T) {
	own := []ration.LimitState{{RetryAfter: time.Second}, {RetryAfter: time.Minute}}
	d := must(shadowOf(t, answers(ration.Decision{RetryAfter: time.Minute, Limits: own}, nil)).Allow(ctx, "u"))
	require.Equal(t, make([]ration.LimitState, 2), d.Limits)
	require.Equal(t, time.Minute, own[1].RetryAfter)
}

func TestShadowOfManyCallers(t *testing.T) {
	heard := &ear{}
	r := rationtest.NewRedis(t)
	l, err := ration.NewFixedWindow(r.Store(), ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(50)}})
	require.NoError(t, err)
	shadow := shadowOf(t, l, ration.WithObserver(heard))
	var callers sync.WaitGroup
	for range 200 {
		callers.Go(func() {
			if d, err := shadow.Allow(ctx, "u"); err != nil || !d.Allowed || d.Granted != 1 {
				t.Error(d, err)
			}
		})
	}
	callers.Wait()
	require.Len(t, heard.takeShadows(), 150)
}

// The options of both decorators.
func TestDecoratorOptions(t *testing.T) {
	l := ringOf(t, "api", ration.PerMinute(1))
	two := func(l ration.Limiter, opts ...ration.DecoratorOption) (ration.Limiter, error) {
		return ration.NewCompare(l, l, opts...)
	}
	for _, make := range []func(ration.Limiter, ...ration.DecoratorOption) (ration.Limiter, error){ration.NewShadow, two} {
		for _, none := range []ration.Limiter{nil, ration.LimiterFunc(nil)} {
			made, err := make(none)
			require.ErrorIs(t, err, ration.ErrInvalidClient)
			require.Nil(t, made)
		}
		for _, bad := range []ration.DecoratorOption{ration.WithObserver((*ear)(nil)), ration.WithName("a b"), ration.WithName(strings.Repeat("a", 65))} {
			made, err := make(l, bad)
			require.ErrorIs(t, err, ration.ErrInvalidOption)
			require.Nil(t, made)
		}
		_, err := make(l, nil, ration.WithObserver(nil), ration.WithName(""))
		require.NoError(t, err)
	}
	_, err := ration.NewCompare(l, nil)
	require.ErrorIs(t, err, ration.ErrInvalidClient)
}

// The name in events is that of the policy, where the limiter has one.
func TestDecoratorNames(t *testing.T) {
	store := rationtest.NewRedis(t).Store()
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	policy := ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(0)}}
	global, err := ration.NewSlidingLog(store, policy)
	require.NoError(t, err)
	tier, err := ration.NewTwoTier(global, ration.WithInstances(1))
	require.NoError(t, err)
	for want, limiters := range map[string][]ration.Limiter{
		"p": {global, tier, ringOf(t, "p", ration.PerHour(0))},
		"":  {shadowOf(t, global), answers(ration.Decision{}, nil)},
	} {
		for _, l := range limiters {
			heard := &ear{}
			must(shadowOf(t, answers(ration.Decision{}, nil), ration.WithObserver(heard), ration.WithName("x")).Allow(ctx, "u"))
			require.Equal(t, "x", heard.takeShadows()[0].Name)
			c, err := ration.NewCompare(l, l, ration.WithObserver(heard))
			require.NoError(t, err)
			must(c.Allow(ctx, "u"))
			require.Equal(t, want, heard.compares[0].Name)
		}
	}
}
