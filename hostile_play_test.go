package ration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
	"github.com/rationgo/ration/rationtest"
)

// The compact log beside the sliding log on small windows, with clocks set back at any time, weights of all forms.
func TestHostilePlayCompact(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	s := redistest.Start(t, redistest.WithClock(rationtest.Epoch))
	rdb := s.Client(t)
	end := time.Now().Add(3 * time.Second)
	n := 0
	for round := 0; time.Now().Before(end); round++ {
		b := backend{s, rdb}
		require.NoError(t, rdb.FlushAll(ctx).Err())
		store := b.store(t, ration.WithPrefix(freshPrefix()))
		maxCost := []int64{1, 2, 16, 17, 300, 1 << 20, 1 << 47}[rng.IntN(7)]
		base := min(maxCost*(1+rng.Int64N([]int64{40, 120, 1000}[rng.IntN(3)])), ration.MaxUnits/2)
		units := base
		mixed := rng.IntN(3) == 0
		nl := 1 + rng.IntN(2)
		win := time.Duration(1+rng.IntN(2000)) * time.Millisecond
		policy := ration.Policy{Name: "p", LimitsFor: func(context.Context, string) ([]ration.Limit, error) {
			return []ration.Limit{ration.Per(units, win), ration.Per(min(ration.MaxUnits, 2*units), 2*win)}[:nl], nil
		}}
		var logs [2]ration.Limiter
		for i, name := range []string{"log", "compact"} {
			l, err := strategies[name](store, policy)
			require.NoError(t, err)
			if mixed {
				side, err := ration.NewFixedWindow(store, ration.Policy{Name: "side" + name, Limits: []ration.Limit{ration.Per(3*base/2, 5*win)}})
				require.NoError(t, err)
				if l, err = ration.Combine(side, l); err != nil {
					t.Fatal(err)
				}
			}
			logs[i] = l
		}
		back := rng.IntN(3) == 0
		var hist []string
		for i := range 900 {
			step := time.Duration(rng.Int64N(int64(win)/[]int64{40, 1000}[rng.IntN(2)] + 1)).Truncate(time.Microsecond)
			if rng.IntN(3) == 0 {
				step = 0
			}
			if rng.IntN(60) == 0 {
				step = time.Duration(rng.Int64N(int64(win) * 2)).Truncate(time.Microsecond)
			}
			if back && rng.IntN(25) == 0 {
				step = -time.Duration(rng.Int64N(int64(win) / 2)).Truncate(time.Microsecond)
			}
			if rng.IntN(60) == 0 {
				units = 1 + rng.Int64N(2*base)
			}
			b.Advance(step)
			r := ration.Request{Op: ration.OpAllow, Key: "u", N: 1 + rng.Int64N(maxCost)}
			switch rng.IntN(14) {
			case 0:
				r.Op = ration.OpAllowUpTo
				r.N = 1 + rng.Int64N(2*units)
			case 1:
				r.Op, r.N = ration.OpPeek, 0
			case 2, 3:
				r.Op = ration.OpRefund
				r.N = 1 + rng.Int64N(1+base/int64(1+rng.IntN(20)))
			case 4:
				r.N = 1 + rng.Int64N(units)
			case 5:
				if rng.IntN(20) == 0 {
					r.Op, r.N = ration.OpReset, 0
				}
			}
			hist = append(hist, fmt.Sprintf("%v %v %v units %d", step, r.Op, r.N, units))
			want, err1 := r.Do(ctx, logs[0])
			got, err2 := r.Do(ctx, logs[1])
			require.NoError(t, err1)
			require.NoError(t, err2)
			if fmt.Sprintf("%+v", want) != fmt.Sprintf("%+v", got) {
				t.Fatalf("round %d step %d back %v win %v: %s\nwant %+v\ngot  %+v\nhist %q", round, i, back, win, hist[len(hist)-1], want, got, hist[max(0, len(hist)-40):])
			}
			n++
		}
	}
	t.Log(n, "calls")
}

// Counter against a plain model with big integers.
func TestHostilePlayCounter(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	s := redistest.Start(t, redistest.WithClock(rationtest.Epoch))
	rdb := s.Client(t)
	end := time.Now().Add(3 * time.Second)
	n := 0
	for time.Now().Before(end) {
		b := backend{s, rdb}
		require.NoError(t, rdb.FlushAll(ctx).Err())
		store := b.store(t, ration.WithPrefix(freshPrefix()))
		units := []int64{1, 2, 3, 10, 1000, 1 << 40, 1 << 53, 1<<53 - 1, 1 + rng.Int64N(1<<53)}[rng.IntN(9)]
		win := []time.Duration{time.Millisecond, 1001 * time.Microsecond, 7 * time.Second, time.Hour, ration.MaxWindow, time.Duration(1+rng.Int64N(int64(time.Hour))) + time.Millisecond}[rng.IntN(6)].Truncate(time.Microsecond)
		l, err := ration.NewSlidingCounter(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(units, win)}})
		require.NoError(t, err)
		for range 60 {
			b.Advance(time.Duration(rng.Int64N(int64(win)/3 + 1)).Truncate(time.Microsecond))
			if b.Now().Year() > 2080 {
				b.SetTime(rationtest.Epoch)
				require.NoError(t, rdb.FlushAll(ctx).Err())
			}
			r := ration.Request{Op: ration.OpAllow, Key: "u", N: 1 + rng.Int64N(units)}
			switch rng.IntN(8) {
			case 0:
				r.Op = ration.OpAllowUpTo
			case 1:
				r.Op = ration.OpRefund
			}
			before := must(l.Peek(ctx, "u"))
			d := must(r.Do(ctx, l))
			if r.Op == ration.OpAllow {
				require.Equal(t, before.Remaining >= r.N, d.Allowed)
				if !d.Allowed && d.RetryAfter < time.Hour*24*365 {
					now := b.Now()
					if d.RetryAfter > time.Microsecond {
						b.SetTime(now.Add(d.RetryAfter - time.Microsecond))
						p := must(l.Peek(ctx, "u"))
						require.Less(t, p.Remaining, r.N, "units %d win %v", units, win)
					}
					b.SetTime(now.Add(d.RetryAfter))
					p := must(l.Peek(ctx, "u"))
					require.GreaterOrEqual(t, p.Remaining, r.N, "units %d win %v", units, win)
				}
			}
			if (d.Allowed || r.Op != ration.OpAllow) && d.ResetAfter > 0 && d.ResetAfter < 24*365*time.Hour && rng.IntN(10) == 0 {
				now := b.Now()
				b.SetTime(now.Add(d.ResetAfter - time.Microsecond))
				require.Less(t, must(l.Peek(ctx, "u")).Remaining, units)
				b.SetTime(now.Add(d.ResetAfter))
				require.Equal(t, units, must(l.Peek(ctx, "u")).Remaining)
			}
			n++
		}
	}
	t.Log(n)
}
