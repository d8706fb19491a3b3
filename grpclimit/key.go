package grpclimit

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/rationgo/ration/internal/middleware"
)

// KeyFunc gives the subject of a call: whose budget it is charged to. An error or an empty key
// means that the subject isn't known, and the call isn't let in: the status is INTERNAL, or that
// which the error is or wraps, such as status.Error(codes.Unauthenticated, "who are you?"). It's called
// concurrently.
//
// A key that the client can choose freely, such as metadata that nobody has checked, limits nothing: each guess
// would have its own budget.
type KeyFunc func(ctx context.Context, call Call) (string, error)

// keyOf gives a key that is never empty, or ErrKey.
func keyOf(ctx context.Context, key KeyFunc, call Call) (string, error) {
	k, err := key(ctx, call)
	return middleware.CheckKey(k, err, ErrKey)
}

// PeerIP is the address of the connection's other end: IPv4 whole, IPv6 by its /64, since a
// customer has at least that many addresses. IPv4 written as IPv6 (::ffff:192.0.2.1) is IPv4; port and
// zone don't count. It's an error where there is no such address, as on a Unix socket or in memory. No
// metadata is looked at. Behind a proxy it's the proxy's address.
func PeerIP() KeyFunc {
	return func(ctx context.Context, _ Call) (string, error) {
		p, ok := peer.FromContext(ctx)
		if !ok || p.Addr == nil {
			return "", fmt.Errorf("%w: the call has no peer", ErrKey)
		}
		// A client may have bound its end of a Unix socket to a file named like an address.
		if strings.HasPrefix(p.Addr.Network(), "unix") {
			return "", fmt.Errorf("%w: the connection is a Unix socket", ErrKey)
		}
		return middleware.IPKey(p.Addr.String(), middleware.DefaultPrefix, ErrKey)
	}
}

// Metadata is the value that the client sent under a name, such as an API key; upper and lower
// case are the same. It's an error if the value is missing, empty, or there several times, since it isn't
// known then which of them others go by. Use it inside whatever checks the value: an
// unchecked one is the client's choice.
func Metadata(name string) KeyFunc {
	return func(ctx context.Context, _ Call) (string, error) {
		values := metadata.ValueFromIncomingContext(ctx, name)
		if len(values) != 1 {
			return "", fmt.Errorf("%w: the call has %d values of the metadata %s, not one", ErrKey, len(values), name)
		}
		return values[0], nil
	}
}

// Method is the full name of the method, "/package.Service/Method": a budget that all callers of it
// share, or a part of [Join]. On a server with grpc.UnknownServiceHandler it's the client's choice.
func Method() KeyFunc {
	return func(_ context.Context, call Call) (string, error) { return call.Method, nil }
}

// Join is a key of several, such as the method and the peer's address. Different parts never make
// the same key: "a", "bc" isn't "ab", "c". It's an error if any part is; no parts at all are one too.
func Join(keys ...KeyFunc) KeyFunc {
	return func(ctx context.Context, call Call) (string, error) {
		var joined []byte
		for _, key := range keys {
			part, err := keyOf(ctx, key, call)
			if err != nil {
				return "", err
			}
			joined = middleware.AppendPart(joined, part)
		}
		return string(joined), nil
	}
}
