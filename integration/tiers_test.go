package integration

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// The promise over several processes, for all strategies and both modes at once: no window sees more units used than
// the limit, whatever happens to processes and server.
func TestTiersOverProcesses(t *testing.T) {
	for name, s := range map[string]struct {
		rule   ration.FailureRule
		strike func(w *workers, srv *redistest.Server)
		rest   time.Duration // how long it goes on then
		check  func(t *testing.T, w *workers, struck struck)
	}{
		"one is replaced":       {ration.FailError, killOne, 3 * hotWindow, requirePromise},
		"one is stopped":        {ration.FailError, stopOne, 2 * hotWindow, requirePromise},
		"Redis loses its data":  {ration.FailError, restart, 5 * hotWindow / 2, requireTwiceOverRestart},
		"Redis is frozen":       {ration.FailError, freeze, 2 * hotWindow, requirePromise},
		"frozen, others decide": {ration.FailLocal(fleet), freeze, 2 * hotWindow, requireTwiceOverFreeze},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			w := launch(t, srv, s.rule, 2*budget)
			time.Sleep(3 * hotWindow / 2)
			at := struck{from: time.Now()}
			s.strike(w, srv)
			at.to = time.Now()
			time.Sleep(s.rest)
			w.end()
			s.check(t, w, at)
		})
	}
}

// struck is when something happened.
type struck struct{ from, to time.Time }

// killOne has another instance take the killed one's place, as happens in operation.
func killOne(w *workers, _ *redistest.Server) {
	other := w.add()
	w.procs[1].kill()
	other.start(w.t)
}

func stopOne(w *workers, _ *redistest.Server) {
	w.signal(1, syscall.SIGSTOP)
	time.Sleep(2 * time.Second)
	w.signal(1, syscall.SIGCONT)
}

func restart(_ *workers, srv *redistest.Server) { srv.Restart() }

// freeze is long enough for a window in which nobody hears of Redis.
func freeze(_ *workers, srv *redistest.Server) {
	srv.Freeze()
	time.Sleep(2 * hotWindow)
	srv.Thaw()
}

// In peace the promise isn't kept by letting nobody through: the units are used up, and memory is where most come
// from. On a machine with other things to do the workers may not get to it, so there are some attempts.
func TestTiersUseUpTheirUnits(t *testing.T) {
	for attempt := range 3 {
		w := launch(t, redistest.Start(t), ration.FailError, bound)
		time.Sleep(5 * hotWindow)
		w.end()
		if w.busy() {
			return
		}
		t.Logf("attempt %d was in vain", attempt)
	}
	t.Error("the units were never used up")
}

// busy says whether nine tenths of what is allowed was used of all limiters' hot subjects, if so much was
// asked for, most of it from memory.
func (w *workers) busy() bool {
	var granted, memory int64
	enough := true
	for limiter, s := range w.prove(w.read(), w.began) {
		period := hotWindow + hotHold // a unit is counted for so long
		if limiter == "fixed-lease" {
			period = hotWindow
		}
		allowed := hotUnits * float64(w.ended.Sub(w.began)) / float64(period)
		enough = enough && float64(s.granted) >= 0.9*min(allowed, float64(s.calls)) && s.memory >= s.granted/8
		granted += s.granted
		memory += s.memory
	}
	return enough && memory > granted/2
}

// requirePromise demands that it was kept, and that all goes on after what happened.
func requirePromise(t *testing.T, w *workers, at struck) {
	for limiter, s := range w.prove(w.read(), at.to.Add(fleetCooldown)) {
		require.Greater(t, s.later, int64(hotUnits), limiter)
		require.Positive(t, s.memory, limiter)
		require.Zero(t, s.degraded, limiter)
	}
}

// requireTwiceOverRestart: a window may see what the old server allowed, with the blocks it gave, and what the new
// one does.
func requireTwiceOverRestart(t *testing.T, w *workers, at struck) {
	over := span{at.from.UnixMicro(), at.to.Add(hotHold + hotWindow/hotSlots).UnixMicro()}
	for limiter, s := range w.prove(w.read(), at.to.Add(hotHold), over) {
		require.Greater(t, s.later, int64(hotUnits), limiter)
	}
}

// requireTwiceOverFreeze: a window may see what Redis allowed and what the instances do without it; one in
// which nobody hears of Redis, no more than the limit.
func requireTwiceOverFreeze(t *testing.T, w *workers, at struck) {
	all := w.read()
	// Blocks are spent until their hold ends; the last to hear of Redis again is the last that decides alone.
	away := span{at.from.UnixMicro(), at.from.Add(hotHold + hotWindow/hotSlots).UnixMicro()}
	back := span{at.to.UnixMicro(), at.to.UnixMicro()}
	for limiter, bySubject := range all {
		for _, uses := range bySubject {
			for _, u := range uses {
				if u.Degraded {
					back.to = max(back.to, u.After)
				}
				if strings.HasSuffix(limiter, "lease") && !u.Degraded && u.Granted > 0 && u.After < back.from {
					require.Less(t, u.Before, away.to, "%s: %+v", limiter, u)
				}
			}
		}
	}
	require.Less(t, back.to, at.to.Add(bound).UnixMicro())
	for limiter, s := range w.prove(all, time.UnixMicro(back.to), away, back) {
		require.Greater(t, s.degraded, int64(hotUnits/2), limiter)
		require.Positive(t, s.later, limiter)
	}
}
