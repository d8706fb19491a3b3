package grpclimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/grpclimit"
	"github.com/rationgo/ration/rationtest"
)

func TestNewChecks(t *testing.T) {
	sound := answers(ration.Decision{}, nil)
	for _, l := range []ration.Limiter{nil, ration.LimiterFunc(nil), (*pointerLimiter)(nil)} {
		_, err := grpclimit.New(l, anyone)
		require.ErrorIs(t, err, ration.ErrInvalidClient)
	}
	_, err := grpclimit.New(sound, nil)
	require.ErrorIs(t, err, grpclimit.ErrKey)
	for name, o := range map[string]grpclimit.Option{
		"wait of 0":    grpclimit.WithWait(0),
		"short wait":   grpclimit.WithWait(time.Millisecond - 1),
		"wait below 0": grpclimit.WithWait(-time.Hour),
		"no name":      grpclimit.WithExempt("a.B", ""),
		"a method":     grpclimit.WithExempt("/a.B/C"),
	} {
		_, err := grpclimit.New(sound, anyone, o)
		require.ErrorIs(t, err, ration.ErrInvalidOption, name)
	}
	_, err = grpclimit.New(sound, anyone, nil, grpclimit.WithCost(nil), grpclimit.WithLimiterFor(nil), grpclimit.WithShadow(nil),
		grpclimit.WithWait(time.Millisecond), grpclimit.WithExempt())
	require.NoError(t, err)
}

type pointerLimiter struct{ ration.Limiter }

// costly is a context of a call whose metadata says what it costs.
func costly(t testing.TB, cost string) context.Context {
	return metadata.AppendToOutgoingContext(within(t), "x-cost", cost)
}

var costs = grpclimit.WithCost(func(ctx context.Context, _ grpclimit.Call) int64 {
	return map[string]int64{"-1": -1, "0": 0, "3": 3, "4": 4, "7": 7, "11": 11}[metadata.ValueFromIncomingContext(ctx, "x-cost")[0]]
})

func TestCostByCall(t *testing.T) {
	for kind, call := range kinds {
		l := fixedWindow(t, quarter(t).Store(), ration.PerMinute(10))
		s := serve(t, interceptor(t, l, anyone, costs))
		require.NoError(t, call(costly(t, "7"), s.client), kind)
		requireRefused(t, call(costly(t, "4"), s.client), 45*time.Second, ration.PerMinute(10))
		require.NoError(t, call(costly(t, "3"), s.client), kind)
		require.NoError(t, call(costly(t, "0"), s.client), "what costs nothing passes an empty budget")
		requireRefused(t, call(costly(t, "11"), s.client), ration.Never, ration.PerMinute(10))
		handled := s.handled.Load()
		require.Equal(t, codes.Internal, status.Code(call(costly(t, "-1"), s.client)), kind)
		require.ErrorIs(t, s.last(t), ration.ErrInvalidCost)
		require.Equal(t, handled, s.handled.Load())
		require.EqualValues(t, 10, used(t, l, 10))
	}
	keyless := serve(t, interceptor(t, answers(ration.Decision{}, nil), grpclimit.Metadata("none"), costs))
	require.NoError(t, kinds["unary"](costly(t, "0"), keyless.client), "no key is asked for")
}

func TestCostOfAUnaryCallByItsMessage(t *testing.T) {
	messages := make(chan any, 2)
	cost := grpclimit.WithCost(func(_ context.Context, c grpclimit.Call) int64 {
		messages <- c.Message
		return 1
	})
	s := serve(t, interceptor(t, answers(ration.Decision{Allowed: true}, nil), anyone, cost))
	require.NoError(t, kinds["unary"](within(t), s.client))
	require.NotNil(t, <-messages)
	require.NoError(t, kinds["both"](within(t), s.client))
	require.Nil(t, <-messages, "a stream's messages aren't read yet")
}

func TestLimiterByCall(t *testing.T) {
	for kind, call := range kinds {
		for _, opts := range [][]grpclimit.Option{nil, {grpclimit.WithPerMessage()}} {
			gold := fixedWindow(t, quarter(t).Store(), ration.PerMinute(3))
			basic := fixedWindow(t, quarter(t).Store(), ration.PerMinute(1))
			plan := grpclimit.WithLimiterFor(func(ctx context.Context, _ grpclimit.Call) ration.Limiter {
				if len(metadata.ValueFromIncomingContext(ctx, "x-gold")) > 0 {
					return gold
				}
				return nil
			})
			s := serve(t, interceptor(t, basic, anyone, append(opts, plan)...))
			ctx := metadata.AppendToOutgoingContext(within(t), "x-gold", "1")
			for range 3 {
				require.NoError(t, call(ctx, s.client), kind)
			}
			requireRefused(t, call(ctx, s.client), 45*time.Second, ration.PerMinute(3))
			require.NoError(t, call(within(t), s.client), kind)
			requireRefused(t, call(within(t), s.client), 45*time.Second, ration.PerMinute(1))
		}
	}
}

func TestShadowRefusesNobody(t *testing.T) {
	for kind, call := range kinds {
		for _, opts := range [][]grpclimit.Option{nil, {grpclimit.WithPerMessage()}, {grpclimit.WithWait(time.Hour)}} {
			var allowed, refused, failed int
			methods := map[string]bool{}
			report := func(_ context.Context, c grpclimit.Call, d ration.Decision, err error) {
				methods[c.Method] = true
				switch {
				case err != nil:
					failed++
				case d.Allowed:
					allowed++
				default:
					refused++
				}
			}
			l := fixedWindow(t, rationtest.NewRedis(t).Store(), ration.PerMinute(2))
			s := serve(t, interceptor(t, l, grpclimit.Metadata("x-user"), append(opts, grpclimit.WithShadow(report))...))
			for range 5 {
				require.NoError(t, call(metadata.AppendToOutgoingContext(within(t), "x-user", "ann"), s.client), kind)
			}
			require.NoError(t, call(within(t), s.client), kind)
			require.Equal(t, [3]int{2, 3, 1}, [3]int{allowed, refused, failed}, kind)
			require.Len(t, methods, 1)
			require.NotContains(t, methods, "")
			require.EqualValues(t, 6, s.handled.Load())

			for _, gone := range []ration.Limiter{answers(ration.Decision{}, ration.ErrUnavailable), answers(ration.Decision{Degraded: true}, errors.New("x"))} {
				s := serve(t, interceptor(t, gone, anyone, append(opts, grpclimit.WithShadow(nil))...))
				require.NoError(t, call(within(t), s.client), kind)
			}
		}
	}
}

// What a limiter that isn't ours says can't make a status that is never sent or says "at once".
func TestOddRefusals(t *testing.T) {
	for kind, call := range kinds {
		bad := ration.Limit{Name: "caf\xe9", Units: 1, Window: time.Minute}
		s := serve(t, interceptor(t, answers(ration.Decision{Limit: bad, RetryAfter: time.Second}, nil), anyone))
		err := call(within(t), s.client)
		requireRefused(t, err, time.Second, ration.Limit{Name: "caf\uFFFD", Units: 1})

		s = serve(t, interceptor(t, answers(ration.Decision{}, nil), anyone))
		err = call(within(t), s.client)
		require.Equal(t, codes.ResourceExhausted, status.Code(err), kind)
		retry, _ := details(t, err)
		require.Equal(t, time.Millisecond, retry.GetRetryDelay().AsDuration(), kind)
	}
}
