package main

import (
	"bytes"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration/internal/redistest"
)

func start(args ...string) (code int, out, errs string) {
	var stdout, stderr bytes.Buffer
	code = run(args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// let reads how many calls the table says a strategy let through in all.
func let(t *testing.T, out, strategy string) string {
	t.Helper()
	row := regexp.MustCompile(strategy + `.* (\d+) of 30`).FindStringSubmatch(out)
	require.NotNil(t, row, "no row for %s in:\n%s", strategy, out)
	return row[1]
}

func requireTable(t *testing.T, out string) {
	t.Helper()
	require.Equal(t, "20", let(t, out, "fixed window"), out)
	require.Equal(t, "10", let(t, out, "sliding log"), out)
	require.Equal(t, "10", let(t, out, "sliding buckets"), out)
}

func TestOnEmbeddedMiniredis(t *testing.T) {
	began := time.Now()
	code, out, errs := start()
	require.Zero(t, code, errs)
	requireTable(t, out)
	require.Less(t, time.Since(began), 5*time.Second)
}

func TestOnRealRedis(t *testing.T) {
	server := redistest.Start(t)
	code, out, errs := start("-redis", server.Addr())
	require.Zero(t, code, errs)
	requireTable(t, out)
}

func TestMistakesTakeOneLine(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	listener.Close() // now nobody listens there
	for _, c := range []struct {
		code int
		args []string
	}{
		{2, []string{"-wrong"}},
		{2, []string{"-redis"}},
		{2, []string{"extra"}},
		{1, []string{"-redis", listener.Addr().String()}},
		{1, []string{"-redis", "no port"}},
	} {
		code, out, errs := start(c.args...)
		require.Equal(t, c.code, code, c.args)
		require.Empty(t, out)
		require.Equal(t, 1, strings.Count(errs, "\n"), errs)
	}
	code, out, _ := start("-h")
	require.Zero(t, code)
	require.Contains(t, out, "usage")
}
