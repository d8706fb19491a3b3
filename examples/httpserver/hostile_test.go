package main

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// HEAD /live has no body to end: it must not hold one of the streams' places.
func TestHostileHeadLive(t *testing.T) {
	v := serve(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodHead, v.URL+"/live", nil)
	require.NoError(t, err)
	resp, err := v.Client().Do(r)
	require.NoError(t, err)
	resp.Body.Close()
	t.Log(resp.StatusCode)
	require.Eventually(t, func() bool { return len(v.s.streams) == 0 }, 3*time.Second, 10*time.Millisecond, "places taken: %d", len(v.s.streams))
}

// The limit on failed logins can be gone around: any other path tells whether a key is right.
func TestHostileGuessing(t *testing.T) {
	v := serve(t)
	for range 50 {
		resp, _ := v.get("/api/quote", keyHeader, "guess")
		if resp.StatusCode == http.StatusTooManyRequests {
			return
		}
		require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
	}
	t.Fatal("50 guesses in no time, login allows 2 a minute")
}

// Two clients of one name share a budget; a second key of another plan has its own.
func TestHostileSameName(t *testing.T) {
	v := serve(t)
	_ = context.Background
	_, err := newDirectory(v.rdb.Store(), config{
		Plans: map[string][]limit{"login": {limit{Units: 5, Window: time.Second}}}, Login: []limit{{Units: 5, Window: time.Second}},
		Clients: []clientConfig{{"ann", "a", "login"}, {"ann", "b", "login"}},
	}, 2)
	require.Error(t, err)
}
