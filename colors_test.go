package ration_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/model"
)

func threeColor(t testing.TB, store *ration.Store, p ration.ThreeColor) ration.Limiter {
	t.Helper()
	l, err := ration.NewThreeColor(store, p)
	require.NoError(t, err)
	return l
}

// colors asks once a letter and demands its colour: G, Y or R.
func (tl *timeline) colors(n int64, want string) (d ration.Decision) {
	tl.t.Helper()
	got := ""
	for range want {
		d = must(tl.l.AllowN(ctx, "u", n))
		require.Equal(tl.t, d.Color != ration.Red, d.Allowed)
		got += string(" GYR"[d.Color])
	}
	require.Equal(tl.t, want, got)
	return d
}

// The example of a marker of 1 a second with bursts of 3 and 2: green while the committed bucket has any, then yellow,
// then red; the committed bucket fills before the excess bucket does.
func TestThreeColors(t *testing.T) {
	on(t, "token", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerSecond(1))
		tl.l = threeColor(t, tl.store, ration.ThreeColor{Name: "c", Committed: bucket(1, time.Second, 3), Excess: 2})
		require.Equal(t, ration.Green, must(tl.l.Peek(ctx, "u")).Color)
		d := tl.colors(1, "GGGYYRR")
		require.Equal(t, time.Second, d.RetryAfter)
		require.Equal(t, 5*time.Second, d.ResetAfter)
		require.Zero(t, d.Remaining)
		tl.at(1)
		tl.colors(1, "GR")
		tl.at(5) // four came back: three into the committed bucket, one into the other
		d = must(tl.l.Peek(ctx, "u"))
		require.EqualValues(t, 4, d.Remaining)
		require.EqualValues(t, 3, d.Limits[0].Remaining)
		require.EqualValues(t, 1, d.Limits[1].Remaining)
		require.EqualValues(t, 2, d.Limits[1].Limit.Burst)
		tl.colors(4, "R") // neither has four
		tl.colors(3, "GR")
		tl.colors(1, "YR")
		require.EqualValues(t, 3, must(tl.l.Refund(ctx, "u", 3)).Granted)
		require.EqualValues(t, 2, must(tl.l.AllowUpTo(ctx, "v", 0)).Limits[1].Remaining)
		require.EqualValues(t, 1, must(tl.l.AllowUpTo(ctx, "u", 5)).Granted) // of the committed bucket
		d = must(tl.l.AllowUpTo(ctx, "u", 5))
		require.EqualValues(t, 2, d.Granted)
		require.Equal(t, ration.Yellow, d.Color)
		require.NoError(t, tl.l.Reset(ctx, "u"))
		require.Empty(t, tl.keys())
	})
}

// TestPropertyColors plays random histories against the marker as the RFC has it.
func TestPropertyColors(t *testing.T) {
	for server, start := range backends {
		t.Run(server, func(t *testing.T) {
			b := start(t)
			store := b.store(t)
			check := oneIn(3)
			if server == "redis" {
				check = oneIn(1)
			}
			rapid.Check(t, check(func(t *rapid.T) { playColors(t, b, store) }))
		})
	}
}

func playColors(t *rapid.T, b backend, store *ration.Store) {
	defer b.rdb.FlushAll(ctx)
	small := rapid.Int64Range(1, 12)
	p := ration.ThreeColor{
		Name:      "c",
		Committed: bucket(rapid.OneOf(small, small, rapid.Int64Range(1, 1e9)).Draw(t, "units"), genWindow().Draw(t, "window"), rapid.Int64Range(0, 12).Draw(t, "burst")),
		Excess:    rapid.Int64Range(0, 9).Draw(t, "excess"),
	}
	l, err := ration.NewThreeColor(store, p)
	if err != nil {
		t.Fatal(err)
	}
	m := model.NewColors(b.Now().UnixMicro(), p)
	same := func(d ration.Decision, r ration.Request, color ration.Color, granted int64) {
		sameColor(t, m, d, r, color, granted)
	}
	t.Repeat(map[string]func(*rapid.T){
		"call": func(t *rapid.T) {
			r := ration.Request{Op: ration.OpAllow, Key: "u", N: rapid.Int64Range(1, 14).Draw(t, "n")}
			color := m.Color(r.N)
			granted := r.N
			if color == ration.Red {
				granted = 0
			}
			m.Take(granted, color)
			same(must(l.AllowN(ctx, "u", r.N)), r, color, granted)
		},
		"up to": func(t *rapid.T) {
			n, color := rapid.Int64Range(1, 14).Draw(t, "n"), m.Color(1)
			committed, excess := m.Left()
			granted := min(n, map[ration.Color]int64{ration.Green: committed, ration.Yellow: excess}[color])
			m.Take(granted, color)
			same(must(l.AllowUpTo(ctx, "u", n)), ration.Request{Op: ration.OpAllowUpTo, N: 1}, color, granted)
		},
		"refund": func(t *rapid.T) {
			n := rapid.Int64Range(1, 14).Draw(t, "n")
			back := m.Refund(n)
			d := must(l.Refund(ctx, "u", n))
			d.Allowed = d.Color != ration.Red // so that same looks at RetryAfter for a call of one unit
			same(d, ration.Request{Op: ration.OpRefund, N: 1}, m.Color(1), back)
		},
		"peek": func(*rapid.T) {
			same(must(l.Peek(ctx, "u")), ration.Request{Op: ration.OpPeek, N: 1}, m.Color(1), 0)
		},
		"move": func(t *rapid.T) {
			b.Advance(time.Duration(rapid.Int64Range(1, 2*micros(p.Committed.Window)).Draw(t, "step")) * time.Microsecond)
			m.Move(b.Now().UnixMicro())
		},
	})
}

// sameColor holds an answer against the marker.
func sameColor(t *rapid.T, m *model.Colors, d ration.Decision, r ration.Request, color ration.Color, granted int64) {
	committed, excess := m.Left()
	retry := time.Duration(0)
	if !d.Allowed {
		retry = m.RetryAfter(max(1, r.N))
	}
	if d.Color != color || d.Granted != granted || d.Remaining != committed+excess || d.Limits[0].Remaining != committed ||
		d.RetryAfter != retry || d.ResetAfter != m.ResetAfter() || d.Source != ration.Redis {
		t.Fatalf("%v: got %+v, want %v, %d granted, %d and %d left, retry %v, reset %v",
			r, d, color, granted, committed, excess, retry, m.ResetAfter())
	}
}

func TestThreeColorMistakesAndFailures(t *testing.T) {
	inBubble(t, func(w *world) {
		store := w.store(noBreaker)
		for _, bad := range []ration.ThreeColor{
			{Name: "a b", Committed: ration.PerSecond(1)}, {Name: "c", Committed: ration.PerSecond(-1)},
			{Name: "c", Committed: ration.PerSecond(1), Excess: -1}, {Name: "c", Committed: ration.PerSecond(1), Excess: ration.MaxUnits},
			{Name: "c", Committed: bucket(1, 24*time.Hour, 1), Excess: 50 * 365},
		} {
			l, err := ration.NewThreeColor(store, bad)
			require.ErrorIs(t, err, ration.ErrInvalidPolicy)
			require.Nil(t, l)
		}
		_, err := ration.NewThreeColor(nil, ration.ThreeColor{Name: "c", Committed: ration.PerSecond(1)})
		require.ErrorIs(t, err, ration.ErrInvalidClient)
		p := ration.ThreeColor{Name: "c", Committed: bucket(1, time.Second, 2), Excess: 5}
		l := threeColor(t, store, p)
		_, err = ration.NewTwoTier(l)
		require.ErrorIs(t, err, ration.ErrInvalidClient)
		_, err = ration.Combine(l)
		require.ErrorIs(t, err, ration.ErrInvalidClient)
		_, err = l.AllowN(ctx, "u", -1)
		require.ErrorIs(t, err, ration.ErrInvalidCost)
		none := threeColor(t, store, ration.ThreeColor{Name: "none", Committed: ration.PerSecond(0), Excess: 3})
		d := must(none.Allow(ctx, "u"))
		require.Equal(t, ration.Red, d.Color)
		require.Equal(t, ration.Never, d.RetryAfter)

		w.spoil(refused)
		_, err = l.Allow(ctx, "u")
		require.ErrorIs(t, err, ration.ErrUnavailable)
		for rule, want := range map[ration.FailureRule]string{ration.FailOpen: "GGG", ration.FailClosed: "RRR", ration.FailLocal(1): "GGR"} {
			l := threeColor(t, w.store(noBreaker, ration.WithOnFailure(rule)), p)
			got := ""
			for range 3 {
				d := must(l.Allow(ctx, "u"))
				require.True(t, d.Degraded)
				require.Equal(t, d.Color == ration.Green, d.Allowed)
				got += string(" GYR"[d.Color])
			}
			require.Equal(t, want, got, rule)
		}
	})
}

// Equal calls at once share a run, and each has the colour that one of them in a row would have.
func TestColorsOfACrowd(t *testing.T) {
	on(t, "token", func(t *testing.T, b backend, _ string) {
		l := threeColor(t, b.store(t, ration.WithPrefix(freshPrefix())), ration.ThreeColor{Name: "c", Committed: bucket(1, time.Hour, 100), Excess: 50})
		var mu sync.Mutex
		got := map[ration.Color]int{}
		var crowd sync.WaitGroup
		for range 200 {
			crowd.Go(func() {
				d, err := l.Allow(ctx, "u")
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				got[d.Color]++
			})
		}
		crowd.Wait()
		require.Equal(t, map[ration.Color]int{ration.Green: 100, ration.Yellow: 50, ration.Red: 50}, got)
	})
}
