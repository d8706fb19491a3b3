package main

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// Visitors who aren't signed in, however many, leave room for clients.
func TestGuestsLeaveRoomForClients(t *testing.T) {
	v := serve(t)
	watch := func(key string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, v.URL+"/live", nil)
		require.NoError(t, err)
		r.Header.Set(keyHeader, key)
		resp, err := v.Client().Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		return resp.StatusCode
	}
	for range maxStreams {
		require.Equal(t, http.StatusOK, watch(""))
	}
	require.Equal(t, http.StatusServiceUnavailable, watch(""))
	require.Equal(t, http.StatusOK, watch("pro-key"))
}
