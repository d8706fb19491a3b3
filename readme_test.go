package ration_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// readmeExample is the README's example, so that it compiles and runs.
func readmeExample(ctx context.Context, user, addr string) error {
	// begin
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	store, err := ration.Open(rdb)
	if err != nil {
		return err
	}
	login, err := ration.NewSlidingLog(store, ration.Policy{
		Name:   "login",
		Limits: []ration.Limit{ration.PerMinute(5), ration.PerDay(100)},
	})
	if err != nil {
		return err
	}
	d, err := login.Allow(ctx, user)
	// end
	defer rdb.Close()
	if err != nil {
		return err
	}
	if !d.Allowed || d.Remaining != 4 {
		return context.Canceled
	}
	return nil
}

func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	source, err := os.ReadFile("readme_test.go")
	require.NoError(t, err)
	_, code, _ := strings.Cut(string(source), "\t// begin\n")
	code, _, _ = strings.Cut(code, "\t// end\n")
	code = strings.TrimPrefix(strings.ReplaceAll("\n"+code, "\n\t", "\n"), "\n")
	require.Contains(t, string(readme), "```go\n"+code+"```", "the README's example is the one compiled here")
	require.Contains(t, string(readme), "\n~ration:* "+commandsNeeded+"\n")
	for _, path := range []string{"examples/quickstart", "cmd/ration", "doc.go", "scripts/README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"} {
		require.Contains(t, string(readme)+" LICENSE", path)
		_, err := os.Stat(path)
		require.NoError(t, err)
	}
}

func TestReadmeExampleRuns(t *testing.T) {
	s := redistest.Start(t)
	require.NoError(t, readmeExample(ctx, "user-42", s.Addr()))
}
