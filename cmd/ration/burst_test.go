package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const oneCall = `{"time": "2026-03-01T12:00:00Z", "key": "alice"}
{"time": "2026-03-01T12:00:01Z", "key": "alice"}
`

func hostileRun(args ...string) (int, string, string) {
	var out, errs bytes.Buffer
	code := run(append([]string{"simulate"}, args...), strings.NewReader(oneCall), &out, &errs)
	return code, out.String(), errs.String()
}

// A burst that neither strategy has is a mistake, as it is with one strategy.
func TestBurstOfNobody(t *testing.T) {
	code, _, errs := hostileRun("-limit", "1/1m+5", "-strategy", "log", "-compare", "compact")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "no Burst")
	code, _, _ = hostileRun("-limit", "1/1m+5", "-strategy", "log", "-compare", "token")
	require.Equal(t, exitOK, code)
	code, _, _ = hostileRun("-limit", "1/1m+5", "-strategy", "token", "-compare", "log")
	require.Equal(t, exitOK, code)
	code, _, _ = hostileRun("-limit", "1/1m+5", "-strategy", "all")
	require.Equal(t, exitOK, code)
}

// A limit that the second strategy can't keep is a wrong flag, found before the log is read.
func TestCompareIsValidated(t *testing.T) {
	code, _, errs := hostileRun("-limit", "1/100d+1000000", "-strategy", "log", "-compare", "token")
	require.Equal(t, exitUsage, code, errs)
}

// The decisions of a shadow say which would have been refused.
func TestShadowDecisions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "d")
	code, _, errs := hostileRun("-limit", "1/1m", "-shadow", "-decisions", file)
	require.Equal(t, exitOK, code, errs)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), `"shadowed":true`), string(text))
}
