package grpclimit_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"context"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/grpclimit"
	"github.com/rationgo/ration/rationtest"
)

// A call of 50 under a token bucket of 100 a minute that holds 10: what refuses it is the 10.
func TestHostileBurstViolation(t *testing.T) {
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
		t.Log(q)
		require.EqualValues(t, 10, q.Violations[0].QuotaValue)
	}
}

// Per message, no message costs anything: nobody needs to be known (WithCost: "With 0 it passes and no key is asked for").
func TestHostileFreeMessagesNeedNoKey(t *testing.T) {
	i, err := grpclimit.New(rationtest.NewFake(t), grpclimit.Metadata("api-key"), grpclimit.WithPerMessage(),
		grpclimit.WithCost(func(context.Context, grpclimit.Call) int64 { return 0 }))
	require.NoError(t, err)
	s := serve(t, i)
	stream, err := s.client.StreamingInputCall(t.Context())
	require.NoError(t, err)
	_ = stream.Send(&pb.StreamingInputCallRequest{})
	_, err = stream.CloseAndRecv()
	require.NoError(t, err)
}
