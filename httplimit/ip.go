package httplimit

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"github.com/realclientip/realclientip-go"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/middleware"
)

// The bounds of an IPv6 prefix.
const (
	minPrefix = 48
	maxPrefix = 128
)

// RemoteIP is the address of the connection's other end: IPv4 whole, IPv6 by its /64, since a
// customer has at least that many addresses. IPv4 written as IPv6 (::ffff:192.0.2.1) is IPv4; port and zone
// don't count. It's an error where there is no address, as on a Unix socket. No header is looked at.
func RemoteIP() KeyFunc {
	return func(r *http.Request) (string, error) {
		return middleware.IPKey(r.RemoteAddr, middleware.DefaultPrefix, ErrKey)
	}
}

// Proxies says how to find a client's address behind proxies; see [ClientIP].
type Proxies struct {
	// Trusted are the addresses and CIDR ranges of one's own proxies, such as "10.0.0.0/8". Empty
	// means that no header is trusted.
	Trusted []string
	// Header is where these proxies put the address they were called from: "X-Forwarded-For", which is the
	// default, or "Forwarded", both lists to which each proxy adds, or a field with a single
	// address that the proxy overwrites, such as "X-Real-IP".
	Header string
	// Prefix is the number of leading bits of an IPv6 address that count: 48 to 128, 0 means 64.
	Prefix int
}

// ClientIP is [RemoteIP] for services behind proxies. If the connection comes from a trusted
// address, the header is read from its right end, where the nearest proxy wrote, and the
// first address that isn't trusted is the client: what a client writes itself stands further left and counts for
// nothing. Where the header has no such address, because it's missing, has only trusted ones, or
// something else stands in between, the key is the connection's address, as it is when that isn't trusted.
//
// The error is ration.ErrInvalidOption.
func ClientIP(p Proxies) (KeyFunc, error) {
	if p.Prefix == 0 {
		p.Prefix = middleware.DefaultPrefix
	}
	if p.Prefix < minPrefix || p.Prefix > maxPrefix {
		return nil, fmt.Errorf("%w: ClientIP: the Prefix %d is not in %d to %d", ration.ErrInvalidOption, p.Prefix, minPrefix, maxPrefix)
	}
	trusted, err := realclientip.AddressesAndRangesToIPNets(p.Trusted...)
	if err != nil {
		return nil, fmt.Errorf("%w: ClientIP: Trusted: %w", ration.ErrInvalidOption, err)
	}
	strategy, err := strategyFor(p.Header, trusted)
	if err != nil {
		return nil, fmt.Errorf("%w: ClientIP: Header: %w", ration.ErrInvalidOption, err)
	}
	return func(r *http.Request) (string, error) {
		if peer, ok := middleware.ParseAddr(r.RemoteAddr); ok && contains(trusted, peer) {
			if client := strategy.ClientIP(r.Header, r.RemoteAddr); client != "" {
				return middleware.IPKey(client, p.Prefix, ErrKey)
			}
		}
		return middleware.IPKey(r.RemoteAddr, p.Prefix, ErrKey)
	}, nil
}

func strategyFor(header string, trusted []net.IPNet) (realclientip.Strategy, error) {
	switch name := http.CanonicalHeaderKey(header); name {
	case "":
		return realclientip.NewRightmostTrustedRangeStrategy("X-Forwarded-For", trusted)
	case "X-Forwarded-For", "Forwarded":
		return realclientip.NewRightmostTrustedRangeStrategy(name, trusted)
	default:
		return realclientip.NewSingleIPHeaderStrategy(name)
	}
}

func contains(ranges []net.IPNet, a netip.Addr) bool {
	ip := a.As16()
	for _, n := range ranges {
		if n.Contains(ip[:]) {
			return true
		}
	}
	return false
}
