package ration_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

func TestZeroDecisionRefuses(t *testing.T) {
	var d ration.Decision
	require.False(t, d.Allowed)
	require.Zero(t, d.Granted)
	require.Equal(t, "none", d.Source.String())
}

// A decorator sees every method as one Request, and Do passes it on.
func TestLimiterFunc(t *testing.T) {
	var seen []ration.Request
	fail := errors.New("told to")
	inner := ration.LimiterFunc(func(_ context.Context, r ration.Request) (ration.Decision, error) {
		seen = append(seen, r)
		return ration.Decision{Allowed: true, Granted: r.N}, fail
	})
	outer := ration.LimiterFunc(func(ctx context.Context, r ration.Request) (ration.Decision, error) { return r.Do(ctx, inner) })
	d, err := outer.Allow(ctx, "a")
	require.ErrorIs(t, err, fail)
	require.EqualValues(t, 1, d.Granted)
	_, _ = outer.AllowN(ctx, "b", 2)
	_, _ = outer.AllowUpTo(ctx, "c", 3)
	_, _ = outer.Peek(ctx, "d")
	_, _ = outer.Refund(ctx, "e", 5)
	require.ErrorIs(t, outer.Reset(ctx, "f"), fail)
	require.Equal(t, []ration.Request{
		{Op: ration.OpAllow, Key: "a", N: 1}, {Op: ration.OpAllow, Key: "b", N: 2}, {Op: ration.OpAllowUpTo, Key: "c", N: 3},
		{Op: ration.OpPeek, Key: "d"}, {Op: ration.OpRefund, Key: "e", N: 5}, {Op: ration.OpReset, Key: "f"},
	}, seen)
	_, err = ration.Request{Op: 99, Key: "a"}.Do(ctx, inner)
	require.ErrorIs(t, err, ration.ErrInvalidRequest)
}

func TestNames(t *testing.T) {
	require.Equal(t, "5/1m0s", ration.PerMinute(5).String())
	require.Equal(t, "five", ration.Limit{Name: "five", Units: 5, Window: time.Minute}.String())
	require.Equal(t, ration.Per(3, time.Second), ration.PerSecond(3))
	require.Equal(t, ration.Per(3, time.Hour), ration.PerHour(3))
	require.Equal(t, ration.Per(3, 24*time.Hour), ration.PerDay(3))
	require.Equal(t, "redis lease ring denycache failure", func() string {
		s := ""
		for source := ration.Redis; source <= ration.Failure; source++ {
			s += " " + source.String()
		}
		return s[1:]
	}())
	require.Equal(t, "AllowN AllowUpTo Peek Refund Reset none", func() string {
		s := ""
		for op := ration.OpAllow; op <= ration.OpReset+1; op++ {
			s += " " + op.String()
		}
		return s[1:]
	}())
}

func TestOptions(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for _, bad := range []ration.Option{
		ration.WithPrefix(""), ration.WithPrefix("a{b"), ration.WithPrefix("a}b"), ration.WithPrefix("a b"), ration.WithPrefix("a%b"),
		ration.WithPrefix("a\nb"), ration.WithPrefix(string(make([]byte, 65))), ration.WithTimeout(0), ration.WithTimeout(-time.Second),
		ration.WithTimeout(time.Microsecond), ration.WithBatch(ration.Batch{Items: -1}), ration.WithBatch(ration.Batch{Bytes: -1}),
		ration.WithBatch(ration.Batch{Runs: -1}),
	} {
		store, err := ration.Open(rdb, bad)
		require.ErrorIs(t, err, ration.ErrInvalidOption)
		require.Nil(t, store)
	}
	store, err := ration.Open(rdb, nil, ration.WithPrefix("rl*[x]"), ration.WithTimeout(time.Millisecond), ration.WithClientTime(), nil,
		ration.WithBatch(ration.Batch{}), ration.WithoutBatching())
	require.NoError(t, err)
	require.NoError(t, store.Close())
}

// A prefix is taken literally, glob characters and colons too.
func TestPrefixIsLiteral(t *testing.T) {
	b := backends["miniredis"](t)
	for _, prefix := range []string{"rl*[x]", "rlab", "a:b", "a"} {
		l, err := ration.NewFixedWindow(b.store(t, ration.WithPrefix(prefix)), ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(1)}})
		require.NoError(t, err)
		require.True(t, must(l.Allow(ctx, "u")).Allowed)
		require.Contains(t, b.keys(t), prefix+":p:fw1:3600000000:{u}")
	}
}

// scripted answers with one decision after another.
func scripted(answers ...ration.Decision) (ration.Limiter, *int) {
	calls := 0
	return ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) {
		calls++
		return answers[min(calls, len(answers))-1], nil
	}), &calls
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := func(d time.Duration) ration.Decision { return ration.Decision{RetryAfter: d} }
		yes := ration.Decision{Allowed: true, Granted: 1}
		began := time.Now()
		waited := func() time.Duration {
			defer func() { began = time.Now() }()
			return time.Since(began)
		}

		l, calls := scripted(in(3*time.Second), in(time.Second), yes)
		require.True(t, must(ration.Wait(ctx, l, "u", 1)).Allowed)
		require.Equal(t, 4*time.Second, waited())
		require.Equal(t, 3, *calls)

		l, calls = scripted(in(ration.Never))
		d, err := ration.Wait(ctx, l, "u", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		require.Equal(t, ration.Never, d.RetryAfter)
		require.Zero(t, waited())
		require.Equal(t, 1, *calls)

		// Not before the deadline: refused at once.
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		l, _ = scripted(in(2*time.Second), yes)
		d, err = ration.Wait(short, l, "u", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		require.Equal(t, 2*time.Second, d.RetryAfter)
		require.Zero(t, waited())

		// Just at the deadline the context may win, but nothing is let through late.
		l, _ = scripted(in(500*time.Millisecond), in(time.Second), yes)
		d, err = ration.Wait(short, l, "u", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		require.Equal(t, 500*time.Millisecond, waited())

		// A context that ends during the sleep ends the wait.
		cancelled, stop := context.WithCancel(ctx)
		time.AfterFunc(time.Minute, stop)
		l, _ = scripted(in(time.Hour), yes)
		d, err = ration.Wait(cancelled, l, "u", 1)
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, d.Allowed)
		require.Equal(t, time.Minute, waited())

		// A refusal that names no time doesn't spin.
		l, calls = scripted(in(0), in(0), yes)
		require.True(t, must(ration.Wait(ctx, l, "u", 1)).Allowed)
		require.Equal(t, 2*time.Millisecond, waited())
		require.Equal(t, 3, *calls)

		fail := errors.New("told to")
		broken := ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) { return ration.Decision{}, fail })
		_, err = ration.Wait(ctx, broken, "u", 1)
		require.ErrorIs(t, err, fail)
	})
}
