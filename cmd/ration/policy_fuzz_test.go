package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

func FuzzPolicy(f *testing.F) {
	for _, text := range []string{
		wholePolicy, "limits: [10/1m, 3/7s, 1/1d12h, 5/h]", "by: address", "limits: &a [*a]",
		"limits: [{units: 1, window: 1.5d, <<: {name: x}}]", "", "---\n---\n", "10/1m", "\x00",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := decodePolicy(text)
		if err != nil {
			require.NotContains(t, oneLine(err), "\n")
		}
		require.Len(t, file.limits(), len(file.Limits))
		limit, err := parseLimit(string(text))
		if err == nil {
			require.GreaterOrEqual(t, limit.Units, int64(0))
			require.GreaterOrEqual(t, int64(limit.Window), int64(0))
			require.LessOrEqual(t, limit.Window, 2*ration.MaxWindow, "the library looks for the rest")
		}
	})
}
