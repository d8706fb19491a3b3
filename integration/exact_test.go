package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// Of 1000 callers released at once on two instances exactly the limit passes, and each is
// told what was left after it; a hundred times.
func TestB118ExactlyTheLimitPasses(t *testing.T) {
	t.Parallel()
	const callers, units, repetitions = 1000, 50, 100
	each(t, func(t *testing.T, st strategy) {
		t.Parallel()
		srv := servers["redis"](t)
		policy := ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(units)}}
		var instances []ration.Limiter
		var watches []*watch
		for range 2 {
			rdb := client(t, srv.Addr())
			watches = append(watches, watched(&watch{st: st}, rdb))
			instances = append(instances, st.under(t, open(t, rdb), policy))
		}
		want := make([]int64, units)
		for i := range want {
			want[i] = int64(i)
		}
		for i := range repetitions {
			require.Equal(t, want, passed(t, instances, "u"+strconv.Itoa(i), callers))
		}
		sent := watches[0].tally().add(watches[1].tally())
		require.Equal(t, callers*repetitions, sent.calls)
		t.Logf("%d calls in %d runs, at most %d in one", sent.calls, sent.runs, sent.most)
	})
}

// passed releases callers at once and gives the sorted Remaining of those that passed.
func passed(t *testing.T, instances []ration.Limiter, key string, callers int) []int64 {
	answers, errs := make([]ration.Decision, callers), make([]error, callers)
	gate := make(chan struct{})
	var done sync.WaitGroup
	for i := range callers {
		done.Go(func() {
			<-gate
			answers[i], errs[i] = instances[i%len(instances)].Allow(ctx, key)
		})
	}
	close(gate)
	done.Wait()
	require.NoError(t, errors.Join(errs...))
	var left []int64
	for _, d := range answers {
		if d.Allowed {
			left = append(left, d.Remaining)
		} else if d.Remaining != 0 || d.RetryAfter <= 0 {
			t.Fatalf("a refusal of %+v", d)
		}
	}
	slices.Sort(left)
	return left
}

// Many goroutines do all there is to do at once, with policies that change and a Close in
// the end; a subject apart from that keeps its exact limit.
func TestB117EverythingAtOnce(t *testing.T) {
	t.Parallel()
	const callers, calls, control = 64, 60, 100
	rng := seeded(t)
	each(t, func(t *testing.T, st strategy) {
		srv := servers["redis"](t)
		store := open(t, client(t, srv.Addr()))
		var units atomic.Int64
		units.Store(5)
		changing := st.under(t, store, ration.Policy{
			Name: "changing",
			LimitsFor: func(context.Context, string) ([]ration.Limit, error) {
				return []ration.Limit{ration.PerHour(units.Load()), ration.PerDay(50)}[:1+units.Load()%2], nil
			},
		})
		steady := st.of(t, store, control)
		var allowed atomic.Int64
		var done sync.WaitGroup
		for range callers {
			own := rand.New(rand.NewPCG(rng.Uint64(), 3))
			done.Go(func() {
				for range calls {
					units.Store(1 + own.Int64N(9))
					r := ration.Request{Op: ration.OpAllow + ration.Op(own.IntN(5)), Key: fmt.Sprint(own.IntN(1000)), N: own.Int64N(3)}
					if _, err := r.Do(ctx, changing); err != nil {
						t.Errorf("%+v: %v", r, err)
					}
					if d, err := steady.Allow(ctx, "control"); err != nil {
						t.Error(err)
					} else if d.Allowed {
						allowed.Add(1)
					}
				}
			})
		}
		done.Wait()
		require.EqualValues(t, control, allowed.Load())
	})
}

// A Close under load lets the calls under way finish, each with its answer, and sends nothing
// after that: what was allowed is what was charged.
func TestCloseUnderLoad(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, st strategy) {
		t.Parallel()
		srv := servers["redis"](t)
		for i := range 16 {
			rdb := client(t, srv.Addr(), obedient(i%8 < 4))
			w := watched(&watch{st: st}, rdb)
			store := open(t, rdb, []ration.Option{nil, oneRun, smallest, ration.WithoutBatching()}[i%4])
			key := fmt.Sprint(i)
			allowed := loadUntilClosed(t, store, st.of(t, store, 1<<40), key)
			sent := w.tally()
			require.Equal(t, allowed, st.used(t, srv.Addr(), key, 1<<40))
			require.Equal(t, sent, w.tally())
			require.EqualValues(t, allowed, sent.calls)
		}
	})
}

// loadUntilClosed has callers call until they get ErrClosed and counts what was allowed.
func loadUntilClosed(t *testing.T, store *ration.Store, l ration.Limiter, key string) int64 {
	var allowed, refused atomic.Int64
	var callers, closers sync.WaitGroup
	for range 32 {
		callers.Go(func() {
			for {
				d, err := l.Allow(ctx, key)
				if err != nil {
					if !errors.Is(err, ration.ErrClosed) || d.Allowed {
						t.Errorf("%+v, %v", d, err)
					}
					refused.Add(1)
					return
				}
				allowed.Add(1)
			}
		})
	}
	until(t, "some load", func() bool { return allowed.Load() > 200 })
	for range 2 {
		closers.Go(func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closers.Wait()
	callers.Wait()
	require.EqualValues(t, 32, refused.Load())
	for op := ration.OpAllow; op <= ration.OpReset; op++ {
		_, err := ration.Request{Op: op, Key: key, N: 1}.Do(ctx, l)
		require.ErrorIs(t, err, ration.ErrClosed)
	}
	return allowed.Load()
}

// A store that's dropped without Close leaves no goroutine behind.
func TestDroppedStoreLeavesNothing(t *testing.T) {
	each(t, func(t *testing.T, st strategy) {
		srv := servers["redis"](t)
		rdb := client(t, srv.Addr())
		before := goroutines("ration.(*lane)")
		for range 10 {
			store, err := ration.Open(rdb, ration.WithTimeout(bound))
			require.NoError(t, err)
			passed(t, []ration.Limiter{st.of(t, store, 10)}, "u", 50)
		}
		until(t, "no goroutine of the library's", func() bool { return goroutines("ration.(*lane)") <= before })
	})
}
