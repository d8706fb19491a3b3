package ration_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// A server without EVALSHA quotes the first 128 bytes of the arguments, half a subject: no error has it.
func TestNoSubjectInAnUnknownCommand(t *testing.T) {
	s := redistest.Start(t, redistest.WithArgs("--rename-command", "EVALSHA", ""))
	store, err := ration.Open(s.Client(t))
	require.NoError(t, err)
	l, err := ration.NewFixedWindow(store, ration.Policy{Name: "login", Limits: []ration.Limit{ration.PerMinute(5)}})
	require.NoError(t, err)
	subject := "alice.secret@example.org|" + strings.Repeat("x", 90)
	_, err = l.Allow(t.Context(), subject)
	t.Log(err)
	require.ErrorIs(t, err, ration.ErrMisconfigured)
	require.NotContains(t, err.Error(), "alice")
}
