package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// command runs "ration simulate" on a log given as text.
func command(t *testing.T, log string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(append([]string{"simulate"}, args...), strings.NewReader(log), &out, &errs)
	return code, out.String(), errs.String()
}

// summaries runs the command with -json.
func summaries(t *testing.T, log string, args ...string) []summary {
	t.Helper()
	code, stdout, stderr := command(t, log, append([]string{"-json"}, args...)...)
	require.Equal(t, exitOK, code, stderr)
	var sums []summary
	for line := range strings.Lines(stdout) {
		var sum summary
		require.NoError(t, json.Unmarshal([]byte(line), &sum), line)
		sums = append(sums, sum)
	}
	return sums
}

// decisions runs the command with -decisions.
func decisions(t *testing.T, log string, args ...string) []decisionLine {
	t.Helper()
	path := filepath.Join(t.TempDir(), "decisions")
	code, _, stderr := command(t, log, append([]string{"-decisions", path}, args...)...)
	require.Equal(t, exitOK, code, stderr)
	return readDecisions(t, path)
}

func readDecisions(t *testing.T, path string) []decisionLine {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	var lines []decisionLine
	for scan := bufio.NewScanner(file); scan.Scan(); {
		var line decisionLine
		require.NoError(t, json.Unmarshal(scan.Bytes(), &line), scan.Text())
		lines = append(lines, line)
	}
	return lines
}

// Ten calls at the end of a minute and ten at the beginning of the next, the
// later ones first in the file.
func TestBoundaryBurst(t *testing.T) {
	want, err := os.ReadFile("testdata/burst.txt")
	require.NoError(t, err)
	code, stdout, stderr := command(t, "", "-limit", "10/1m", "-strategy", "all", "testdata/burst.log")
	require.Equal(t, exitOK, code)
	require.Equal(t, string(want), stdout)
	require.Equal(t, "ration simulate: unreadable line 12: no address, name and user before a time in brackets:"+
		" \"the server was restarted\"\n", stderr)
}

func TestJSONSummary(t *testing.T) {
	log, err := os.ReadFile("testdata/burst.log")
	require.NoError(t, err)
	code, stdout, _ := command(t, string(log), "-limit=10/m", "-json", "-")
	require.Equal(t, exitOK, code)
	require.Equal(t, `{"strategy":"log","policy":"simulate",`+
		`"limits":[{"name":"10/1m0s","units":10,"window_us":60000000}],"by":"address",`+
		`"requests":22,"admitted":12,"refused":10,"units_admitted":12,"units_refused":10,`+
		`"subjects":2,"refused_subjects":1,"worst":[{"key":"192.0.2.1","requests":20,"refused":10}],`+
		`"unreadable":1,"first":"2015-05-17T10:00:00Z","last":"2015-05-17T10:02:00Z"}`+"\n", stdout)

	sums := summaries(t, string(log), "-limit", "10/1m", "-strategy", "all")
	require.Len(t, sums, 6)
	for i, name := range []string{"fixed", "log", "buckets", "compact", "counter", "token"} {
		require.Equal(t, name, sums[i].Strategy)
	}
}

func TestNothingToDo(t *testing.T) {
	code, stdout, stderr := command(t, "", "-limit", "1/s", "-strategy", "all", "-json")
	require.Equal(t, exitOK, code)
	require.Empty(t, stderr)
	require.Equal(t, 6, strings.Count(stdout, `"requests":0,"admitted":0,"refused":0,`))
	require.Contains(t, stdout, `"worst":[],"unreadable":0,"first":null,"last":null}`)
	code, stdout, _ = command(t, "\n\n", "-limit", "1/s")
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "no subject was refused")
	require.Empty(t, decisions(t, "", "-limit", "1/s"))
}

func TestOrderOfTimeThenOfLines(t *testing.T) {
	log := `{"time": "2026-03-01T12:00:02Z", "key": "a"}
{"time": 1772366401.000001, "key": "b"}
{"time": 1772366401, "key": "c"}
{"time": "2026-03-01T12:00:01Z", "key": "d"}
{"time": "2026-03-01T13:00:01.000000+01:00", "key": "e"}
{"time": 1772366400.9999999, "key": "f"}
`
	var order []string
	for _, d := range decisions(t, log, "-limit", "1/1s") {
		order = append(order, fmt.Sprint(d.Line, d.Key, " ", d.Time))
	}
	require.Equal(t, []string{
		"6f 2026-03-01T12:00:00.999999Z",
		"3c 2026-03-01T12:00:01Z",
		"4d 2026-03-01T12:00:01Z",
		"5e 2026-03-01T12:00:01Z",
		"2b 2026-03-01T12:00:01.000001Z",
		"1a 2026-03-01T12:00:02Z",
	}, order)
}

// Many requests at one instant: the first of the file get through.
func TestEqualTimesKeepTheirOrder(t *testing.T) {
	var log strings.Builder
	for i := range 300 {
		fmt.Fprintf(&log, `{"time": %d, "key": "a"}`+"\n", 1000+i%3)
	}
	seen := map[string]int{}
	last := 0
	for _, d := range decisions(t, log.String(), "-limit", "5/1s", "-strategy", "fixed") {
		require.Equal(t, seen[d.Time] < 5, d.Allowed)
		if seen[d.Time] > 0 {
			require.Equal(t, last+3, d.Line)
		}
		seen[d.Time]++
		last = d.Line
	}
	require.Len(t, seen, 3)
}

func TestDecisions(t *testing.T) {
	log := `{"time": 60, "key": "<a&b>", "n": 2}
{"time": 60.5, "key": "<a&b>", "n": 2}
{"time": 61, "key": "<a&b>", "n": 4}
{"time": 61, "key": "<a&b>"}
`
	path := filepath.Join(t.TempDir(), "decisions")
	code, stdout, stderr := command(t, log, "-limit", "3/10s", "-decisions", path)
	require.Equal(t, exitOK, code, stderr)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, `{"strategy":"log","time":"1970-01-01T00:01:00Z","key":"<a&b>","n":2,"allowed":true,"remaining":1,"retry_after_us":0,"line":1}
{"strategy":"log","time":"1970-01-01T00:01:00.5Z","key":"<a&b>","n":2,"allowed":false,"remaining":1,"retry_after_us":9500000,"line":2}
{"strategy":"log","time":"1970-01-01T00:01:01Z","key":"<a&b>","n":4,"allowed":false,"remaining":1,"retry_after_us":null,"line":3}
{"strategy":"log","time":"1970-01-01T00:01:01Z","key":"<a&b>","n":1,"allowed":true,"remaining":0,"retry_after_us":0,"line":4}
`, string(text))
	require.Regexp(t, `(?m)^units admitted +3$`, stdout)
	require.Regexp(t, `(?m)^units refused +6$`, stdout)

	require.NotRegexp(t, `":-`, string(text)) // B127: nothing is below 0
	all := decisions(t, log, "-limit", "3/10s", "-strategy", "all")
	require.Len(t, all, 24)
	require.Equal(t, "fixed", all[0].Strategy)
	require.Equal(t, "token", all[23].Strategy)
}

func TestUnreadableLines(t *testing.T) {
	log := `{"time": 1, "key": "a"}` + "\n" + strings.Repeat("x\n", 7) + `{"time": 2, "key": "a"}`
	code, stdout, stderr := command(t, log, "-limit", "1/1m", "-json")
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, `"requests":2,`)
	require.Contains(t, stdout, `"unreadable":7,`)
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	require.Len(t, lines, maxSamples+1)
	for i, line := range lines[:maxSamples] {
		require.Contains(t, line, fmt.Sprintf("line %d: ", i+2))
	}
	require.Equal(t, "ration simulate: and 2 more unreadable lines", lines[maxSamples])

	code, stdout, stderr = command(t, log, "-limit", "1/1m", "-strict")
	require.Equal(t, exitFailure, code)
	require.Empty(t, stdout)
	require.Regexp(t, `^ration simulate: line 2: [^\n]*"x"\n$`, stderr)
}

// The first and last times the command takes, and the longest window.
func TestTheEndsOfTime(t *testing.T) {
	log := `{"time": 0, "key": "a"}
{"time": 0, "key": "a"}
{"time": 7258118399.999998, "key": "a"}
{"time": 7258118399.999999, "key": "a"}
{"time": 7258118400, "key": "a"}
`
	for _, sum := range summaries(t, log, "-limit", "1/18250d", "-strategy", "all") {
		require.Equal(t, 2, sum.Admitted, sum.Strategy)
		require.Equal(t, 2, sum.Refused, sum.Strategy)
		require.Equal(t, 1, sum.Unreadable)
		require.Equal(t, "1970-01-01T00:00:00Z", *sum.First)
		require.Equal(t, "2199-12-31T23:59:59.999999Z", *sum.Last)
	}
}

func TestCostsBeyondCounting(t *testing.T) {
	log := strings.Repeat(`{"time": 1, "key": "a", "n": 9223372036854775807}`+"\n", 3)
	for _, sum := range summaries(t, log, "-limit", "1/1s", "-strategy", "all") {
		require.Equal(t, 3, sum.Refused)
		require.EqualValues(t, 1<<63-1, sum.UnitsRefused)
	}
}

func TestBySeveralFields(t *testing.T) {
	log, err := os.ReadFile("testdata/burst.log")
	require.NoError(t, err)
	sum := summaries(t, string(log), "-limit", "3/1h", "-by", "address,path")[0]
	require.Equal(t, 4, sum.Subjects)
	require.Equal(t, []worstSummary{
		{Key: "192.0.2.1 /a", Requests: 10, Refused: 7},
		{Key: "192.0.2.1 /b", Requests: 10, Refused: 7},
	}, sum.Worst)
}

func TestWorstTen(t *testing.T) {
	var log strings.Builder
	for i := range 15 { // k00 comes once, k01 twice; k13 and k14 as often as k12
		for range min(i, 12) + 1 {
			fmt.Fprintf(&log, `{"time": 1, "key": "k%02d"}`+"\n", i)
		}
	}
	sum := summaries(t, log.String(), "-limit", "1/1s")[0]
	require.Len(t, sum.Worst, 10)
	require.Equal(t, worstSummary{Key: "k12", Requests: 13, Refused: 12}, sum.Worst[0])
	require.Equal(t, "k13", sum.Worst[1].Key)
	require.Equal(t, "k14", sum.Worst[2].Key)
	require.Equal(t, worstSummary{Key: "k05", Requests: 6, Refused: 5}, sum.Worst[9])
	require.Equal(t, 14, sum.RefusedSubjects)
}

func TestTableIsAlignedAndSafe(t *testing.T) {
	log := strings.Repeat(`{"time": 1, "key": "\u001b[2Jä"}`+"\n", 2) +
		strings.Repeat(`{"time": 1, "key": "日本`+strings.Repeat("x", 100)+`"}`+"\n", 3)
	code, stdout, _ := command(t, log, "-limit", "1/1s")
	require.Equal(t, exitOK, code)
	require.NotContains(t, stdout, "\x1b")
	require.Contains(t, stdout, `"\x1b[2Jä"`)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	worst := lines[len(lines)-3:]
	require.True(t, strings.HasPrefix(worst[1], "日本xx"))
	require.Equal(t, len([]rune(worst[0])), len([]rune(worst[1])))
	require.Equal(t, len([]rune(worst[0])), len([]rune(worst[2])))
}

func TestReadErrorsFail(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := run([]string{"simulate", "-limit", "1/s"}, iotest.ErrReader(errors.New("torn\ncable")), &stdout, &stderr)
	require.Equal(t, exitFailure, code)
	require.Empty(t, stdout.String())
	require.Equal(t, "ration simulate: torn cable\n", stderr.String())
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no room") }

func TestWriteErrorsFail(t *testing.T) {
	for _, args := range [][]string{{"-json"}, {}} {
		var stderr bytes.Buffer
		code := run(append([]string{"simulate", "-limit", "1/s"}, args...), strings.NewReader(""), brokenWriter{}, &stderr)
		require.Equal(t, exitFailure, code)
		require.Equal(t, "ration simulate: no room\n", stderr.String())
	}
	if _, err := os.Stat("/dev/full"); err == nil {
		code, _, stderr := command(t, `{"time": 1, "key": "a"}`, "-limit", "1/s", "-decisions", "/dev/full")
		require.Equal(t, exitFailure, code)
		require.Contains(t, stderr, "no space left")
	}
}

func TestDecisionsNeverOverwriteTheLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, []byte(`{"time": 1, "key": "a"}`), 0o600))
	code, _, stderr := command(t, "", "-limit", "1/s", "-decisions", path, path)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "would write over the log")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, `{"time": 1, "key": "a"}`, string(text))
}
