package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/grpclimit"
)

// What an Interceptor adds to the limiter's own time.
func BenchmarkUnary(b *testing.B) {
	handler := func(context.Context, any) (any, error) { return nil, nil }
	for name, d := range map[string]ration.Decision{
		"allowed": {Allowed: true, Granted: 1},
		"refused": {Limit: ration.PerMinute(1), RetryAfter: time.Second},
	} {
		b.Run(name, func(b *testing.B) {
			unary := interceptor(b, answers(d, nil), anyone, grpclimit.WithExemptHealth()).Unary()
			info := &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = unary(context.Background(), nil, info, handler)
			}
		})
	}
}
