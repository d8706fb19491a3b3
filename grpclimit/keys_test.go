package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/grpclimit"
	"github.com/rationgo/ration/rationtest"
)

// Those without an identity get an error each, no budget to share.
func TestNoIdentity(t *testing.T) {
	secret := errors.New("token eyJhbGci is not signed")
	fails := func(err error) grpclimit.KeyFunc {
		return func(context.Context, grpclimit.Call) (string, error) { return "", err }
	}
	for name, c := range map[string]struct {
		key  grpclimit.KeyFunc
		code codes.Code
		text string
	}{
		"empty":    {fails(nil), codes.Internal, "the caller isn't known to the rate limit"},
		"error":    {fails(secret), codes.Internal, "the caller isn't known to the rate limit"},
		"metadata": {grpclimit.Metadata("x-api-key"), codes.Internal, "the caller isn't known to the rate limit"},
		"no parts": {grpclimit.Join(), codes.Internal, "the caller isn't known to the rate limit"},
		"half":     {grpclimit.Join(grpclimit.Method(), fails(nil)), codes.Internal, "the caller isn't known to the rate limit"},
		"redis":    {fails(fmt.Errorf("%w: %w", ration.ErrUnavailable, secret)), codes.Internal, "the caller isn't known to the rate limit"},
		"context":  {fails(context.DeadlineExceeded), codes.Internal, "the caller isn't known to the rate limit"},
		"chosen":   {fails(status.Error(codes.Unauthenticated, "who are you?")), codes.Unauthenticated, "who are you?"},
		"wrapped":  {fails(fmt.Errorf("%w: %w", secret, status.Error(codes.PermissionDenied, "not you"))), codes.PermissionDenied, "not you"},
		"joined":   {grpclimit.Join(grpclimit.Method(), fails(status.Error(codes.Unauthenticated, "who?"))), codes.Unauthenticated, "who?"},
		"chose OK": {fails(okStatus{}), codes.Internal, "the caller isn't known to the rate limit"},
		"both": {func(context.Context, grpclimit.Call) (string, error) { return someone, secret },
			codes.Internal, "the caller isn't known to the rate limit"},
	} {
		for _, opts := range [][]grpclimit.Option{nil, {grpclimit.WithPerMessage()}} {
			rdb := rationtest.NewRedis(t)
			s := serve(t, interceptor(t, fixedWindow(t, rdb.Store(), ration.PerMinute(1)), c.key, opts...))
			for kind, call := range kinds {
				for range 2 {
					got := status.Convert(call(within(t), s.client))
					require.Equal(t, c.code, got.Code(), "%s %s", name, kind)
					require.Equal(t, c.text, got.Message(), "%s %s", name, kind)
					require.ErrorIs(t, s.last(t), grpclimit.ErrKey)
				}
			}
			require.Zero(t, s.handled.Load(), name)
			require.Empty(t, rdb.Keys(), name)
		}
	}
}

type okStatus struct{}

func (okStatus) Error() string              { return "odd" }
func (okStatus) GRPCStatus() *status.Status { return status.New(codes.OK, "") }

func TestPeerIP(t *testing.T) {
	keyOf := func(a net.Addr) (string, error) {
		return grpclimit.PeerIP()(peer.NewContext(context.Background(), &peer.Peer{Addr: a}), grpclimit.Call{})
	}
	for want, addrs := range map[string][]string{
		"192.0.2.1":         {"192.0.2.1:1", "192.0.2.1:65535", "[::ffff:192.0.2.1]:7"},
		"2001:db8:1:2::/64": {"[2001:db8:1:2::1]:1", "[2001:db8:1:2:ffff::9]:2"},
		"2001:db8:1:3::/64": {"[2001:db8:1:3::1]:1"},
		"fe80::/64":         {"[fe80::1%eth0]:1", "[fe80::2%eth1]:1"},
	} {
		for _, addr := range addrs {
			got, err := keyOf(named{"tcp", addr})
			require.NoError(t, err, addr)
			require.Equal(t, want, got, addr)
		}
	}
	got, err := keyOf(&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1"), Port: 1})
	require.NoError(t, err)
	require.Equal(t, "192.0.2.1", got)
	for _, a := range []net.Addr{
		nil, named{"tcp", ""}, named{"bufconn", "bufconn"}, named{"tcp", "0.0.0.0:1"}, named{"tcp", "localhost:1"},
		&net.UnixAddr{Net: "unix", Name: "@"}, &net.UnixAddr{Net: "unix", Name: ""},
		&net.UnixAddr{Net: "unix", Name: "192.0.2.1:80"}, &net.UnixAddr{Net: "unixpacket", Name: "192.0.2.1"},
	} {
		_, err := keyOf(a)
		require.ErrorIs(t, err, grpclimit.ErrKey, "%v", a)
		require.NotContains(t, err.Error(), "192.0.2.1")
	}
	_, err = grpclimit.PeerIP()(context.Background(), grpclimit.Call{})
	require.ErrorIs(t, err, grpclimit.ErrKey)
}

type named struct{ network, text string }

func (n named) Network() string { return n.network }
func (n named) String() string  { return n.text }

func TestPeerIPOverSockets(t *testing.T) {
	var key atomic.Pointer[string]
	noting := ration.LimiterFunc(func(_ context.Context, r ration.Request) (ration.Decision, error) {
		key.Store(&r.Key)
		return ration.Decision{Allowed: true, Granted: r.N}, nil
	})
	limit := interceptor(t, noting, grpclimit.PeerIP())
	s := serve(t, limit)
	require.NoError(t, kinds["unary"](within(t), s.client))
	require.Equal(t, "127.0.0.1", *key.Load())

	dir, err := os.MkdirTemp("", "grpclimit-") // t.TempDir may be too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	key.Store(nil)
	unix := serveOn(t, limit, "unix", filepath.Join(dir, "s"))
	for kind, call := range kinds {
		require.Equal(t, codes.Internal, status.Code(call(within(t), unix.client)), kind)
	}
	require.Nil(t, key.Load())
}

func TestMetadata(t *testing.T) {
	keyOf := func(name string, pairs ...string) (string, error) {
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(pairs...))
		return grpclimit.Metadata(name)(ctx, grpclimit.Call{})
	}
	for _, name := range []string{"x-user", "X-User"} {
		got, err := keyOf(name, "X-uSer", "ann", "other", "x")
		require.NoError(t, err)
		require.Equal(t, "ann", got)
	}
	for _, pairs := range [][]string{nil, {"other", "ann"}, {"x-user", "ann", "x-user", "bob"}, {"x-user", "ann", "X-User", "ann"}} {
		_, err := keyOf("x-user", pairs...)
		require.ErrorIs(t, err, grpclimit.ErrKey, pairs)
		require.NotContains(t, err.Error(), "ann")
	}

	// Over the wire: one budget a user, none for who sends two or none.
	s := serve(t, interceptor(t, fixedWindow(t, rationtest.NewRedis(t).Store(), ration.PerMinute(1)), grpclimit.Metadata("x-user")))
	send := func(pairs ...string) codes.Code {
		return status.Code(kinds["both"](metadata.AppendToOutgoingContext(within(t), pairs...), s.client))
	}
	require.Equal(t, codes.OK, send("x-user", "ann"))
	require.Equal(t, codes.ResourceExhausted, send("x-user", "ann"))
	require.Equal(t, codes.OK, send("x-user", "bob"))
	require.Equal(t, codes.Internal, send("x-user", "cleo", "x-user", "dora"))
	require.Equal(t, codes.Internal, send("x-user", ""))
	require.Equal(t, codes.Internal, send())
}

// Each method has a budget of its own, for all who call it.
func TestMethod(t *testing.T) {
	s := serve(t, interceptor(t, fixedWindow(t, rationtest.NewRedis(t).Store(), ration.PerMinute(1)), grpclimit.Method()))
	for _, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		for kind, call := range kinds {
			require.Equal(t, want, status.Code(call(within(t), s.client)), kind)
		}
	}
	key, err := grpclimit.Method()(context.Background(), grpclimit.Call{Method: "/a.B/C"})
	require.NoError(t, err)
	require.Equal(t, "/a.B/C", key)
}

// Parts that run into each other are still different keys.
func TestJoinDoesNotCollide(t *testing.T) {
	key := grpclimit.Join(grpclimit.Metadata("a"), grpclimit.Metadata("b"))
	parts := []string{"a", "ab", "abc", "b", "bc", "c", "1:a", "1", ":", "2:ab1:c", "a1:b", "é"}
	seen := map[string][2]string{}
	for _, a := range parts {
		for _, b := range parts {
			ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("a", a, "b", b))
			k, err := key(ctx, grpclimit.Call{})
			require.NoError(t, err)
			require.NotContains(t, seen, k, "%q %q", a, b)
			seen[k] = [2]string{a, b}
		}
	}
}
