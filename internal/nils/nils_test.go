package nils_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration/internal/nils"
)

func TestIs(t *testing.T) {
	var reader io.Reader
	for _, v := range []any{nil, reader, (*bytes.Buffer)(nil), (func())(nil), map[string]int(nil)} {
		require.True(t, nils.Is(v), "%T", v)
	}
	for _, v := range []any{0, "", struct{}{}, new(bytes.Buffer), func() {}, map[string]int{}} {
		require.False(t, nils.Is(v), "%T", v)
	}
}
