package grpclimit_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/grpclimit"
	"github.com/rationgo/ration/rationtest"
)

// A call of 50 under a token bucket of 100 a minute that holds 10: what refuses it is the 10.
func TestViolationOfABurst(t *testing.T) {
	l := ration.PerMinute(100)
	l.Burst = 10
	limiter, err := ration.NewTokenBucket(rationtest.NewRedis(t).Store(), ration.Policy{Name: "p", Limits: []ration.Limit{l}})
	require.NoError(t, err)
	i, err := grpclimit.New(limiter, grpclimit.PeerIP(), grpclimit.WithCost(func(context.Context, grpclimit.Call) int64 { return 50 }))
	require.NoError(t, err)
	s := serve(t, i)
	_, err = s.client.UnaryCall(t.Context(), &pb.SimpleRequest{})
	for _, d := range status.Convert(err).Details() {
		q, ok := d.(*errdetails.QuotaFailure)
		require.True(t, ok)
		require.EqualValues(t, 10, q.Violations[0].QuotaValue)
	}
}
