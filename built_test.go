package ration_test

import (
	"go/build"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file whose name happens to end like that of another system is never built, and its tests never run.
func TestEveryTestIsBuilt(t *testing.T) {
	meant := map[string]bool{"alive_other_test.go": true, "die_other_test.go": true, "race_on_test.go": true, "race_off_test.go": true}
	seen := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || meant[entry.Name()] {
			return err
		}
		seen++
		built, err := build.Default.MatchFile(filepath.Dir(path), entry.Name())
		require.True(t, built, path)
		return err
	}))
	require.Greater(t, seen, 100)
}
