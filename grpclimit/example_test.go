package grpclimit_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/grpclimit"
)

// Two calls a day for each address. A service of several instances has a limiter on a
// shared Redis here, such as by ration.NewSlidingLog.
func Example() {
	limiter, err := ration.NewLocal(ration.Policy{
		Name:   "api",
		Limits: []ration.Limit{{Name: "daily", Units: 2, Window: 24 * time.Hour}},
	})
	if err != nil {
		panic(err)
	}
	limit, err := grpclimit.New(limiter, grpclimit.PeerIP())
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(limit.Unary()),
		grpc.ChainStreamInterceptor(limit.Stream()),
	)
	healthpb.RegisterHealthServer(server, health.NewServer()) // stands for a service of yours
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go server.Serve(listener)
	defer server.Stop()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	for range 3 {
		_, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
		fmt.Println(status.Code(err))
		for _, detail := range status.Convert(err).Details() {
			switch d := detail.(type) {
			case *errdetails.RetryInfo:
				fmt.Println("come back later:", d.GetRetryDelay().AsDuration() > 23*time.Hour)
			case *errdetails.QuotaFailure:
				fmt.Println("over the limit", d.GetViolations()[0].GetQuotaId())
			}
		}
	}
	// Output:
	// OK
	// OK
	// ResourceExhausted
	// come back later: true
	// over the limit daily
}

// A stream is charged for each message it receives, by size; a message waits its turn for up to
// five seconds. Health checks are free.
func ExampleWithPerMessage() {
	limiter, err := ration.NewLocal(ration.Policy{Name: "bytes", Limits: []ration.Limit{ration.PerSecond(1 << 20)}})
	if err != nil {
		panic(err)
	}
	limit, err := grpclimit.New(limiter, grpclimit.Join(grpclimit.Method(), grpclimit.PeerIP()),
		grpclimit.WithPerMessage(),
		grpclimit.WithCost(func(_ context.Context, call grpclimit.Call) int64 {
			if m, ok := call.Message.(interface{ GetData() []byte }); ok {
				return int64(len(m.GetData()))
			}
			return 1
		}),
		grpclimit.WithWait(5*time.Second),
		grpclimit.WithExemptHealth(),
	)
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limit.Unary()), grpc.ChainStreamInterceptor(limit.Stream()))
	server.Stop()
	// Output:
}
