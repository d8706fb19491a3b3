package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/grpclimit"
	"github.com/rationgo/ration/rationtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service is a real server on a loopback socket behind an Interceptor, and a client of it.
type service struct {
	pb.UnimplementedTestServiceServer
	conn    *grpc.ClientConn
	client  pb.TestServiceClient
	handled atomic.Int64 // handlers called
	got     atomic.Int64 // messages of streams that handlers received

	// upload answers an upload of n messages that ended with err; nil means as usual.
	upload func(n int32, err error, stream grpc.ClientStreamingServer[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse]) error

	mu     sync.Mutex
	errors []error // that the Interceptor, and what it's around, gave
}

func serve(t testing.TB, limit *grpclimit.Interceptor) *service {
	t.Helper()
	return serveOn(t, limit, "tcp", "127.0.0.1:0")
}

func serveOn(t testing.TB, limit *grpclimit.Interceptor, network, addr string) *service {
	t.Helper()
	ln, err := net.Listen(network, addr)
	require.NoError(t, err)
	s := &service{}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			resp, err := next(ctx, req)
			s.note(err)
			return resp, err
		}, limit.Unary()),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			err := next(srv, stream)
			s.note(err)
			return err
		}, limit.Stream()),
	)
	pb.RegisterTestServiceServer(server, s)
	healthpb.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	target := ln.Addr().String()
	if network == "unix" {
		target = "unix:" + target
	}
	s.conn, err = grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	require.NoError(t, err)
	s.client = pb.NewTestServiceClient(s.conn)
	t.Cleanup(func() {
		_ = s.conn.Close()
		server.Stop()
		require.NoError(t, <-served)
	})
	return s
}

func (s *service) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errors = append(s.errors, err)
}

// last is the latest error that an interceptor around ours saw. A client whose context
// ended doesn't wait for it, so we do.
func (s *service) last(t testing.TB) error {
	t.Helper()
	var err error
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.errors) > 0 {
			err = s.errors[len(s.errors)-1]
		}
		return len(s.errors) > 0
	}, 10*time.Second, time.Millisecond)
	return err
}

func (s *service) UnaryCall(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	s.handled.Add(1)
	return &pb.SimpleResponse{}, nil
}

func (s *service) StreamingOutputCall(_ *pb.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error {
	s.handled.Add(1)
	for range 3 {
		if err := stream.Send(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
	return nil
}

func (s *service) StreamingInputCall(stream grpc.ClientStreamingServer[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse]) error {
	s.handled.Add(1)
	for n := int32(0); ; n++ {
		_, err := stream.Recv()
		switch {
		case err == nil:
			s.got.Add(1)
		case s.upload != nil:
			return s.upload(n, err, stream)
		case errors.Is(err, io.EOF): // as many handlers have it
			return stream.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: n})
		default:
			return err
		}
	}
}

func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
	s.handled.Add(1)
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		s.got.Add(1)
		if err := stream.Send(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// The kinds of calls, each made with one message.
var kinds = map[string]func(ctx context.Context, c pb.TestServiceClient) error{
	"unary": func(ctx context.Context, c pb.TestServiceClient) error {
		_, err := c.UnaryCall(ctx, &pb.SimpleRequest{})
		return err
	},
	"server stream": func(ctx context.Context, c pb.TestServiceClient) error {
		stream, err := c.StreamingOutputCall(ctx, &pb.StreamingOutputCallRequest{})
		if err != nil {
			return err
		}
		return drain(stream)
	},
	"client stream": func(ctx context.Context, c pb.TestServiceClient) error {
		_, err := upload(ctx, c, 1)
		return err
	},
	"both": func(ctx context.Context, c pb.TestServiceClient) error {
		stream, err := c.FullDuplexCall(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.StreamingOutputCallRequest{}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		return drain(stream)
	},
}

func drain(stream grpc.ServerStreamingClient[pb.StreamingOutputCallResponse]) error {
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// upload sends n messages and gives how many the server says it got. io.EOF of Send means that
// the call's status is there.
func upload(ctx context.Context, c pb.TestServiceClient, n int) (int32, error) {
	stream, err := c.StreamingInputCall(ctx)
	if err != nil {
		return 0, err
	}
	for range n {
		if err := stream.Send(&pb.StreamingInputCallRequest{}); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return 0, err
		}
	}
	resp, err := stream.CloseAndRecv()
	return resp.GetAggregatedPayloadSize(), err
}

// within is a context that ends long after the test should have.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func interceptor(t testing.TB, l ration.Limiter, key grpclimit.KeyFunc, opts ...grpclimit.Option) *grpclimit.Interceptor {
	t.Helper()
	i, err := grpclimit.New(l, key, opts...)
	require.NoError(t, err)
	return i
}

const someone = "ann@example.org"

func anyone(context.Context, grpclimit.Call) (string, error) { return someone, nil }

// answers is a limiter that always answers the same.
func answers(d ration.Decision, err error) ration.Limiter {
	return ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) { return d, err })
}

func fixedWindow(t testing.TB, store *ration.Store, limits ...ration.Limit) ration.Limiter {
	t.Helper()
	l, err := ration.NewFixedWindow(store, ration.Policy{Name: "p", Limits: limits})
	require.NoError(t, err)
	return l
}

// quarter is a Redis whose clock stands at a quarter past a whole minute.
func quarter(t testing.TB) *rationtest.Redis {
	rdb := rationtest.NewRedis(t)
	rdb.Advance(15 * time.Second)
	return rdb
}

// details are those of a status; nil where there is none.
func details(t testing.TB, err error) (retry *errdetails.RetryInfo, quota *errdetails.QuotaFailure) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			require.Nil(t, retry)
			retry = d
		case *errdetails.QuotaFailure:
			require.Nil(t, quota)
			quota = d
		default:
			t.Fatalf("unknown detail %T", d)
		}
	}
	return retry, quota
}

// requireRefused wants RESOURCE_EXHAUSTED with a delay, or ration.Never, and the limits that refuse.
func requireRefused(t testing.TB, err error, after time.Duration, limits ...ration.Limit) {
	t.Helper()
	require.Equal(t, codes.ResourceExhausted, status.Code(err), err)
	require.Equal(t, "rate limit exceeded", status.Convert(err).Message())
	retry, quota := details(t, err)
	if after == ration.Never {
		require.Nil(t, retry)
	} else {
		require.Equal(t, after, retry.GetRetryDelay().AsDuration())
	}
	require.Len(t, quota.GetViolations(), len(limits))
	for i, v := range quota.GetViolations() {
		require.Equal(t, limits[i].String(), v.GetQuotaId())
		require.Equal(t, limits[i].Units, v.GetQuotaValue())
		require.Empty(t, v.GetSubject())
		if after == ration.Never {
			require.Contains(t, v.GetDescription(), "can't succeed however long it waits")
		} else {
			require.NotContains(t, v.GetDescription(), "can't succeed")
		}
	}
	require.NotContains(t, status.Convert(err).Proto().String(), someone)
}
