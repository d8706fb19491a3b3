package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/fakeredis"
)

// The burst over a turn of the minute, which the fixed window lets through and the others don't.
func TestCompare(t *testing.T) {
	log, err := os.ReadFile("testdata/burst.log")
	require.NoError(t, err)
	code, stdout, _ := command(t, string(log), "-limit", "10/1m", "-strategy", "all", "-compare", "log")
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, `
admitted, also by log                12      12       12       12       12      12
admitted, but not by log             10       0        0        0        0       0
refused, also by log                  0      10       10       10       10      10
refused, but not by log               0       0        0        0        0       0
verdicts that differ            45.455%  0.000%   0.000%   0.000%   0.000%  0.000%
`)
	sums := summaries(t, string(log), "-limit", "10/1m", "-strategy", "log", "-compare", "fixed")
	require.Equal(t, &compareTotals{Strategy: "fixed", Both: 12, OnlyOther: 10}, sums[0].Compare)
	require.Equal(t, summaries(t, string(log), "-limit", "10/1m")[0].Admitted, sums[0].Admitted, "the second changes nothing")

	code, stdout, _ = command(t, "", "-limit", "10/1m", "-compare", "log")
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "verdicts that differ")
	require.NotContains(t, stdout, "NaN")
	_, stdout, _ = command(t, string(log), "-limit", "10/1m", "-json")
	require.NotContains(t, stdout, "compare")
}

// How often each strategy's verdict on the site's log differs from the exact one. The log has a minute of each hour, which
// suits no strategy's guess: under real traffic, that comes all the time, the counter is nearer.
func TestSiteLogAgainstTheExactLog(t *testing.T) {
	if testing.Short() || raceDetector {
		t.Skip("many ten thousands of decisions")
	}
	for _, c := range []struct {
		limit, strategy string
		most            float64 // percent
	}{
		{"20/5h", "counter", 2.6}, {"50/24h", "counter", 3.4}, {"50/24h", "fixed", 6.1},
	} {
		sum := summaries(t, "", "-limit", c.limit, "-strategy", c.strategy, "-compare", "log", siteLog)[0]
		differ := 100 * float64(sum.Compare.OnlyThis+sum.Compare.OnlyOther) / float64(sum.Requests)
		t.Logf("%s, %s: %.2f %% of verdicts differ: %d let in and %d refused against the log",
			c.limit, c.strategy, differ, sum.Compare.OnlyThis, sum.Compare.OnlyOther)
		require.LessOrEqual(t, differ, c.most, c.limit)
		require.Equal(t, sum.Requests, sum.Compare.Both+sum.Compare.Neither+sum.Compare.OnlyThis+sum.Compare.OnlyOther)
		require.Equal(t, sum.Admitted, sum.Compare.Both+sum.Compare.OnlyThis)
	}
}

// A shadow lets all pass, and tells what the limit would have refused, and whom.
func TestShadow(t *testing.T) {
	log, err := os.ReadFile("testdata/burst.log")
	require.NoError(t, err)
	code, stdout, _ := command(t, string(log), "-limit", "10/1m", "-strategy", "all", "-shadow")
	require.Equal(t, exitOK, code)
	require.Regexp(t, `(?m)^admitted +22 +22 +22 +22 +22 +22$`, stdout)
	require.Regexp(t, `(?m)^refused +0 +0 +0 +0 +0 +0$`, stdout)
	require.Regexp(t, `(?m)^let through by the shadow +0 +10 +10 +10 +10 +10$`, stdout)
	require.Regexp(t, `(?m)^192\.0\.2\.1 +20 +0 +10 +10 +10 +10 +10$`, stdout)
	sums := summaries(t, string(log), "-limit", "10/1m", "-shadow", "-compare", "fixed")
	require.Equal(t, 22, sums[0].Admitted)
	require.Equal(t, 10, sums[0].Shadowed)
	require.Equal(t, &compareTotals{Strategy: "fixed", Both: 12, OnlyOther: 10}, sums[0].Compare)
}

// A burst is the token bucket's; the others count the same Units without one.
func TestBurstOfTheBucket(t *testing.T) {
	log := ""
	for range 9 {
		log += `{"time": 60, "key": "a"}` + "\n"
	}
	for i, want := range []int{5, 5, 5, 5, 5, 8} {
		require.Equal(t, want, summaries(t, log, "-limit", "5/10s+8", "-strategy", "all")[i].Admitted, i)
	}
	sums := summaries(t, log, "-limit", "5/10s+8", "-strategy", "token", "-compare", "log")
	require.Equal(t, &compareTotals{Strategy: "log", Both: 5, Neither: 1, OnlyThis: 3}, sums[0].Compare)
}

// What simulate says would be refused is what ration.NewShadow would report.
func TestSimulateIsAShadow(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(string(readFile(t, siteLog))), "\n")[:2000]
	log := strings.Join(lines, "\n")
	s, err := parseSettings([]string{"-limit", "5/1h"})
	require.NoError(t, err)
	traffic, err := s.readLog(strings.NewReader(log), nil)
	require.NoError(t, err)

	server, err := fakeredis.StartWithoutTTL(time.UnixMicro(traffic.requests[0].micros))
	require.NoError(t, err)
	defer server.Close()
	rdb := server.Client()
	defer rdb.Close()
	var refused []int
	limiter, store, err := open(rdb, "shadow", strategies[1], s.policy)
	require.NoError(t, err)
	defer store.Close()
	at := 0
	shadow, err := ration.NewShadow(limiter, ration.WithObserver(shadows{told: func() { refused = append(refused, at) }}))
	require.NoError(t, err)
	for i, r := range traffic.requests {
		at = i
		server.SetTime(time.UnixMicro(r.micros))
		d, err := shadow.AllowN(context.Background(), traffic.keys[r.key], r.n)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
	var want []int
	for i, d := range decisions(t, log, "-limit", "5/1h") {
		if !d.Allowed {
			want = append(want, i)
		}
	}
	require.NotEmpty(t, want)
	require.True(t, slices.Equal(want, refused))
}

type shadows struct {
	ration.NopObserver
	told func()
}

func (s shadows) Shadowed(ration.ShadowEvent) { s.told() }

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}
