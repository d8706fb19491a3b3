package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/grpclimit"
	"github.com/rationgo/ration/rationtest"
)

// keyOfPeer by way of a fake limiter.
func TestHostilePeers(t *testing.T) {
	for _, a := range []net.Addr{
		&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1"), Port: 1},
		&net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 1},
		&net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 1, Zone: "eth0"},
		&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1"), Port: 1, Zone: "eth0"},
		&net.TCPAddr{IP: net.ParseIP("2001:db8::1")},
		&net.IPAddr{IP: net.ParseIP("2001:db8::1")},
		&net.IPAddr{IP: net.ParseIP("2001:db8::1"), Zone: "x]:1"},
		&net.TCPAddr{},
		&net.UnixAddr{Name: "1.2.3.4:5", Net: "unixpacket"},
		&net.UnixAddr{Name: "1.2.3.4:5"},
		(*net.TCPAddr)(nil),
		&net.TCPAddr{IP: net.ParseIP("64:ff9b::192.0.2.1"), Port: 1},
	} {
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("%#v panics: %v", a, p)
				}
			}()
			ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: a})
			k, err := grpclimit.PeerIP()(ctx, grpclimit.Call{})
			t.Logf("%v -> %q %v", a, k, err)
		}()
	}
	for _, md := range []metadata.MD{
		metadata.Pairs("key-bin", "\x00\xff"), metadata.Pairs("KEY", "x"), metadata.Pairs("key", ""), {"Key": {"a"}, "key": {"b"}},
	} {
		for _, n := range []string{"key-bin", "key", "KEY"} {
			k, err := grpclimit.Metadata(n)(metadata.NewIncomingContext(t.Context(), md), grpclimit.Call{})
			t.Logf("%v %s -> %q %v", md, n, k, err)
		}
	}
}

type hostileStream struct {
	grpc.ServerStream
	ctx context.Context
	n   int
}

func (s *hostileStream) Context() context.Context { return s.ctx }
func (s *hostileStream) RecvMsg(any) error {
	if s.n == 0 {
		return io.EOF
	}
	s.n--
	return nil
}

// Odd errors and endings of streams.
func TestHostileStreamEndings(t *testing.T) {
	info := &grpc.StreamServerInfo{FullMethod: "/s/m"}
	key := func(context.Context, grpclimit.Call) (string, error) { return "u", nil }
	// the cause is io.EOF; handler swallows
	i, err := grpclimit.New(ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) {
		return ration.Decision{}, fmt.Errorf("%w: %w", ration.ErrUnavailable, io.EOF)
	}), key, grpclimit.WithPerMessage())
	require.NoError(t, err)
	err = i.Stream()(nil, &hostileStream{ctx: t.Context(), n: 3}, info, func(_ any, s grpc.ServerStream) error {
		for {
			if err := s.RecvMsg(nil); err == io.EOF || errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return nil // swallowed
			}
		}
	})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorIs(t, err, io.EOF)
	// key funcs: status OK, nil status, joined
	for _, kerr := range []error{status.Error(codes.OK, ""), errors.Join(errors.New("a"), status.Error(codes.Unauthenticated, "who")), context.Canceled, ration.ErrUnavailable,
		fmt.Errorf("db: %w", status.Error(codes.Unavailable, "secret db text"))} {
		i, err := grpclimit.New(rationtest.NewFake(t), func(context.Context, grpclimit.Call) (string, error) { return "", kerr })
		require.NoError(t, err)
		_, err = i.Unary()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"}, nil)
		t.Logf("%v -> %v %v", kerr, status.Code(err), err)
	}
}

// A caller that goes while waiting is charged nothing and gets CANCELLED; a limiter that is slow is cut by the call's end only.
func TestHostileWaitCancelled(t *testing.T) {
	r := rationtest.NewRedis(t)
	l, err := ration.NewSlidingLog(r.Store(), ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(1)}})
	require.NoError(t, err)
	i, err := grpclimit.New(l, func(context.Context, grpclimit.Call) (string, error) { return "u", nil }, grpclimit.WithWait(10*time.Minute))
	require.NoError(t, err)
	pass := func(context.Context, any) (any, error) { return nil, nil }
	_, err = i.Unary()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"}, pass)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err = i.Unary()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"}, pass)
	require.Equal(t, codes.Canceled, status.Code(err))
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = i.Unary()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"}, pass)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	_ = pb.SimpleRequest{}
}
