package main

import (
	"bufio"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const siteLog = "testdata/access.log" // 10,000 requests of 1,753 addresses

// plainRequest is a line of the log, read in another way than the command does.
type plainRequest struct {
	key string
	at  int64 // microseconds
}

func readPlainly(t *testing.T) []plainRequest {
	t.Helper()
	file, err := os.Open(siteLog)
	require.NoError(t, err)
	defer file.Close()
	var all []plainRequest
	for scan := bufio.NewScanner(file); scan.Scan(); {
		words := strings.Fields(scan.Text())
		at, err := time.Parse("[02/Jan/2006:15:04:05 -0700]", words[3]+" "+words[4])
		require.NoError(t, err)
		all = append(all, plainRequest{words[0], at.UnixMicro()})
	}
	slices.SortStableFunc(all, func(a, b plainRequest) int { return cmp.Compare(a.at, b.at) })
	return all
}

// counts gives how many of the requests that were let in count at now.
type counts func(admitted []int64, now int64, l plainLimit) int64

// number counts those for which still says so.
func number(still func(then, now, window int64) bool) counts {
	return func(admitted []int64, now int64, l plainLimit) (used int64) {
		for _, then := range admitted {
			if still(then, now, l.window) {
				used++
			}
		}
		return used
	}
}

// plainly lists, for each strategy, what counts.
func plainly(slots int64) map[string]counts {
	this := func(then, now, window int64) bool { return then/window == now/window }
	before := func(then, now, window int64) bool { return then/window == now/window-1 }
	return map[string]counts{
		"fixed":   number(this),
		"log":     number(func(then, now, window int64) bool { return then > now-window }),
		"compact": number(func(then, now, window int64) bool { return then > now-window }),
		"buckets": number(func(then, now, window int64) bool {
			width := (window + slots - 1) / slots
			return now/width-then/width <= slots
		}),
		"counter": func(admitted []int64, now int64, l plainLimit) int64 {
			weighted := number(before)(admitted, now, l) * (l.window - now%l.window)
			return number(this)(admitted, now, l) + (weighted+l.window-1)/l.window
		},
		"token": func(admitted []int64, now int64, l plainLimit) int64 {
			out, last := int64(0), int64(0) // of a token, window parts
			for _, then := range append(slices.Clone(admitted), now) {
				out, last = max(0, out-(then-last)*l.units), then
				out += l.window
			}
			return (out - 1) / l.window // without the one at now, rounded up
		},
	}
}

// plainLimit is units in a window of microseconds.
type plainLimit struct{ units, window int64 }

// countPlainly replays the log in the slowest and plainest way: it keeps all
// that was let in, and counts it anew for each request.
func countPlainly(all []plainRequest, limits []plainLimit, used counts) (refused map[string]int, verdicts []bool) {
	admitted := map[string][]int64{}
	refused = map[string]int{}
	for _, r := range all {
		allowed := true
		for _, l := range limits {
			allowed = allowed && used(admitted[r.key], r.at, l) < l.units
		}
		if allowed {
			admitted[r.key] = append(admitted[r.key], r.at)
		} else {
			refused[r.key]++
		}
		verdicts = append(verdicts, allowed)
	}
	return refused, verdicts
}

func total(refused map[string]int) int {
	n := 0
	for _, r := range refused {
		n += r
	}
	return n
}

// Each of the 10,000 verdicts is what plain counting gives. The log has a
// minute of each hour, so the longer limits are those that tell the
// strategies apart.
func TestSiteLogAgainstPlainCounting(t *testing.T) {
	if testing.Short() {
		t.Skip("some ten thousands of decisions")
	}
	all := readPlainly(t)
	require.Len(t, all, 10_000)
	for _, c := range []struct {
		name   string
		args   []string
		limits []plainLimit
		slots  int64
	}{
		{"10 a minute", []string{"-limit", "10/1m"}, []plainLimit{{10, 60e6}}, 20},
		{"3 in 7s and 20 in 5h", []string{"-limit", "3/7s", "-limit", "20/5h", "-slots", "3"},
			[]plainLimit{{3, 7e6}, {20, 5 * 3600e6}}, 3},
	} {
		if raceDetector && len(c.limits) > 1 {
			continue // a minute more, and nothing new for it to see
		}
		for name, used := range plainly(c.slots) {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				refused, verdicts := countPlainly(all, c.limits, used)
				path := filepath.Join(t.TempDir(), "decisions")
				start := time.Now()
				sum := summaries(t, "", append([]string{"-strategy", name, "-decisions", path, siteLog}, c.args...)...)[0]
				t.Logf("%d refused, in %v", sum.Refused, time.Since(start))
				if len(c.limits) == 1 && !raceDetector {
					require.Less(t, time.Since(start), 20*time.Second)
				}
				require.Equal(t, 10_000, sum.Requests)
				require.Equal(t, 1753, sum.Subjects)
				require.Equal(t, total(refused), sum.Refused)
				require.Equal(t, 10_000-total(refused), sum.Admitted)
				require.Equal(t, len(refused), sum.RefusedSubjects)
				require.Zero(t, sum.Unreadable)
				require.Len(t, sum.Worst, 10)
				for _, w := range sum.Worst {
					require.Equal(t, refused[w.Key], w.Refused)
				}
				for i, d := range readDecisions(t, path) {
					require.Equal(t, all[i].key, d.Key)
					require.Equal(t, verdicts[i], d.Allowed, "line %d", d.Line)
				}
			})
		}
	}
}
