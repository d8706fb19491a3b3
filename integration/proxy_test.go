package integration

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// proxy is a network between clients and a server that a test may spoil.
type proxy struct {
	t  testing.TB
	mu sync.Mutex
	p  *toxiproxy.Proxy
}

func newProxy(t testing.TB, upstream string) *proxy {
	t.Helper()
	p := toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()),
		strings.ReplaceAll(t.Name(), "/", "-"), "127.0.0.1:0", upstream)
	require.NoError(t, p.Start())
	t.Cleanup(p.Stop)
	return &proxy{t: t, p: p}
}

// Addr is where clients find the server.
func (p *proxy) Addr() string { return p.p.Listen }

// spoil adds a toxic to what comes from the server; cure takes it away again.
func (p *proxy) spoil(kind, attribute string, value int) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.p.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
		`{"name": %q, "type": %q, "stream": "downstream", "attributes": {%q: %d}}`, kind, kind, attribute, value)))
	require.NoError(p.t, err)
}

func (p *proxy) cure(kind string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NoError(p.t, p.p.Toxics.RemoveToxic(ctx, kind))
}

// deafen swallows all replies from now on. Hearing ends that, and with it the
// connections that lost some: none of the replies ever arrives.
func (p *proxy) deafen()  { p.spoil("timeout", "timeout", 0) }
func (p *proxy) hearing() { p.cure("timeout") }

// cut closes all connections; new ones pass.
func (p *proxy) cut() {
	p.deafen()
	p.hearing()
}
