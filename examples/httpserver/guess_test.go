package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// HEAD /live has no body to end: it must not hold one of the streams' places.
func TestHeadLiveTakesNoPlace(t *testing.T) {
	v := serve(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodHead, v.URL+"/live", nil)
	require.NoError(t, err)
	resp, err := v.Client().Do(r)
	require.NoError(t, err)
	resp.Body.Close()
	require.Eventually(t, func() bool { return len(v.s.guests) == 0 }, 3*time.Second, 10*time.Millisecond, "a place is taken")
}

// Wrong keys count as failed logins, wherever they come.
func TestGuessingIsLimited(t *testing.T) {
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

// Two clients have two names, and no plan is called as the limit on logins is.
func TestNamesAreApart(t *testing.T) {
	v := serve(t)
	_, err := newDirectory(v.rdb.Store(), config{
		Plans: map[string][]limit{"login": {limit{Units: 5, Window: time.Second}}}, Login: []limit{{Units: 5, Window: time.Second}},
		Clients: []clientConfig{{"ann", "a", "login"}, {"ann", "b", "login"}},
	}, 2)
	require.Error(t, err)
}
