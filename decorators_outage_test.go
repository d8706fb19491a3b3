package ration_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

type verdicts struct {
	ration.NopObserver
	compared []ration.CompareEvent
	shadowed []ration.ShadowEvent
}

func (h *verdicts) Compared(e ration.CompareEvent) { h.compared = append(h.compared, e) }
func (h *verdicts) Shadowed(e ration.ShadowEvent)  { h.shadowed = append(h.shadowed, e) }

// A failure rule's answer is no verdict of the limiter, and isn't compared.
func TestCompareDuringAnOutage(t *testing.T) {
	for _, rule := range []ration.FailureRule{ration.FailOpen, ration.FailClosed, ration.FailError} {
		h := &verdicts{}
		first := rationtest.NewFake(t, rationtest.Always(rationtest.Failed(rule)))
		second := rationtest.NewFake(t, rationtest.Always(rationtest.Allowed(1)))
		l, err := ration.NewCompare(first, second, ration.WithObserver(h))
		require.NoError(t, err)
		_, _ = l.Allow(t.Context(), "u")
		require.Len(t, h.compared, 1)
		require.Zero(t, h.compared[0].Kind(), rule)
	}
}

// An outage under FailClosed isn't a bite of the limit, and the shadow's event says so.
func TestShadowDuringAnOutage(t *testing.T) {
	h := &verdicts{}
	l, err := ration.NewShadow(rationtest.NewFake(t, rationtest.Always(rationtest.Failed(ration.FailClosed))), ration.WithObserver(h))
	require.NoError(t, err)
	require.True(t, must(l.Allow(t.Context(), "u")).Allowed)
	require.Len(t, h.shadowed, 1)
	require.ErrorIs(t, h.shadowed[0].Err, ration.ErrUnavailable)
}
