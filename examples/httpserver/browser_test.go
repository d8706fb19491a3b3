package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration/internal/redistest"
)

var screenshot = flag.String("screenshot", "", "write a picture of the page to `FILE`")

const pageConfig = `{
	"plans": {"free": ["20/1h", "100/24h"], "pro": ["2000/1h"]},
	"login": ["3/1h"],
	"clients": [{"name": "ada", "key": "demo-free-key", "plan": "free"}, {"name": "bob", "key": "other-key", "plan": "pro"}]
}`

// browser is a headless Chromium on one page.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	errors []string        // from its console
	hosts  map[string]bool // that it asked for anything
}

// chromium gives the program's path. Without it the test is skipped, or fails where that is forbidden, as redistest has it.
func chromium(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err == nil {
		return path
	}
	if os.Getenv("RATION_REQUIRE_REDIS") == "1" {
		t.Fatal("this test needs chromium, which is missing (Debian: apt-get install chromium)")
	}
	t.Skip("SKIPPED: it needs chromium, which is missing (Debian: apt-get install chromium)")
	return ""
}

// openBrowser starts one that can't leave this machine, not for its own errands either: no name is found, and all that
// isn't on 127.0.0.1 goes to a proxy that isn't there.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium(t)), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-domain-reliability", true), chromedp.Flag("no-pings", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.ProxyServer("http://127.0.0.1:9"), chromedp.WindowSize(1040, 760),
	)
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, _ := chromedp.NewContext(alloc)
	b := &browser{t: t, ctx: ctx, hosts: map[string]bool{}}
	t.Cleanup(func() {
		require.NoError(t, chromedp.Cancel(ctx)) // closes the browser and waits for it
		cancel()
	})
	require.NoError(t, chromedp.Listen(ctx, b.hear)) // starts it
	return b
}

// hear notes errors and hosts.
func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err != nil || u.Scheme != "data" {
			b.hosts[e.Request.URL[:max(0, len(e.Request.URL)-len(u.RequestURI()))]] = true
		}
	case *runtime.EventExceptionThrown:
		b.errors = append(b.errors, fmt.Sprint(e.ExceptionDetails))
	case *runtime.EventConsoleAPICalled:
		b.errors = append(b.errors, fmt.Sprint(e.Type, e.Args))
	case *log.EventEntryAdded:
		b.errors = append(b.errors, e.Entry.Text+" "+e.Entry.URL)
	}
}

// do makes one step in the browser and gives what comes of it.
func do[T any](b *browser, a chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	got, err := chromedp.Run(ctx, a)
	require.NoError(b.t, err)
	return got
}

// sees polls until an expression has a value.
func sees[T any](b *browser, expression string, want T) {
	b.t.Helper()
	eventually(b.t, func() error {
		got := do(b, chromedp.Evaluate[T](expression))
		if !reflect.DeepEqual(got, want) {
			return fmt.Errorf("%s is %v, not %v", expression, got, want)
		}
		return nil
	})
}

const (
	left     = `[...document.querySelectorAll("#limits .left")].map(e => e.innerText)`
	refusals = `[...document.querySelectorAll("#refusals tr")].map(r => [...r.cells].slice(1).map(c => c.innerText).join(" | "))`
	notice   = `document.getElementById("degraded").checkVisibility()`
)

// A visitor sees the budget go down as requests are made, also elsewhere, sees a refusal, and that Redis is away.
func TestPageInBrowser(t *testing.T) {
	chromium(t)
	server := redistest.Start(t)
	i := startInstance(t, server.Addr(), pageConfig)
	b := openBrowser(t)
	do(b, chromedp.Navigate(i.url))
	sees(b, `document.getElementById("connection").innerText`, "live")
	sees(b, left, []string{"3 left"}) // of the address's failed logins

	do(b, chromedp.Click("#login button"))
	sees(b, `document.getElementById("who").innerText`, "ada, plan free")
	sees(b, left, []string{"20 left", "100 left"})
	i.asks("/api/quote", 7, http.StatusOK)
	sees(b, left, []string{"13 left", "93 left"})
	do(b, chromedp.Click(`[data-get="/api/quote"]`))
	sees(b, left, []string{"12 left", "92 left"})
	require.Empty(t, do(b, chromedp.Evaluate[[]string](refusals)))
	i.asks("/api/search?q=<b>secret</b>", 2, http.StatusOK)
	i.asks("/api/search?q=<b>secret</b>", 1, http.StatusTooManyRequests)
	sees(b, left, []string{"2 left", "82 left"})
	sees(b, refusals, []string{"free | 20 per hour | /api/search"})
	require.Equal(t, []int{401, 401, 401, 429}, i.guesses(4))
	sees(b, refusals, []string{"login | 3 per hour | /api/login", "free | 20 per hour | /api/search"})
	b.picture(*screenshot)

	i.asks("/api/quote", 2, http.StatusOK)
	i.asks("/api/quote", 1, http.StatusTooManyRequests)
	sees(b, left, []string{"used up", "80 left"})
	sees(b, refusals, []string{"free | 20 per hour | /api/quote", "login | 3 per hour | /api/login", "free | 20 per hour | /api/search"})
	b.requireAccessible()

	sees(b, notice, false)
	server.Stop()
	sees(b, notice, true)
	server.Restart()
	sees(b, notice, false)
	do(b, chromedp.Click("#logout"))
	sees(b, `document.getElementById("who").innerText`, "sign-ins of your address that may fail")
	sees(b, left, []string{"3 left"}) // the new Redis is empty

	page := do(b, chromedp.OuterHTML("html"))
	for _, secret := range []string{"secret", "other-key", "bob"} {
		require.NotContains(t, page, secret)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(t, b.errors)
	require.Equal(t, map[string]bool{i.url: true}, b.hosts)
}

// asks makes requests of the free client beside the browser.
func (i *instance) asks(path string, n, status int) {
	i.t.Helper()
	for range n {
		got, body := i.get(strings.ReplaceAll(strings.ReplaceAll(path, "<", "%3C"), ">", "%3E"), "demo-free-key")
		require.Equal(i.t, status, got, body)
	}
}

// guesses makes n failing logins and gives the statuses.
func (i *instance) guesses(n int) (got []int) {
	i.t.Helper()
	for range n {
		resp, err := http.PostForm(i.url+"/api/login", url.Values{"key": {"guess"}})
		require.NoError(i.t, err)
		require.NoError(i.t, resp.Body.Close())
		got = append(got, resp.StatusCode)
	}
	return got
}

// requireAccessible looks for what can be told without eyes: names, roles, values, and no sideways scrolling on
// a narrow screen.
func (b *browser) requireAccessible() {
	b.t.Helper()
	require.Equal(b.t, []string{"left of 20 per hour: 0 of 20", "left of 100 per day: 80 of 100"}, do(b, chromedp.Evaluate[[]string](
		`[...document.querySelectorAll("[role=meter]")].map(m => m.ariaLabel + ": " + m.ariaValueNow + " of " + m.ariaValueMax)`)))
	require.Empty(b.t, do(b, chromedp.Evaluate[[]string](`[...document.querySelectorAll("input")].filter(i => !i.labels.length).map(i => i.id)`)))
	require.Empty(b.t, do(b, chromedp.Evaluate[[]string](`[...document.querySelectorAll("section")].filter(
		s => !document.getElementById(s.getAttribute("aria-labelledby"))).map(s => s.outerHTML)`)))
	do(b, chromedp.EmulateViewport(320, 640))
	sees(b, `document.documentElement.scrollWidth <= 320`, true)
	do(b, chromedp.ResetViewport())
}

// picture writes a PNG of the page to a file, "" for none.
func (b *browser) picture(file string) {
	b.t.Helper()
	if file == "" {
		return
	}
	do(b, chromedp.EmulateViewport(960, 620))
	sees(b, `document.getAnimations().length`, 0)
	png := do(b, chromedp.CaptureScreenshot())
	require.NoError(b.t, os.WriteFile(file, png, 0o644))
	do(b, chromedp.ResetViewport())
}
