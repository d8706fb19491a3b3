package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/httplimit"
	"github.com/rationgo/ration/rationtest"
)

// keyOf is the key of a request with a remote address and header fields in turns.
func keyOf(key httplimit.KeyFunc, remote string, header ...string) (string, error) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = remote
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return key(r)
}

// from makes a server believe that requests come from the address in a field X-Test-From.
func from(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a := r.Header.Get("X-Test-From"); a != "" {
			r.RemoteAddr = a
		}
		next.ServeHTTP(w, r)
	})
}

// Those without an identity get an error each, no budget to share.
func TestB71NoIdentity(t *testing.T) {
	secret := errors.New("token eyJhbGci is not signed")
	for name, key := range map[string]httplimit.KeyFunc{
		"empty":     func(*http.Request) (string, error) { return "", nil },
		"error":     func(*http.Request) (string, error) { return "", secret },
		"both":      func(*http.Request) (string, error) { return "someone", secret },
		"header":    httplimit.Header("X-Api-Key"),
		"path":      httplimit.PathValue("user"),
		"route":     httplimit.Route(),
		"joined":    httplimit.Join(httplimit.RemoteIP(), httplimit.Header("X-Api-Key")),
		"no parts":  httplimit.Join(),
		"half":      httplimit.Join(httplimit.RemoteIP(), func(*http.Request) (string, error) { return "", nil }),
		"half fail": httplimit.Join(func(*http.Request) (string, error) { return "", secret }, httplimit.RemoteIP()),
	} {
		t.Run(name, func(t *testing.T) {
			rdb := rationtest.NewRedis(t)
			l := fixedWindow(t, rdb, ration.PerMinute(1))
			s := serve(t, middleware(t, l, key)(ok))
			for range 2 {
				a := s.get("/")
				require.Equal(t, http.StatusInternalServerError, a.StatusCode)
				require.JSONEq(t, `{"type":"about:blank","title":"Internal Server Error","status":500}`, a.body)
				requireNoRateFields(t, a.Header)
			}
			require.Empty(t, rdb.Keys())

			asked := serve(t, middleware(t, l, key, httplimit.WithErrorHandler(
				func(w http.ResponseWriter, _ *http.Request, err error) {
					if errors.Is(err, httplimit.ErrKey) {
						http.Error(w, "who are you?", http.StatusBadRequest)
					}
				}))(ok))
			require.Equal(t, http.StatusBadRequest, asked.get("/").StatusCode)
		})
	}
	_, err := fixedWindow(t, rationtest.NewRedis(t), ration.PerMinute(1)).Allow(ctx, "")
	require.ErrorIs(t, err, ration.ErrInvalidKey)
}

// What the client writes into a path or a query doesn't make a budget of its own.
func TestB73RoutesShareABudget(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	limit := middleware(t, fixedWindow(t, rdb, ration.PerMinute(3)), httplimit.Route())
	mux := http.NewServeMux()
	mux.Handle("/verify/{code}", limit(ok))
	mux.Handle("/verify/{code}/{$}", limit(ok))
	mux.Handle("/other", limit(ok))
	s := serve(t, mux)
	for i, path := range []string{"/verify/1", "/verify/2?x=1", "/verify/3/"} {
		require.Equal(t, 200, s.get(path).StatusCode, i)
	}
	for _, path := range []string{"/verify/4", "/verify/5/", "/verify/6?y", "/verify/%37"} {
		require.Equal(t, http.StatusTooManyRequests, s.get(path).StatusCode, path)
	}
	require.Len(t, rdb.Keys(), 1)
	require.Equal(t, 200, s.get("/other").StatusCode)
}

func TestB104ClientBehindProxies(t *testing.T) {
	key, err := httplimit.ClientIP(httplimit.Proxies{Trusted: []string{"10.0.0.0/8"}})
	require.NoError(t, err)
	const xff = "X-Forwarded-For"
	for _, c := range []struct {
		peer   string
		header []string
		want   string
	}{
		{"10.0.0.1:99", []string{xff, "6.6.6.6, 203.0.113.7"}, "203.0.113.7"},
		{"[::ffff:10.0.0.1]:99", []string{xff, "6.6.6.6, 203.0.113.7"}, "203.0.113.7"},
		{"10.0.0.1:99", []string{xff, "203.0.113.7:4711, 10.9.9.9"}, "203.0.113.7"},
		{"10.0.0.1:99", []string{xff, "6.6.6.6", xff, "203.0.113.7"}, "203.0.113.7"},
		{"10.0.0.1:99", []string{xff, "2001:db8:1:2::9"}, "2001:db8:1:2::/64"},
		{"198.51.100.9:1", []string{xff, "6.6.6.6", "X-Real-Ip", "6.6.6.6", "Forwarded", "for=6.6.6.6"}, "198.51.100.9"},
		// Nothing to go by: the proxy itself is the subject.
		{"10.0.0.1:99", []string{xff, "203.0.113.7, garbage, 10.0.0.2"}, "10.0.0.1"},
		{"10.0.0.1:99", []string{xff, ""}, "10.0.0.1"},
		{"10.0.0.1:99", []string{xff, "10.0.0.3, 10.0.0.2"}, "10.0.0.1"},
		{"10.0.0.1:99", nil, "10.0.0.1"},
		{"10.0.0.1:99", []string{"X-Real-Ip", "6.6.6.6", "Forwarded", "for=6.6.6.6"}, "10.0.0.1"},
	} {
		got, err := keyOf(key, c.peer, c.header...)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%s %v", c.peer, c.header)
	}

	rdb := rationtest.NewRedis(t)
	s := serve(t, from(middleware(t, fixedWindow(t, rdb, ration.PerMinute(5)), key)(ok)))
	allowed := 0
	for i := range 100 {
		a := s.get("/", "X-Test-From", "10.0.0.1:99", xff, fmt.Sprintf("6.6.6.%d, 203.0.113.7", i))
		if a.StatusCode == 200 {
			allowed++
		}
	}
	require.Equal(t, 5, allowed)
	require.Len(t, rdb.Keys(), 1)
}

func TestB104NoHeaderIsTrustedByDefault(t *testing.T) {
	zero, err := httplimit.ClientIP(httplimit.Proxies{})
	require.NoError(t, err)
	for _, key := range []httplimit.KeyFunc{zero, httplimit.RemoteIP()} {
		got, err := keyOf(key, "10.0.0.1:5", "X-Forwarded-For", "6.6.6.6", "X-Real-Ip", "6.6.6.6", "Forwarded", "for=6.6.6.6")
		require.NoError(t, err)
		require.Equal(t, "10.0.0.1", got)
	}
}

func TestClientIPHeaders(t *testing.T) {
	forwarded, err := httplimit.ClientIP(httplimit.Proxies{Trusted: []string{"10.0.0.1"}, Header: "forwarded"})
	require.NoError(t, err)
	got, err := keyOf(forwarded, "10.0.0.1:5", "Forwarded", `for=6.6.6.6, for="[2001:db8:1:2::9%eth0]:99";proto=http`)
	require.NoError(t, err)
	require.Equal(t, "2001:db8:1:2::/64", got)

	single, err := httplimit.ClientIP(httplimit.Proxies{Trusted: []string{"fd00::/8"}, Header: "x-real-ip"})
	require.NoError(t, err)
	got, err = keyOf(single, "[fd00::1%eth0]:5", "X-Real-Ip", "203.0.113.7")
	require.NoError(t, err)
	require.Equal(t, "203.0.113.7", got)

	for _, bad := range []httplimit.Proxies{
		{Prefix: 47}, {Prefix: 129}, {Prefix: -1}, {Trusted: []string{"10.0.0.0/33"}}, {Trusted: []string{"proxy.local"}},
	} {
		_, err := httplimit.ClientIP(bad)
		require.ErrorIs(t, err, ration.ErrInvalidOption, bad)
	}
}

func TestB106IPv6ByPrefix(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	s := serve(t, from(middleware(t, fixedWindow(t, rdb, ration.PerMinute(5)), httplimit.RemoteIP())(ok)))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	allowed := 0
	for range 1000 {
		a := netip.MustParseAddr("2001:db8:1:2::").As16()
		for i := 8; i < 16; i++ {
			a[i] = byte(random.IntN(256))
		}
		peer := netip.AddrPortFrom(netip.AddrFrom16(a), uint16(random.IntN(65535)+1))
		if s.get("/", "X-Test-From", peer.String()).StatusCode == 200 {
			allowed++
		}
	}
	require.Equal(t, 5, allowed)

	share := func(prefix int, a, b string) bool {
		key, err := httplimit.ClientIP(httplimit.Proxies{Prefix: prefix})
		require.NoError(t, err)
		x, err := keyOf(key, a)
		require.NoError(t, err)
		y, err := keyOf(key, b)
		require.NoError(t, err)
		return x == y
	}
	require.True(t, share(0, "2001:db8:1:2::1", "2001:db8:1:2:ffff::9"))
	require.False(t, share(0, "2001:db8:1:2::1", "2001:db8:1:3::1"))
	require.True(t, share(48, "2001:db8:1:2::1", "2001:db8:1:3::1"))
	require.False(t, share(128, "2001:db8:1:2::1", "2001:db8:1:2::2"))
	require.False(t, share(48, "192.0.2.1", "192.0.2.2"), "IPv4 stays whole")
}

func TestB107MappedIPv4IsIPv4(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	s := serve(t, from(middleware(t, fixedWindow(t, rdb, ration.PerMinute(1)), httplimit.RemoteIP())(ok)))
	require.Equal(t, 200, s.get("/", "X-Test-From", "[::ffff:192.0.2.1]:1").StatusCode)
	require.Equal(t, 200, s.get("/", "X-Test-From", "[::ffff:192.0.2.2]:1").StatusCode)
	require.Equal(t, 429, s.get("/", "X-Test-From", "192.0.2.1:7").StatusCode)
}

func TestB109PortsDontCount(t *testing.T) {
	key := httplimit.RemoteIP()
	for want, peers := range map[string][]string{
		"1.2.3.4":       {"1.2.3.4:52241", "1.2.3.4:1", "1.2.3.4", "::ffff:1.2.3.4", "[::ffff:1.2.3.4]:80"},
		"2001:db8::/64": {"[2001:db8::1]:443", "2001:db8::1", "[2001:db8::1]", "[2001:db8::1%eth0]:443", "2001:db8::1%1"},
		"::/64":         {"::1", "[::1]:80"},
		"fe80::/64":     {"[fe80::1%eth0]:1", "[fe80::2%eth1]:1"},
	} {
		for _, peer := range peers {
			got, err := keyOf(key, peer)
			require.NoError(t, err, peer)
			require.Equal(t, want, got, peer)
		}
	}
	for _, peer := range []string{"@", "", "/run/http.sock", "localhost:80", "1.2.3.4:port", ":80", "0.0.0.0:1", "[::]:1"} {
		_, err := keyOf(key, peer)
		require.ErrorIs(t, err, httplimit.ErrKey, peer)
		if len(peer) > 1 {
			require.NotContains(t, err.Error(), peer)
		}
	}

	// Connections of one client, each from a port of its own, share its budget.
	rdb := rationtest.NewRedis(t)
	s := serve(t, middleware(t, fixedWindow(t, rdb, ration.PerMinute(2)), key)(ok))
	s.client.Transport.(*http.Transport).DisableKeepAlives = true
	for i, want := range []int{200, 200, 429, 429} {
		require.Equal(t, want, s.get("/").StatusCode, i)
	}
	require.Len(t, rdb.Keys(), 1)
}

func TestB112ExemptRequestsCostNothing(t *testing.T) {
	rdb := rationtest.NewRedis(t)
	below := fixedWindow(t, rdb, ration.PerMinute(1))
	var calls atomic.Int64
	counted := ration.LimiterFunc(func(ctx context.Context, r ration.Request) (ration.Decision, error) {
		calls.Add(1)
		return r.Do(ctx, below)
	})
	skip := func(r *http.Request) bool { return r.URL.Path == "/healthz" }
	s := serve(t, middleware(t, counted, httplimit.Header("X-Api-Key"), allForms, httplimit.WithSkip(skip))(ok))
	for range 1000 {
		a := s.get("/healthz") // without an identity
		require.Equal(t, 200, a.StatusCode)
		requireNoRateFields(t, a.Header)
	}
	require.Zero(t, calls.Load())
	require.Empty(t, rdb.Keys())
	require.Equal(t, 200, s.get("/", "X-Api-Key", "k").StatusCode)
	require.Equal(t, 429, s.get("/", "X-Api-Key", "k").StatusCode)
}

// Parts that run into each other are still different keys.
func TestJoinDoesNotCollide(t *testing.T) {
	key := httplimit.Join(httplimit.Header("A"), httplimit.Header("B"))
	parts := []string{"a", "ab", "abc", "b", "bc", "c", "1:a", "1", ":", "2:ab1:c", "a1:b", "é"}
	seen := map[string][2]string{}
	for _, a := range parts {
		for _, b := range parts {
			k, err := keyOf(key, "1.2.3.4:5", "A", a, "B", b)
			require.NoError(t, err)
			require.NotContains(t, seen, k, "%q %q", a, b)
			seen[k] = [2]string{a, b}
		}
	}
	_, err := keyOf(httplimit.Header("A"), "1.2.3.4:5", "A", "x", "A", "y")
	require.ErrorIs(t, err, httplimit.ErrKey, "which of two would it be?")
}

func TestPathValue(t *testing.T) {
	limit := middleware(t, local(t, ration.PerMinute(1)), httplimit.PathValue("user"))
	mux := http.NewServeMux()
	mux.Handle("GET /users/{user}/mail", limit(ok))
	s := serve(t, mux)
	require.Equal(t, 200, s.get("/users/ann/mail").StatusCode)
	require.Equal(t, 200, s.get("/users/bob/mail").StatusCode)
	require.Equal(t, 429, s.get("/users/ann/mail").StatusCode)
}
