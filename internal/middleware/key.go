// Package middleware is what httplimit and grpclimit share: how keys are made, and how a
// Decision is read.
package middleware

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// DefaultPrefix is the number of leading bits of an IPv6 address that count: a customer has at
// least the addresses of a /64.
const DefaultPrefix = 64

var errEmpty = errors.New("the key is empty")

// CheckKey gives what a key function gave, if that is a key and no error, or else an error that
// wraps errKey.
func CheckKey(key string, err, errKey error) (string, error) {
	if err == nil && key == "" {
		err = errEmpty
	}
	if err == nil {
		return key, nil
	}
	if errors.Is(err, errKey) {
		return "", err
	}
	return "", fmt.Errorf("%w: %w", errKey, err)
}

// AppendPart adds a part to a joined key. Its length stands before it, so different parts never
// make the same key.
func AppendPart(joined []byte, part string) []byte {
	joined = strconv.AppendInt(joined, int64(len(part)), 10)
	joined = append(joined, ':')
	return append(joined, part...)
}

// ParseAddr reads an address with or without a port. 0.0.0.0 and :: are nobody's.
func ParseAddr(s string) (netip.Addr, bool) {
	var a netip.Addr
	if ap, err := netip.ParseAddrPort(s); err == nil {
		a = ap.Addr()
	} else if a, err = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")); err != nil {
		return netip.Addr{}, false
	}
	a = a.Unmap().WithZone("")
	return a, !a.IsUnspecified()
}

// IPKey is the key of an address with or without a port: IPv4 whole, IPv6 by its first prefix bits, port
// and zone left out. The error wraps errKey and doesn't have the address.
func IPKey(addr string, prefix int, errKey error) (string, error) {
	a, ok := ParseAddr(addr)
	if !ok {
		return "", fmt.Errorf("%w: the connection has no IP address", errKey)
	}
	var buf [64]byte
	if a.Is4() {
		return string(a.AppendTo(buf[:0])), nil
	}
	p, err := a.Prefix(prefix)
	if err != nil { // can't be, the prefix was checked
		return "", fmt.Errorf("%w: %w", errKey, err)
	}
	return string(p.AppendTo(buf[:0])), nil
}
