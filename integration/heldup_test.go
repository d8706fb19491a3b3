package integration

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// A run that's held up, by a lost packet say, holds up its own calls and no others: there is
// room for another run, and the server is well.
func TestHeldUpRunHoldsUpItsOwn(t *testing.T) {
	each(t, func(t *testing.T, st strategy) {
		rdb := client(t, servers["redis"](t).Addr())
		w := watched(&watch{st: st}, rdb)
		l := st.of(t, open(t, rdb, ration.WithTimeout(2*time.Second)), many)
		requireWorks(t, l)
		var callers sync.WaitGroup
		var answered, held atomic.Int64
		end, release := make(chan struct{}), make(chan struct{})
		finish := sync.OnceFunc(func() { close(release); close(end) })
		defer finish() // also when a check below ends the test
		for range 50 {
			callers.Go(func() {
				for {
					select {
					case <-end:
						return
					default:
						if _, err := l.Allow(ctx, "u"); err == nil {
							answered.Add(1)
						}
					}
				}
			})
		}
		until(t, "some load", func() bool { return answered.Load() > 500 })
		w.on(nil, func(int) {
			if held.CompareAndSwap(0, answered.Load()) {
				<-release
			}
		})
		until(t, "a run that's held up", func() bool { return held.Load() > 0 })
		// All fifty may ride in that run; these come after it.
		before, began := answered.Load(), time.Now()
		for range 10 {
			callers.Go(func() {
				for i := 0; i < 20 && time.Since(began) < time.Second; i++ {
					if _, err := l.Allow(ctx, "u"); err == nil {
						answered.Add(1)
					}
				}
			})
		}
		until(t, "answers while one run is held up", func() bool { return answered.Load() >= before+200 })
		took := time.Since(began)
		finish()
		callers.Wait()
		require.Less(t, took, time.Second, "answers while one run was held up")
	})
}
