package grpclimit_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/grpclimit"
)

// used is what is counted for someone.
func used(t testing.TB, l ration.Limiter, units int64) int64 {
	t.Helper()
	d, err := l.Peek(context.Background(), someone)
	require.NoError(t, err)
	return units - d.Remaining
}

func TestStreamIsChargedOnceAtItsStart(t *testing.T) {
	l := fixedWindow(t, quarter(t).Store(), ration.PerMinute(3))
	s := serve(t, interceptor(t, l, anyone))
	n, err := upload(within(t), s.client, 10)
	require.NoError(t, err)
	require.EqualValues(t, 10, n)
	require.EqualValues(t, 1, used(t, l, 3))
}

// What each kind of call of three messages costs by default, and by message.
func TestPerMessageCosts(t *testing.T) {
	for name, c := range map[string]struct {
		opts                      []grpclimit.Option
		unary, server, none, many int64
	}{
		"at the start": {nil, 1, 1, 1, 1},
		"per message":  {[]grpclimit.Option{grpclimit.WithPerMessage()}, 1, 1, 0, 3},
	} {
		l := fixedWindow(t, quarter(t).Store(), ration.PerMinute(100))
		s := serve(t, interceptor(t, l, anyone, c.opts...))
		cost := func(call func() error) int64 {
			before := used(t, l, 100)
			require.NoError(t, call(), name)
			return used(t, l, 100) - before
		}
		require.Equal(t, c.unary, cost(func() error { return kinds["unary"](within(t), s.client) }), name)
		require.Equal(t, c.server, cost(func() error { return kinds["server stream"](within(t), s.client) }), name)
		require.Equal(t, c.none, cost(func() error { _, err := upload(within(t), s.client, 0); return err }), name)
		require.Equal(t, c.many, cost(func() error { _, err := upload(within(t), s.client, 3); return err }), name)
		both := func() error {
			stream, err := s.client.FullDuplexCall(within(t))
			require.NoError(t, err)
			for range 3 {
				require.NoError(t, stream.Send(&pb.StreamingOutputCallRequest{}))
				_, err := stream.Recv()
				require.NoError(t, err)
			}
			require.NoError(t, stream.CloseSend())
			return drain(stream)
		}
		require.Equal(t, c.many, cost(both), name)
	}
}

// A refused message ends the stream, however the handler takes it.
func TestRefusedMessageEndsTheStream(t *testing.T) {
	type uploading = grpc.ClientStreamingServer[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse]
	wantSeen := map[string]int{"returned": 0, "wrapped": 1, "renamed": 1, "swallowed": 1, "answered": 1, "tried again": 2}
	for name, handler := range map[string]func(n int32, err error, stream uploading, seen chan<- error) error{
		"returned":  nil,
		"wrapped":   func(_ int32, err error, _ uploading, _ chan<- error) error { return fmt.Errorf("receiving: %w", err) },
		"renamed":   func(int32, error, uploading, chan<- error) error { return status.Error(codes.Unavailable, "oops") },
		"swallowed": func(int32, error, uploading, chan<- error) error { return nil },
		"answered": func(n int32, _ error, stream uploading, _ chan<- error) error {
			return stream.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: n})
		},
		"tried again": func(_ int32, _ error, stream uploading, seen chan<- error) error {
			_, err := stream.Recv()
			seen <- err
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan error, 2) // by the handler
			rdb := quarter(t)
			l := fixedWindow(t, rdb.Store(), ration.PerMinute(2))
			s := serve(t, interceptor(t, l, anyone, grpclimit.WithPerMessage()))
			if handler != nil {
				s.upload = func(n int32, err error, stream uploading) error {
					seen <- err
					return handler(n, err, stream, seen)
				}
			}
			_, err := upload(within(t), s.client, 4)
			requireRefused(t, err, 45*time.Second, ration.PerMinute(2))
			require.Len(t, seen, wantSeen[name])
			for len(seen) > 0 {
				requireRefused(t, <-seen, 45*time.Second, ration.PerMinute(2))
			}
			require.EqualValues(t, 2, s.got.Load(), "messages that reached the handler")
			rdb.Advance(45 * time.Second)
			s.upload = nil
			n, err := upload(within(t), s.client, 2)
			require.NoError(t, err)
			require.EqualValues(t, 2, n)
		})
	}
}

// Redis may fail with io.EOF, and a handler must not take that for the end of a complete upload.
func TestFailureOfRedisIsNotTheEndOfTheStream(t *testing.T) {
	cause := fmt.Errorf("%w: %w", ration.ErrUnavailable, io.EOF)
	s := serve(t, interceptor(t, answers(ration.Decision{}, cause), anyone, grpclimit.WithPerMessage()))
	seen := make(chan error, 1)
	s.upload = func(_ int32, err error, _ grpc.ClientStreamingServer[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse]) error {
		seen <- err
		return err
	}
	_, err := upload(within(t), s.client, 1)
	requireUnavailable(t, err, "EOF")
	handlers := <-seen
	requireUnavailable(t, handlers, "EOF")
	require.NotErrorIs(t, handlers, io.EOF)
	require.ErrorIs(t, s.last(t), ration.ErrUnavailable)
}

// The key and the limiter are asked for once, before the handler; the cost by message.
func TestPerMessageAsksOnce(t *testing.T) {
	var asked []grpclimit.Call
	key := func(_ context.Context, c grpclimit.Call) (string, error) {
		asked = append(asked, c)
		return someone, nil
	}
	cost := func(_ context.Context, c grpclimit.Call) int64 {
		return int64(len(c.Message.(*pb.StreamingInputCallRequest).GetPayload().GetBody()))
	}
	l := fixedWindow(t, quarter(t).Store(), ration.PerMinute(100))
	s := serve(t, interceptor(t, l, key, grpclimit.WithPerMessage(), grpclimit.WithCost(cost)))
	stream, err := s.client.StreamingInputCall(within(t))
	require.NoError(t, err)
	for _, n := range []int{7, 0, 5} {
		require.NoError(t, stream.Send(&pb.StreamingInputCallRequest{Payload: &pb.Payload{Body: make([]byte, n)}}))
	}
	_, err = stream.CloseAndRecv()
	require.NoError(t, err)
	require.EqualValues(t, 12, used(t, l, 100))
	require.Equal(t, []grpclimit.Call{{Method: "/grpc.testing.TestService/StreamingInputCall", Stream: true}}, asked)

	keyless := serve(t, interceptor(t, l, func(context.Context, grpclimit.Call) (string, error) { return "", nil }, grpclimit.WithPerMessage()))
	_, err = upload(within(t), keyless.client, 1)
	require.Equal(t, codes.Internal, status.Code(err))
	require.Zero(t, keyless.handled.Load())
}
