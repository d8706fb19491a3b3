package grpclimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/grpclimit"
)

// opensIn is a limiter that lets everything in after d, and counts how often it's asked.
func opensIn(d time.Duration, asked *int) ration.Limiter {
	opens := time.Now().Add(d)
	return ration.LimiterFunc(func(_ context.Context, r ration.Request) (ration.Decision, error) {
		*asked++
		if left := time.Until(opens); left > 0 {
			return ration.Decision{Limit: ration.PerDay(1), RetryAfter: left}, nil
		}
		return ration.Decision{Allowed: true, Granted: r.N, Limit: ration.PerDay(1)}, nil
	})
}

// run calls an Interceptor as grpc.Server does, in a bubble's time, and says whether the handler was called.
var run = map[string]func(ctx context.Context, i *grpclimit.Interceptor) (handled bool, err error){
	"unary": func(ctx context.Context, i *grpclimit.Interceptor) (handled bool, err error) {
		_, err = i.Unary()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, func(context.Context, any) (any, error) {
			handled = true
			return nil, nil
		})
		return handled, err
	},
	"stream": func(ctx context.Context, i *grpclimit.Interceptor) (handled bool, err error) {
		err = i.Stream()(nil, endless{ctx}, &grpc.StreamServerInfo{FullMethod: "/a.B/C"}, func(_ any, stream grpc.ServerStream) error {
			err := stream.RecvMsg(nil)
			handled = err == nil
			return err
		})
		return handled, err
	},
}

// endless is a stream from which a message can always be received.
type endless struct{ ctx context.Context }

func (s endless) Context() context.Context   { return s.ctx }
func (endless) RecvMsg(any) error            { return nil }
func (endless) SendMsg(any) error            { return nil }
func (endless) SetHeader(metadata.MD) error  { return nil }
func (endless) SendHeader(metadata.MD) error { return nil }
func (endless) SetTrailer(metadata.MD)       {}

func waiting(d time.Duration) []grpclimit.Option { return []grpclimit.Option{grpclimit.WithWait(d)} }

func TestWaitsItsTurn(t *testing.T) {
	for kind, call := range run {
		for _, opts := range [][]grpclimit.Option{waiting(time.Hour), append(waiting(time.Hour), grpclimit.WithPerMessage())} {
			synctest.Test(t, func(t *testing.T) {
				began, asked := time.Now(), 0
				i := interceptor(t, opensIn(300*time.Millisecond, &asked), anyone, opts...)
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				handled, err := call(ctx, i)
				require.NoError(t, err, kind)
				require.True(t, handled)
				require.Equal(t, 300*time.Millisecond, time.Since(began))
				require.Equal(t, 2, asked)
			})
		}
	}
}

// A turn that comes too late is refused at once, with the time that was named, whichever bound it is.
func TestB110WaitTooLong(t *testing.T) {
	for kind, call := range run {
		for name, c := range map[string]struct{ longest, deadline time.Duration }{
			"longest":  {200 * time.Millisecond, time.Hour},
			"deadline": {time.Hour, 200 * time.Millisecond},
		} {
			synctest.Test(t, func(t *testing.T) {
				began, asked := time.Now(), 0
				i := interceptor(t, opensIn(300*time.Millisecond, &asked), anyone, waiting(c.longest)...)
				ctx, cancel := context.WithTimeout(context.Background(), c.deadline)
				defer cancel()
				handled, err := call(ctx, i)
				requireRefused(t, err, 300*time.Millisecond, ration.PerDay(1))
				require.False(t, handled)
				require.Zero(t, time.Since(began), "%s %s", kind, name)
				require.Equal(t, 1, asked)
			})
		}
	}
}

// A turn that comes just in time is waited for, and if others have taken it the call is refused.
func TestB110WaitEndsWithTheSleep(t *testing.T) {
	for _, call := range run {
		synctest.Test(t, func(t *testing.T) {
			began, asked := time.Now(), 0
			full := ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) {
				asked++
				return ration.Decision{Limit: ration.PerDay(1), RetryAfter: 300 * time.Millisecond}, nil
			})
			handled, err := call(context.Background(), interceptor(t, full, anyone, waiting(600*time.Millisecond)...))
			requireRefused(t, err, 300*time.Millisecond, ration.PerDay(1))
			require.False(t, handled)
			require.Equal(t, 600*time.Millisecond, time.Since(began))
			require.Equal(t, 3, asked)

			// One that names no time isn't asked for ever.
			began = time.Now()
			handled, err = call(context.Background(), interceptor(t, answers(ration.Decision{Limit: ration.PerDay(1)}, nil), anyone, waiting(time.Second)...))
			requireRefused(t, err, time.Millisecond, ration.PerDay(1))
			require.False(t, handled)
			require.Equal(t, time.Second, time.Since(began))
		})
	}
}

// The wait's bound is for sleeping: a question to Redis that's under way is answered.
func TestWaitDoesNotCutAQuestionOff(t *testing.T) {
	for _, call := range run {
		synctest.Test(t, func(t *testing.T) {
			slow := ration.LimiterFunc(func(ctx context.Context, _ ration.Request) (ration.Decision, error) {
				select {
				case <-ctx.Done():
					return ration.Decision{}, ctx.Err()
				case <-time.After(50 * time.Millisecond):
					return ration.Decision{Allowed: true, Granted: 1}, nil
				}
			})
			handled, err := call(context.Background(), interceptor(t, slow, anyone, waiting(10*time.Millisecond)...))
			require.NoError(t, err)
			require.True(t, handled)
		})
	}
}

func TestB110ContextEndsInTheWait(t *testing.T) {
	for _, call := range run {
		synctest.Test(t, func(t *testing.T) {
			began, asked := time.Now(), 0
			i := interceptor(t, opensIn(time.Minute, &asked), anyone, waiting(time.Hour)...)
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(time.Second, cancel)
			handled, err := call(ctx, i)
			require.Equal(t, codes.Canceled, status.Code(err))
			require.ErrorIs(t, err, context.Canceled)
			require.False(t, handled)
			require.Equal(t, time.Second, time.Since(began))

			stuck := ration.LimiterFunc(func(ctx context.Context, _ ration.Request) (ration.Decision, error) {
				<-ctx.Done()
				return ration.Decision{}, ctx.Err()
			})
			ctx, cancel = context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			handled, err = call(ctx, interceptor(t, stuck, anyone, waiting(time.Hour)...))
			require.Equal(t, codes.DeadlineExceeded, status.Code(err))
			require.False(t, handled)
		})
	}
}
