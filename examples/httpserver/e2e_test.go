package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

const (
	freeKey = "free-key"
	proKey  = "pro-key"
)

// plans is a config with windows so long that none ends while a test runs.
func plans(free, pro int) string {
	return fmt.Sprintf(`{
		"plans": {"free": ["%d/30m", "1000000/24h"], "pro": ["%d/30m", "2000000/24h"]},
		"login": ["3/30m"],
		"clients": [{"name": "ann", "key": "free-key", "plan": "free"}, {"name": "ben", "key": "pro-key", "plan": "pro"}]
	}`, free, pro)
}

// counted asks Redis itself for what a client has used under a plan's first limit.
func counted(t *testing.T, server *redistest.Server, text, plan, client string) int {
	t.Helper()
	store, err := ration.Open(server.Client(t), ration.WithPrefix("httpserver"), ration.WithTimeout(patience))
	require.NoError(t, err)
	defer store.Close()
	var c config
	require.NoError(t, json.Unmarshal([]byte(text), &c))
	limiter, err := ration.NewSlidingLog(store, policy(plan, c.Plans[plan]))
	require.NoError(t, err)
	d, err := limiter.Peek(t.Context(), client)
	require.NoError(t, err)
	require.Len(t, d.Limits, 2)
	used := d.Limits[0].Limit.Units - d.Limits[0].Remaining
	require.Equal(t, used, d.Limits[1].Limit.Units-d.Limits[1].Remaining, "both limits are charged alike")
	return int(used)
}

// Two instances and two clients at once: each client gets its limit over both instances, to the unit, however
// much it asks for.
func TestInstancesShareTheLimits(t *testing.T) {
	const free, pro = 200, 1500
	conf := plans(free, pro)
	server := redistest.Start(t)
	a, b := startInstance(t, server.Addr(), conf), startInstance(t, server.Addr(), conf)

	total := map[string]statuses{freeKey: {}, proKey: {}}
	asked := map[string]int{}
	wave := func(key string, n int) (runs []*hey) {
		for _, i := range []*instance{a, b} {
			runs = append(runs, load(t, i.url+"/api/quote", key, n, 5))
			asked[key] += n
		}
		return runs
	}
	first := map[string][]*hey{freeKey: wave(freeKey, 500), proKey: wave(proKey, 1500)}
	for key, runs := range first {
		for _, h := range runs {
			total[key].add(h.statuses(t))
		}
	}
	// Units that an instance holds in a block, or has remembered a refusal for, are to be had a moment later.
	for key, want := range map[string]int{freeKey: free, proKey: pro} {
		for i := 0; total[key][http.StatusOK] < want; i++ {
			require.Less(t, i, 100, "units are lost")
			for _, h := range wave(key, 100) {
				total[key].add(h.statuses(t))
			}
		}
		require.Equal(t, statuses{http.StatusOK: want, http.StatusTooManyRequests: asked[key] - want}, total[key])
	}
	for name, key := range map[string]string{"free": freeKey, "pro": proKey} {
		require.Equal(t, total[key][http.StatusOK], decisions(name, "allowed", a, b), "metrics of %s", name)
		require.Equal(t, total[key][http.StatusTooManyRequests], decisions(name, "refused", a, b), "metrics of %s", name)
	}
	require.Equal(t, free, counted(t, server, conf, "free", "ann"))
	require.Equal(t, pro, counted(t, server, conf, "pro", "ben"))

	const guesses = 3 // "login": 3/30m
	require.Equal(t, statuses{http.StatusUnauthorized: guesses, http.StatusTooManyRequests: 50 - guesses},
		load(t, a.url+"/api/quote", "no-key", 50, 5).statuses(t))
	require.Equal(t, free+pro, decisions("free", "allowed", a, b)+decisions("pro", "allowed", a, b))
	require.Zero(t, a.stop())
	require.Zero(t, b.stop())
}

// A call of five units is let in whole or not at all.
func TestCostsOverInstances(t *testing.T) {
	conf := plans(53, 1)
	server := redistest.Start(t)
	a, b := startInstance(t, server.Addr(), conf), startInstance(t, server.Addr(), conf)
	got := statuses{}
	for i := 0; got[http.StatusOK] < 10; i++ {
		require.Less(t, i, 100)
		for _, in := range []*instance{a, b} {
			got.add(load(t, in.url+"/api/search?q=the", freeKey, 20, 2).statuses(t))
		}
	}
	require.Equal(t, 10, got[http.StatusOK])
	eventually(t, func() error {
		if n := counted(t, server, conf, "free", "ann"); n != 50 {
			return fmt.Errorf("%d units are counted", n)
		}
		return nil
	})
	require.Zero(t, a.stop())
	require.Zero(t, b.stop())
}

// Failed logins of an address count over both instances; good ones don't.
func TestLogins(t *testing.T) {
	conf := plans(1, 1)
	server := redistest.Start(t)
	a, b := startInstance(t, server.Addr(), conf), startInstance(t, server.Addr(), conf)
	login := func(i *instance, key string, n int) statuses {
		return load(t, i.url+"/api/login", "", n, 1, "-m", "POST", "-T", "application/x-www-form-urlencoded", "-d", "key="+key).statuses(t)
	}
	require.Equal(t, statuses{200: 10}, login(a, proKey, 10))
	require.Equal(t, statuses{401: 1}, login(a, "wrong", 1))
	require.Equal(t, statuses{200: 10}, login(b, freeKey, 10))
	require.Equal(t, statuses{401: 2, 429: 8}, login(b, "wrong", 10))
	require.Equal(t, statuses{429: 10}, login(a, proKey, 10), "the address is known to guess")
	require.Equal(t, 3, failedLogins(a, b))
	require.Zero(t, a.stop())
	require.Zero(t, b.stop())
}

// failedLogins are the failed logins by the metrics: charged and not refunded.
func failedLogins(instances ...*instance) int {
	n := 0
	for _, i := range instances {
		n += i.sum("ration_units_granted_total", "ration_policy", "login") - i.sum("ration_units_refunded_total", "ration_policy", "login")
	}
	return n
}

// SIGTERM under load, while blocks of units are held: what is under way is finished, streams end, the exit code is 0, and
// Redis counts what clients got an answer for, no more and no less.
func TestStopUnderLoadGivesUnitsBack(t *testing.T) {
	conf := plans(1, 500_000)
	server := redistest.Start(t)
	a, b := startInstance(t, server.Addr(), conf), startInstance(t, server.Addr(), conf)
	streams := []*bufio.Scanner{openStream(t, a), openStream(t, b)}
	runs := []*hey{load(t, a.url+"/api/quote", proKey, 400_000, 8), load(t, b.url+"/api/quote", proKey, 400_000, 8)}
	eventually(t, func() error {
		for _, i := range []*instance{a, b} {
			leased := i.sum("ration_units_granted_total", "ration_policy", "pro", "ration_source", "lease")
			if leased < 500 {
				return fmt.Errorf("%d units from blocks", leased)
			}
		}
		return nil
	})
	require.NoError(t, a.cmd.Process.Signal(os.Interrupt))
	require.Zero(t, a.wait(t), "on SIGINT")
	require.Zero(t, b.stop(), "on SIGTERM")
	for _, s := range streams {
		for s.Scan() {
			require.NotContains(t, s.Text(), proKey)
		}
		require.NoError(t, s.Err(), "the stream ends as one that is complete")
	}
	got := statuses{}
	for _, h := range runs {
		_ = h.cmd.Process.Signal(os.Interrupt) // nobody answers any more; it may have given up itself
		got.add(h.statuses(t))
	}
	require.Len(t, got, 1, "%v", got)
	require.Equal(t, got[http.StatusOK], counted(t, server, conf, "pro", "ben"))
	require.Less(t, got[http.StatusOK], 500_000)
}

// openStream opens /live and waits for an event.
func openStream(t *testing.T, i *instance) *bufio.Scanner {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.url+"/live", nil)
	require.NoError(t, err)
	r.Close = true
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	s := bufio.NewScanner(resp.Body)
	for s.Scan() {
		if strings.HasPrefix(s.Text(), "data: ") {
			return s
		}
	}
	t.Fatal("no event")
	return nil
}

// Without Redis each of the two instances lets through half of the limit, as FailLocal(2) says, and
// tells so; when Redis is back they share again by themselves.
func TestOutage(t *testing.T) {
	const free = 100
	conf := plans(free, 1)
	server := redistest.Start(t)
	a, b := startInstance(t, server.Addr(), conf), startInstance(t, server.Addr(), conf)
	both := []*instance{a, b}
	require.Equal(t, statuses{200: 30}, load(t, a.url+"/api/quote", freeKey, 30, 1).statuses(t))
	eventually(t, func() error { return holdsNothing(a) })
	require.Equal(t, 30, counted(t, server, conf, "free", "ann"))

	server.Stop()
	for _, i := range both {
		require.Equal(t, statuses{200: free / 2, 429: free / 2}, load(t, i.url+"/api/quote", freeKey, free, 4).statuses(t))
		require.Equal(t, free/2, i.sum("ration_units_granted_total", "ration_policy", "free", "ration_degraded", "true"))
		require.True(t, budgetOf(i).Degraded)
	}

	server.Restart() // empty
	eventually(t, func() error {
		for _, i := range both {
			if budgetOf(i).Degraded {
				return errors.New("still without Redis")
			}
		}
		return nil
	})
	got := statuses{}
	for n := 0; got[http.StatusOK] < free; n++ {
		require.Less(t, n, 100)
		for _, i := range both {
			got.add(load(t, i.url+"/api/quote", freeKey, 60, 4).statuses(t))
		}
	}
	require.Equal(t, free, got[http.StatusOK])
	require.Equal(t, free, counted(t, server, conf, "free", "ann"))
	require.Equal(t, free+30, decisions("free", "allowed", a, b)-free, "of which %d without Redis", free)
	require.Zero(t, a.stop())
	require.Zero(t, b.stop())
	require.Contains(t, a.stderr.String(), "circuit breaker opened")
	require.NotContains(t, a.stderr.String(), freeKey)
}

// holdsNothing says whether all units that were taken in blocks are spent or given back.
func holdsNothing(i *instance) error {
	spent := i.sum("ration_units_granted_total", "ration_source", "lease")
	taken, unused := i.sum("ration_lease_taken_total"), i.sum("ration_lease_unused_total")
	if taken != spent+unused {
		return fmt.Errorf("%d units taken, %d spent, %d given back", taken, spent, unused)
	}
	return nil
}

func budgetOf(i *instance) (st state) {
	i.t.Helper()
	status, body := i.get("/api/budget", freeKey)
	require.Equal(i.t, http.StatusOK, status)
	require.NoError(i.t, json.Unmarshal([]byte(body), &st))
	return st
}
