package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/grpclimit"
	"github.com/rationgo/ration/internal/redistest"
)

// Whoever is over a limit gets RESOURCE_EXHAUSTED, in whatever way it came about, and when to come back.
func TestB110Refusals(t *testing.T) {
	minute, hour := ration.PerMinute(1), ration.Limit{Name: "hourly", Units: 5, Window: time.Hour}
	one := func(context.Context, grpclimit.Call) int64 { return 1 }
	for name, c := range map[string]struct {
		opts   []grpclimit.Option
		limits []ration.Limit
		passes int // calls before the one that is refused
		after  time.Duration
		refuse []ration.Limit
	}{
		"policy":             {nil, []ration.Limit{minute}, 1, 45 * time.Second, []ration.Limit{minute}},
		"one of two":         {nil, []ration.Limit{minute, hour}, 1, 45 * time.Second, []ration.Limit{minute}},
		"two of two":         {nil, []ration.Limit{minute, {Name: "h", Units: 1, Window: time.Hour}}, 1, time.Hour - 15*time.Second, []ration.Limit{minute, {Name: "h", Units: 1, Window: time.Hour}}},
		"wait is too long":   {[]grpclimit.Option{grpclimit.WithWait(time.Second)}, []ration.Limit{minute}, 1, 45 * time.Second, []ration.Limit{minute}},
		"deadline too early": {[]grpclimit.Option{grpclimit.WithWait(time.Hour)}, []ration.Limit{minute}, 1, 45 * time.Second, []ration.Limit{minute}},
		"cost": {[]grpclimit.Option{grpclimit.WithCost(func(context.Context, grpclimit.Call) int64 { return 6 })},
			[]ration.Limit{hour}, 0, ration.Never, []ration.Limit{hour}},
		"cost, waiting": {[]grpclimit.Option{grpclimit.WithWait(time.Hour), grpclimit.WithCost(func(context.Context, grpclimit.Call) int64 { return 6 })},
			[]ration.Limit{hour}, 0, ration.Never, []ration.Limit{hour}},
		"nothing is let in": {[]grpclimit.Option{grpclimit.WithCost(one)}, []ration.Limit{ration.PerDay(0)}, 0, ration.Never, []ration.Limit{ration.PerDay(0)}},
		"per message":       {[]grpclimit.Option{grpclimit.WithPerMessage()}, []ration.Limit{minute}, 1, 45 * time.Second, []ration.Limit{minute}},
	} {
		for kind, call := range kinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				l := fixedWindow(t, quarter(t).Store(), c.limits...)
				s := serve(t, interceptor(t, l, anyone, c.opts...))
				ctx := within(t)
				for range c.passes {
					require.NoError(t, call(ctx, s.client))
				}
				handled, got := s.handled.Load(), s.got.Load()
				requireRefused(t, call(ctx, s.client), c.after, c.refuse...)
				require.NoError(t, ctx.Err(), "refused at once, not when time was up")
				if name != "per message" { // where it's the message that doesn't reach the handler
					require.Equal(t, handled, s.handled.Load(), "the handler was called")
				}
				require.Equal(t, got, s.got.Load())
			})
		}
	}
}

// requireUnavailable wants UNAVAILABLE of which the client can't tell the insides.
func requireUnavailable(t testing.TB, err error, secrets ...string) {
	t.Helper()
	require.Equal(t, codes.Unavailable, status.Code(err), err)
	require.Equal(t, "the rate limit can't be checked now", status.Convert(err).Message())
	_, quota := details(t, err)
	require.Nil(t, quota)
	for _, secret := range append(secrets, someone) {
		require.NotContains(t, status.Convert(err).Proto().String(), secret)
	}
}

func TestB110RedisGone(t *testing.T) {
	for _, rule := range []ration.FailureRule{ration.FailError, ration.FailClosed} {
		t.Run(rule.String(), func(t *testing.T) {
			srv := redistest.Start(t)
			rdb := srv.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
			store, err := ration.Open(rdb, ration.WithOnFailure(rule), ration.WithTimeout(10*time.Second))
			require.NoError(t, err)
			s := serve(t, interceptor(t, fixedWindow(t, store, ration.PerDay(1000)), anyone))
			for kind, call := range kinds {
				require.NoError(t, call(within(t), s.client), kind)
			}
			handled := s.handled.Load()
			srv.Stop()
			for kind, call := range kinds {
				err := call(within(t), s.client)
				requireUnavailable(t, err, srv.Addr(), "refused", "EOF")
				retry, _ := details(t, err)
				require.Equal(t, rule == ration.FailClosed, retry != nil, kind)
				if retry != nil {
					require.Positive(t, retry.GetRetryDelay().AsDuration())
				}
				require.ErrorIs(t, s.last(t), ration.ErrUnavailable, "interceptors around ours learn the cause")
				require.NotContains(t, s.last(t).Error(), srv.Addr())
			}
			require.Equal(t, handled, s.handled.Load(), "a handler was called")
		})
	}
}

// A ring on which this process's share is used up is a limit; no answer from Redis is none.
func TestB110DecidedWithoutRedis(t *testing.T) {
	dead := func(rule ration.FailureRule) ration.Limiter {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addr := ln.Addr().String()
		require.NoError(t, ln.Close())
		rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
		t.Cleanup(func() { _ = rdb.Close() })
		store, err := ration.Open(rdb, ration.WithOnFailure(rule), ration.WithTimeout(10*time.Second))
		require.NoError(t, err)
		return fixedWindow(t, store, ration.PerDay(1))
	}
	for kind, call := range kinds {
		s := serve(t, interceptor(t, dead(ration.FailLocal(1)), anyone))
		require.NoError(t, call(within(t), s.client), kind)
		require.Equal(t, codes.ResourceExhausted, status.Code(call(within(t), s.client)), kind)
		require.EqualValues(t, 1, s.handled.Load(), kind)

		open := serve(t, interceptor(t, dead(ration.FailOpen), anyone))
		for range 3 {
			require.NoError(t, call(within(t), open.client), kind)
		}
		two := grpclimit.WithCost(func(context.Context, grpclimit.Call) int64 { return 2 })
		tooMuch := serve(t, interceptor(t, dead(ration.FailOpen), anyone, two))
		requireRefused(t, call(within(t), tooMuch.client), ration.Never, ration.PerDay(1))
	}
}

func TestB110Failures(t *testing.T) {
	secret := errors.New("dial tcp 10.1.2.3:6379: connection refused")
	for name, c := range map[string]struct {
		d     ration.Decision
		err   error
		code  codes.Code
		after time.Duration
	}{
		"unavailable":   {err: fmt.Errorf("%w: %w", ration.ErrUnavailable, secret), code: codes.Unavailable},
		"misconfigured": {err: fmt.Errorf("%w: %w", ration.ErrMisconfigured, secret), code: codes.Unavailable},
		"closed":        {err: ration.ErrClosed, code: codes.Unavailable},
		"FailClosed":    {d: ration.Decision{Degraded: true, Source: ration.Failure, RetryAfter: 1500 * time.Millisecond, Cause: secret}, code: codes.Unavailable, after: 1500 * time.Millisecond},
		"no cause":      {d: ration.Decision{Degraded: true, RetryAfter: time.Second}, code: codes.Unavailable, after: time.Second},
		// Of a limiter that isn't ours: the call's own context hasn't ended.
		"its own time-out":  {err: fmt.Errorf("%w: %w", context.DeadlineExceeded, secret), code: codes.Unavailable},
		"a Redis time-out":  {err: fmt.Errorf("%w: %w", ration.ErrUnavailable, context.DeadlineExceeded), code: codes.Unavailable},
		"a mistake":         {err: fmt.Errorf("%w: %w", ration.ErrInvalidPolicy, secret), code: codes.Internal},
		"another's status":  {err: status.Error(codes.NotFound, secret.Error()), code: codes.Internal},
		"an unknown error":  {err: secret, code: codes.Internal},
		"a negative amount": {err: ration.ErrInvalidCost, code: codes.Internal},
	} {
		for kind, call := range kinds {
			for _, opts := range [][]grpclimit.Option{nil, {grpclimit.WithWait(time.Millisecond)}} {
				s := serve(t, interceptor(t, answers(c.d, c.err), anyone, opts...))
				err := call(within(t), s.client)
				require.Equal(t, c.code, status.Code(err), "%s %s", name, kind)
				if c.code == codes.Unavailable {
					requireUnavailable(t, err, "10.1.2.3")
				}
				require.NotContains(t, err.Error(), "10.1.2.3")
				retry, _ := details(t, err)
				require.Equal(t, c.after, retry.GetRetryDelay().AsDuration(), "%s %s", name, kind)
				require.Zero(t, s.handled.Load(), "%s %s", name, kind)
				if c.err != nil {
					require.ErrorIs(t, s.last(t), c.err)
				}
			}
		}
	}
}

// The end of the call's own context is neither a refusal nor a failure of Redis.
func TestB110OwnContextEnds(t *testing.T) {
	for kind, call := range kinds {
		for _, opts := range [][]grpclimit.Option{nil, {grpclimit.WithWait(time.Hour)}} {
			asked := make(chan struct{}, 1)
			stuck := ration.LimiterFunc(func(ctx context.Context, _ ration.Request) (ration.Decision, error) {
				asked <- struct{}{}
				<-ctx.Done()
				return ration.Decision{}, fmt.Errorf("asking 10.1.2.3: %w", ctx.Err())
			})
			s := serve(t, interceptor(t, stuck, anyone, opts...))
			ctx, cancel := context.WithCancel(within(t))
			go func() { <-asked; cancel() }()
			require.Equal(t, codes.Canceled, status.Code(call(ctx, s.client)), kind)
			require.Equal(t, codes.Canceled, status.Code(s.last(t)), kind)
			require.NotContains(t, s.last(t).Error(), "10.1.2.3")
			require.Zero(t, s.handled.Load())

			late := serve(t, interceptor(t, stuck, anyone, opts...))
			ctx, cancel = context.WithTimeout(within(t), 50*time.Millisecond)
			err := call(ctx, late.client)
			require.Equal(t, codes.DeadlineExceeded, status.Code(err), kind)
			if len(asked) > 0 { // else the deadline had passed before the server heard of the call
				require.Contains(t, []codes.Code{codes.DeadlineExceeded, codes.Canceled}, status.Code(late.last(t)), "the client may have reset the call first")
			}
			require.Zero(t, late.handled.Load())
			cancel()
		}
	}
}

// Calls of the services that may be exempted, unary and streams.
var (
	healthCalls = []func(ctx context.Context, s *service) error{
		func(ctx context.Context, s *service) error {
			_, err := healthpb.NewHealthClient(s.conn).Check(ctx, &healthpb.HealthCheckRequest{})
			return err
		},
		func(ctx context.Context, s *service) error {
			stream, err := healthpb.NewHealthClient(s.conn).Watch(ctx, &healthpb.HealthCheckRequest{})
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		},
	}
	reflectionCalls = []func(ctx context.Context, s *service) error{
		func(ctx context.Context, s *service) error {
			stream, err := reflectv1.NewServerReflectionClient(s.conn).ServerReflectionInfo(ctx)
			if err != nil {
				return err
			}
			return closeAndRecv(stream.CloseSend, func() error { _, err := stream.Recv(); return err })
		},
		func(ctx context.Context, s *service) error {
			stream, err := reflectv1alpha.NewServerReflectionClient(s.conn).ServerReflectionInfo(ctx)
			if err != nil {
				return err
			}
			return closeAndRecv(stream.CloseSend, func() error { _, err := stream.Recv(); return err })
		},
	}
)

// closeAndRecv is a stream without a question: io.EOF is its good end.
func closeAndRecv(closeSend, recv func() error) error {
	if err := closeSend(); err != nil {
		return err
	}
	if err := recv(); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// Health and reflection are like any other service unless they're exempted.
func TestB110Exempt(t *testing.T) {
	nobody := func(context.Context, grpclimit.Call) (string, error) { return "", nil }
	never := answers(ration.Decision{Limit: ration.PerDay(1), RetryAfter: time.Hour}, nil)
	for name, c := range map[string]struct {
		opts                   []grpclimit.Option
		healthOK, reflectionOK bool
	}{
		"nothing":    {nil, false, false},
		"health":     {[]grpclimit.Option{grpclimit.WithExemptHealth()}, true, false},
		"reflection": {[]grpclimit.Option{grpclimit.WithExemptReflection()}, false, true},
		"both":       {[]grpclimit.Option{grpclimit.WithExemptReflection(), grpclimit.WithExemptHealth()}, true, true},
		"by name":    {[]grpclimit.Option{grpclimit.WithExempt("grpc.health.v1.Health", "x.Y")}, true, false},
		"others":     {[]grpclimit.Option{grpclimit.WithExempt("grpc.health.v1", "Health", "grpc.health.v1.Healthy")}, false, false},
	} {
		refusing := serve(t, interceptor(t, never, anyone, c.opts...))
		keyless := serve(t, interceptor(t, never, nobody, c.opts...))
		for which, group := range [][]func(context.Context, *service) error{healthCalls, reflectionCalls} {
			exempt := []bool{c.healthOK, c.reflectionOK}[which]
			for i, call := range group {
				err, errKeyless := call(within(t), refusing), call(within(t), keyless)
				if exempt {
					require.NoError(t, err, "%s %d %d", name, which, i)
					require.NoError(t, errKeyless, "no key is asked for")
					continue
				}
				requireRefused(t, err, time.Hour, ration.PerDay(1))
				require.Equal(t, codes.Internal, status.Code(errKeyless), "%s %d %d", name, which, i)
			}
		}
		for kind, call := range kinds { // the rest isn't exempt by any of it
			require.Equal(t, codes.ResourceExhausted, status.Code(call(within(t), refusing.client)), kind)
		}
	}
}
