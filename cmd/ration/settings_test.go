package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/cmd/ration/internal/reqlog"
)

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"help"}, {"-h"}, {"--help"}, {"simulate", "-h"}, {"simulate", "-limit", "1/s", "--help"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitOK, run(args, strings.NewReader(""), &stdout, &stderr), args)
		require.Contains(t, strings.ToLower(stdout.String()), "usage:")
		require.Empty(t, stderr.String())
	}
}

func TestMistakesAreOneLine(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	require.NoError(t, os.WriteFile(bad, []byte("limits: [10/1m]\nlimit: 1\nbye: 2\n"), 0o600))
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"explode", exitUsage, `unknown command "explode"`},
		{"simulate", exitUsage, "no limit"},
		{"simulate -limit", exitUsage, "needs an argument: -limit"},
		{"simulate -limit 10", exitUsage, `"10" isn't UNITS/WINDOW`},
		{"simulate -limit x/1m", exitUsage, `"x" is no number of units`},
		{"simulate -limit -1/1m", exitUsage, `"-1" is no number of units`},
		{"simulate -limit 10/1x", exitUsage, `"1x" is no window`},
		{"simulate -limit 10/1m+x", exitUsage, `"x" is no burst`},
		{"simulate -limit 10/1m+0", exitUsage, `"0" is no burst`},
		{"simulate -limit 10/1m+5 -strategy log", exitUsage, "has no Burst"},
		{"simulate -limit 10/", exitUsage, `"" is no window`},
		{"simulate -limit 10/0s", exitUsage, "Window 0s is not in 1ms"},
		{"simulate -limit 10/1us", exitUsage, "is not in 1ms"},
		{"simulate -limit 9007199254740993/1s", exitUsage, "Units 9007199254740993"},
		{"simulate -limit 1/1m -limit 2/60s", exitUsage, "the same Window"},
		{"simulate -limit 1/s -strategy best", exitUsage, `unknown strategy "best"`},
		{"simulate -limit 1/s -compare best", exitUsage, `-compare needs one strategy: fixed, log, buckets, compact, counter or token, not "best"`},
		{"simulate -limit 1/s -compare all", exitUsage, "-compare needs one strategy"},
		{"simulate -limit 1/s -compare=", exitUsage, "-compare needs one strategy"},
		{"simulate -limit 1/s -slots 1001", exitUsage, "Slots 1001"},
		{"simulate -limit 1/s -slots x", exitUsage, "-slots"},
		{"simulate -limit 1/s -by face", exitUsage, `unknown field "face"`},
		{"simulate -limit 1/s -format xml", exitUsage, `unknown format "xml"`},
		{"simulate -limit 1/s -shout", exitUsage, "not defined: -shout"},
		{"simulate -limit 1/s -decisions -", exitUsage, "-decisions needs a file"},
		{"simulate -limit 1/s a b", exitUsage, "one log, not 2"},
		{"simulate -policy " + bad, exitUsage, "line 2: field limit not found"},
		{"simulate -policy " + dir + "/none", exitFailure, "no such file"},
		{"simulate -limit 1/s " + dir + "/none", exitFailure, "no such file"},
		{"simulate -limit 1/s " + dir, exitFailure, "is a directory"},
		{"simulate -limit 1/s -decisions " + dir, exitFailure, "is a directory"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(strings.Fields(c.args), strings.NewReader(""), &stdout, &stderr)
		require.Equal(t, c.code, code, c.args)
		require.Empty(t, stdout.String(), c.args)
		require.Contains(t, stderr.String(), c.says, c.args)
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "%s: %s", c.args, stderr.String())
		require.True(t, strings.HasPrefix(stderr.String(), "ration"), c.args)
		require.NotContains(t, stderr.String(), "main.", c.args)
	}
}

func TestLimits(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]ration.Limit{
		"10/1m":                   ration.PerMinute(10),
		"10/1m+3":                 {Units: 10, Window: time.Minute, Burst: 3},
		"3/7s":                    ration.Per(3, 7*time.Second),
		"0/1s":                    ration.PerSecond(0),
		"10/m":                    ration.PerMinute(10),
		"10/h":                    ration.PerHour(10),
		"10/d":                    ration.PerDay(10),
		"10/s":                    ration.PerSecond(10),
		"10/ms":                   ration.Per(10, time.Millisecond),
		"10/1h30m":                ration.Per(10, 90*time.Minute),
		"10/7d":                   ration.Per(10, 7*day),
		"10/1d12h":                ration.Per(10, 36*time.Hour),
		"10/1.5d":                 ration.Per(10, 36*time.Hour),
		"10/.5s":                  ration.Per(10, time.Second/2),
		"9007199254740992/18250d": ration.Per(1<<53, ration.MaxWindow),
	} {
		got, err := parseLimit(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "/", "10/", "/1m", "10", "10/60", "10/-1m", "10/+1m", "10/1m/2", " 10/1m", "10/ 1m", "1e3/1m", "1.5/1m",
		"10/dd", "10/1d2d", "10/-1d", "10/1d-1h", "10/d1", "10/1h1d", "10/18251d", "10/18250d1000000h", "10/999999999999999999d",
		"99999999999999999999/1m", "10/1d ",
	} {
		_, err := parseLimit(text)
		require.Error(t, err, text)
	}
}

func settingsOf(t *testing.T, policy string, args ...string) (*settings, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(policy), 0o600))
	return parseSettings(append([]string{"-policy", path}, args...))
}

const wholePolicy = `# all there is
name: api
strategy: all
slots: 5
by: [address, path]
limits:
  - 10/1m
  - {units: 100, window: 1h, name: hourly}
  - units: 1000
    window: 7d
`

func TestPolicyFile(t *testing.T) {
	s, err := settingsOf(t, wholePolicy)
	require.NoError(t, err)
	require.Equal(t, ration.Policy{Name: "api", Slots: 5, Limits: []ration.Limit{
		ration.PerMinute(10),
		{Name: "hourly", Units: 100, Window: time.Hour},
		ration.Per(1000, 7*24*time.Hour),
	}}, s.policy)
	require.Len(t, s.strategies, 6)
	require.Equal(t, reqlog.By{"address", "path"}, s.parser.By)

	s, err = settingsOf(t, "limits: [10/1m, 100/1h]\nby: user\n")
	require.NoError(t, err)
	require.Equal(t, ration.Policy{Name: "simulate", Limits: []ration.Limit{ration.PerMinute(10), ration.PerHour(100)}}, s.policy)
	require.Equal(t, "log", s.strategies[0].name)
	require.Equal(t, reqlog.By{"user"}, s.parser.By)
}

func TestFlagsGoBeforeThePolicyFile(t *testing.T) {
	s, err := settingsOf(t, wholePolicy, "log.txt", "-limit", "3/7s", "-strategy", "fixed", "-slots", "7", "-by", "agent", "-format", "combined")
	require.NoError(t, err)
	require.Equal(t, ration.Policy{Name: "api", Slots: 7, Limits: []ration.Limit{ration.Per(3, 7*time.Second)}}, s.policy)
	require.Equal(t, "fixed", s.strategies[0].name)
	require.Equal(t, reqlog.Parser{Format: reqlog.Access, By: reqlog.By{"agent"}}, s.parser)
	require.Equal(t, "log.txt", s.input)

	s, err = settingsOf(t, wholePolicy, "-slots", "0", "-by", "address", "-strategy", "log")
	require.NoError(t, err)
	require.Zero(t, s.policy.Slots, "the default, given, goes before the file too")
	require.Equal(t, reqlog.By{"address"}, s.parser.By)
	require.Len(t, s.strategies, 1)

	s, err = settingsOf(t, "", "-limit", "1/s")
	require.NoError(t, err)
	require.Equal(t, "simulate", s.policy.Name)
}

func TestWrongPolicyFiles(t *testing.T) {
	for text, says := range map[string]string{
		"":                                   "no limit",
		"limits: []":                         "no limit",
		"# nothing":                          "no limit",
		"10/1m":                              "line 1: cannot unmarshal",
		"limits: 10/1m":                      "cannot unmarshal",
		"limits: [10/1x]":                    `line 1: limit "10/1x": "1x" is no window`,
		"limits:\n- [1]":                     "line 2: a limit is 10/1m or",
		"limits:\n- {units: 1}":              "line 2: a limit needs units and a window",
		"limits:\n- {window: 1m}":            "line 2: a limit needs units and a window",
		"limits:\n- {units: 1, windows: 1m}": "line 2: field windows not found",
		"limits:\n- {units: x, window: 1m}":  "line 2: units and burst are whole numbers",
		"limits:\n- {units: 1, window: 1}":   `"1" is no window`,
		"limits:\n- {units: -1, window: 1m}": "Units -1",
		"limits: [1/s]\nlimits: [1/s]":       "already defined",
		"limits: [1/s]\nname: a b":           `Name "a b"`,
		"limits: [1/s]\nstrategy: best":      `unknown strategy "best"`,
		"limits: [1/s]\nslots: many":         "cannot unmarshal",
		"limits: [1/s]\nby: {a: b}":          "cannot unmarshal",
		"limits: [1/s]\nby: [address, x]":    `unknown field "x"`,
		"limits: [1/s]\n---\nlimits: [2/s]":  "more than one document",
		"limits: [1/s":                       "yaml",
		"limits: [*a]":                       "unknown anchor",
		"limits: &a [*a]":                    "line 1:",
		"\x00":                               "yaml",
		strings.Repeat("[", 20_000):          "",
		"limits:\n- {units: 1, ? [a] : 1}":   "line 2: field  not found",
	} {
		_, err := settingsOf(t, text)
		var wrong usageError
		require.ErrorAs(t, err, &wrong, text)
		require.ErrorContains(t, err, says, text)
		require.NotContains(t, oneLine(err), "\n")
	}
}

func TestProgress(t *testing.T) {
	var nothing *progress
	nothing.show("simulating log", 64, 100)
	nothing.clear()
	require.Nil(t, newProgress(&bytes.Buffer{}))
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer file.Close()
	require.Nil(t, newProgress(file))

	var w bytes.Buffer
	bar := &progress{w: &w, next: time.Now().Add(time.Hour)}
	bar.show("simulating log", 64, 128)
	bar.clear()
	require.Empty(t, w.String(), "quick work shows none")
	bar.next = time.Now()
	bar.show("simulating log", 63, 128)
	bar.show("simulating log", 64, 128)
	bar.show("simulating log", 128, 128)
	require.Equal(t, "\r\x1b[Ksimulating log 64 of 128 (50%)", w.String(), "one showing in a while")
	w.Reset()
	bar.clear()
	bar.clear()
	require.Equal(t, "\r\x1b[K", w.String())
}
