package main

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// One visitor, not signed in, shuts the page for all others.
func TestHostileOneVisitorTakesAllStreams(t *testing.T) {
	v := serve(t)
	for range maxStreams {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, v.URL+"/live", nil)
		require.NoError(t, err)
		resp, err := v.Client().Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		if resp.StatusCode != http.StatusOK {
			return // bounded by visitor: good
		}
	}
	resp, _ := v.get("/live", keyHeader, "pro-key")
	require.Equal(t, http.StatusOK, resp.StatusCode, "a paying client is shut out")
}
