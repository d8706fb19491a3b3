package ration_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

type hostileHeard struct {
	ration.NopObserver
	compared []ration.CompareEvent
	shadowed []ration.ShadowEvent
}

func (h *hostileHeard) Compared(e ration.CompareEvent) { h.compared = append(h.compared, e) }
func (h *hostileHeard) Shadowed(e ration.ShadowEvent)  { h.shadowed = append(h.shadowed, e) }

// A failure rule's answer is no verdict of the limiter: "a limiter that failed" has none to compare.
func TestHostileCompareDuringOutage(t *testing.T) {
	for _, rule := range []ration.FailureRule{ration.FailOpen, ration.FailClosed, ration.FailError} {
		h := &hostileHeard{}
		first := rationtest.NewFake(t, rationtest.Always(rationtest.Failed(rule)))
		second := rationtest.NewFake(t, rationtest.Always(rationtest.Allowed(1)))
		l, err := ration.NewCompare(first, second, ration.WithObserver(h))
		require.NoError(t, err)
		_, _ = l.Allow(t.Context(), "u")
		require.Len(t, h.compared, 1)
		t.Logf("%v: kind %v, %+v", rule, h.compared[0].Kind(), h.compared[0].First)
		if h.compared[0].Kind() != 0 {
			t.Errorf("%v: an outage is told as %v", rule, h.compared[0].Kind())
		}
	}
}

// An outage under FailClosed isn't a bite of the limit, but the shadow's event can't be told from one.
func TestHostileShadowFailClosed(t *testing.T) {
	h := &hostileHeard{}
	l, err := ration.NewShadow(rationtest.NewFake(t, rationtest.Always(rationtest.Failed(ration.FailClosed))), ration.WithObserver(h))
	require.NoError(t, err)
	d, err := l.Allow(t.Context(), "u")
	require.NoError(t, err)
	t.Logf("%+v", d)
	require.Len(t, h.shadowed, 1)
	t.Logf("%+v", h.shadowed[0])
	require.ErrorIs(t, h.shadowed[0].Err, ration.ErrUnavailable)
}

// Odd causes
func TestHostileShadowOdd(t *testing.T) {
	h := &hostileHeard{}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx context.Context
		err error
	}{{t.Context(), io.EOF}, {t.Context(), context.Canceled}, {ended, context.Canceled}, {t.Context(), ration.ErrInvalidClient}, {t.Context(), errors.Join(ration.ErrInvalidKey, ration.ErrUnavailable)}} {
		l, err := ration.NewShadow(ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) {
			return ration.Decision{}, c.err
		}), ration.WithObserver(h))
		require.NoError(t, err)
		d, err := l.Allow(c.ctx, "u")
		t.Log(c.err, "->", d.Allowed, err)
		r := ration.Request{Op: ration.OpAllow, Key: "", N: -5}
		d, err = r.Do(c.ctx, l)
		t.Log(d.Allowed, d.Granted, err)
	}
	// peeks
	h.shadowed = nil
	l, err := ration.NewShadow(rationtest.NewFake(t, rationtest.Always(rationtest.Refused(1e9))), ration.WithObserver(h))
	require.NoError(t, err)
	d, err := l.Peek(t.Context(), "u")
	t.Log(d, err)
	d, err = l.AllowN(t.Context(), "u", 0)
	t.Log(d, err, len(h.shadowed), h.shadowed)
	d, err = l.Refund(t.Context(), "u", 3)
	t.Log(d, err, len(h.shadowed))
}
