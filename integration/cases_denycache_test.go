package integration

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// instance is a process of a service: its store, limiter, plan of limits, and a count of its commands.
type instance struct {
	ration.Limiter
	w     *watch
	units *atomic.Int64
}

func newInstance(t *testing.T, srv *redistest.Server, st strategy, prefix string, window time.Duration) instance {
	rdb := client(t, srv.Addr())
	in := instance{w: watched(&watch{st: st}, rdb), units: &atomic.Int64{}}
	in.units.Store(1)
	store := open(t, rdb, ration.WithPrefix(prefix), ration.WithDenyCache(100))
	in.Limiter = st.under(t, store, ration.Policy{Name: "p", LimitsFor: func(context.Context, string) ([]ration.Limit, error) {
		return []ration.Limit{ration.Per(in.units.Load(), window)}, nil
	}})
	return in
}

// requireCached demands a refusal without a command.
func (in instance) requireCached(t *testing.T) ration.Decision {
	t.Helper()
	before := in.w.runsSeen()
	d, err := in.Allow(ctx, "subject")
	require.NoError(t, err)
	require.Equal(t, ration.DenyCache, d.Source)
	require.False(t, d.Allowed)
	require.Equal(t, before, in.w.runsSeen())
	return d
}

// exhausted makes two instances which both remember that the one unit is used. It's done anew where the
// machine was so slow that what was remembered may have run out.
func exhausted(t *testing.T, srv *redistest.Server, st strategy) (x, y instance, at time.Time) {
	for {
		prefix := freshName()
		x, y = newInstance(t, srv, st, prefix, 3600*time.Second), newInstance(t, srv, st, prefix, 3600*time.Second)
		d, err := x.Allow(ctx, "subject")
		require.NoError(t, err)
		require.True(t, d.Allowed)
		at = time.Now()
		for _, in := range []instance{x, y} {
			d, err := in.Allow(ctx, "subject")
			require.NoError(t, err)
			require.Equal(t, ration.Redis, d.Source)
			require.False(t, d.Allowed)
		}
		if time.Since(at) < ration.DenyCacheTime/2 {
			x.requireCached(t)
			y.requireCached(t)
			return x, y, at
		}
	}
}

// B130: a Reset and a raised limit end a remembered refusal at once in the process that does it, and within
// DenyCacheTime in others, which meanwhile ask nothing.
func TestB130RememberedRefusalEnds(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	for name, end := range map[string]func(t *testing.T, x, y instance){
		"reset": func(t *testing.T, x, _ instance) { require.NoError(t, x.Reset(ctx, "subject")) },
		"new limit": func(_ *testing.T, x, y instance) {
			x.units.Store(10)
			time.AfterFunc(ration.DenyCacheTime/2, func() { y.units.Store(10) }) // it hears of it later
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, st strategy) {
				t.Parallel()
				x, y, at := exhausted(t, srv, st)
				end(t, x, y)
				d, err := x.Allow(ctx, "subject")
				require.NoError(t, err)
				require.True(t, d.Allowed, "in the process itself")
				if name == "reset" {
					require.NoError(t, x.Reset(ctx, "subject")) // leave it to y
				}
				requireWithin(t, ration.DenyCacheTime-time.Since(at), "in another process", func() {
					until(t, "allowed there", func() bool {
						d, err := y.Allow(ctx, "subject")
						require.NoError(t, err)
						return d.Allowed
					})
				})
			})
		})
	}
}

// B130: what the sliding log refuses is remembered until its oldest entry is over, and not for a window from
// then on.
func TestB130RememberedRefusalOfTheLogEndsWithTheOldestEntry(t *testing.T) {
	t.Parallel()
	const window = 900 * time.Millisecond
	in := newInstance(t, redistest.Start(t), strategies["log"], freshName(), window)
	_, err := in.Peek(ctx, "subject") // the way there
	require.NoError(t, err)
	before := time.Now()
	d, err := in.Allow(ctx, "subject")
	require.NoError(t, err)
	require.True(t, d.Allowed)
	after := time.Now()
	until(t, "some of the window is over", func() bool { return time.Since(after) > window/2 })
	sources := map[ration.Source]int{}
	requireWithin(t, time.Until(after.Add(window)), "allowed", func() {
		until(t, "allowed", func() bool {
			asked := time.Now()
			d, err = in.Allow(ctx, "subject")
			require.NoError(t, err)
			sources[d.Source]++
			if !d.Allowed {
				require.LessOrEqual(t, d.RetryAfter, after.Add(window).Sub(asked))
			}
			return d.Allowed
		})
	})
	require.GreaterOrEqual(t, time.Since(before), window)
	require.Positive(t, sources[ration.DenyCache])
	require.LessOrEqual(t, sources[ration.Redis], 10)
}

// Between processes a refusal that was right when Redis said it may be told for DenyCacheTime at most,
// by the server's clock: whatever another process gives back is seen then.
func TestRememberedRefusalsAreNeverOlder(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	each(t, func(t *testing.T, st strategy) {
		t.Parallel()
		x, y, _ := exhausted(t, srv, st)
		var all sync.WaitGroup
		refunded := time.Now()
		_, err := x.Refund(ctx, "subject", 1)
		require.NoError(t, err)
		for range 4 {
			all.Go(func() {
				for ; time.Since(refunded) < ration.DenyCacheTime+200*time.Millisecond; time.Sleep(time.Millisecond) {
					asked := time.Now()
					d, err := y.AllowN(ctx, "subject", 2) // never passes, and ends nobody's chance
					if err != nil || d.Allowed || d.Source == ration.DenyCache && asked.Sub(refunded) > ration.DenyCacheTime {
						t.Errorf("%+v, %v, %v after the refund", d, err, asked.Sub(refunded))
					}
				}
			})
		}
		all.Wait()
		d, err := y.Allow(ctx, "subject")
		require.NoError(t, err)
		require.True(t, d.Allowed)
	})
}
