package ration_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// term is how long a lease of world.jobs is surely alive, from when it was asked for.
const term = 3*time.Second - 3*time.Second/64

// lostReply has the server do what it's told, and its answer lost.
func lostReply(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
	_ = next(ctx, cmd)
	return io.EOF
}

// slowly has the server answer late.
func slowly(d time.Duration) fault {
	return func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		pass(d)
		return next(ctx, cmd)
	}
}

// awaitEnd waits until a permit is held no more.
func awaitEnd(w *world, p *ration.Permit) {
	w.Helper()
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		w.Fatal("it's held still")
	}
}

// A permit is renewed every third of its TTL for as long as it's held, and then no more.
func TestPermitIsRenewed(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.jobs(w.store(), 1)
		p := acquire(w, c, "u", 1)
		began := time.Now()
		w.take()
		pass(time.Minute + time.Second/2)
		sent := w.take()
		require.Len(w, sent, 60)
		for i, at := range sent {
			require.Equal(w, time.Duration(i+1)*time.Second, at.Sub(began).Round(time.Millisecond))
		}
		require.False(w, p.Lost())
		refusedPermit(w, c, "u", 1)
		p.Release()
		w.take()
		pass(time.Minute)
		require.Empty(w, w.take(), "it's renewed still")
		require.Zero(w, ration.Permits(c))
	})
}

// Many permits are renewed in few commands: those due at one time share script runs.
func TestRenewalsShareRuns(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.jobs(w.store(), 1000)
		for range 500 {
			acquire(w, c, "u", 1)
		}
		w.take()
		w.spoil(slowly(time.Millisecond))
		pass(1500 * time.Millisecond)
		require.LessOrEqual(w, len(w.take()), 20)
		require.EqualValues(w, 500, inFlight(w, c, "u"))
	})
}

// While Redis can't be reached a permit lives to the end of its lease's term, to the instant, however Redis fails;
// and nobody else is let in before the lease is over.
func TestPermitIsLostInAnOutage(t *testing.T) {
	for name, f := range map[string]fault{"refused": refused, "silence": silence, "lost reply": lostReply} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				c := w.jobs(w.store(ration.WithTimeout(time.Minute), noBreaker), 1)
				other := (&world{T: w.T, line: &line{}, rdb: w.rdb}).jobs(w.store(), 1)
				p := acquire(w, c, "u", 1)
				began := time.Now()
				w.spoil(f)
				if name == "lost reply" { // Redis renews it, and it's not known: none is given too early
					defer p.Release()
				}
				pass(term - time.Microsecond)
				require.False(w, p.Lost(), "%v after the Acquire", time.Since(began))
				awaitEnd(w, p)
				require.InDelta(w, term, time.Since(began), float64(time.Microsecond))
				require.True(w, p.Lost())
				w.spoil(nil)
				refusedPermit(w, other, "u", 1)
				if name != "lost reply" {
					pass(3*time.Second - term)
				} else {
					pass(3 * time.Second)
				}
				acquire(w, other, "u", 1).Release()
				p.Release()
				require.True(w, p.Lost(), "its release makes it none that was kept")
			})
		})
	}
}

// An outage of half a TTL loses no permit.
func TestPermitOutlivesAShortOutage(t *testing.T) {
	inBubble(t, func(w *world) {
		c := newConcurrency(w, w.store(), ration.ConcurrencyPolicy{Name: "jobs", Limit: 1})
		p := acquire(w, c, "u", 1)
		for range 20 {
			pass(7 * time.Second) // in no step with the renewals
			w.spoil(refused)
			pass(13 * time.Second)
			w.spoil(nil)
			require.False(w, p.Lost())
		}
		pass(5 * time.Second)
		refusedPermit(w, c, "u", 1)
	})
}

// A Redis that has forgotten a lease says so at the next renewal.
func TestPermitThatRedisForgot(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.jobs(w.store(), 1)
		p := acquire(w, c, "u", 1)
		began := time.Now()
		require.NoError(w, w.rdb.FlushAll(ctx).Err())
		awaitEnd(w, p)
		require.Equal(w, time.Second, time.Since(began).Round(time.Millisecond))
		require.True(w, p.Lost())
		acquire(w, c, "u", 1)
		p.Release()
		refusedPermit(w, c, "u", 1)
	})
}

// A process that was stopped longer than its lease lasts learns it when it asks, with no help of a timer.
func TestStoppedHolderLearnsAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.jobs(w.store(), 1)
		p := acquire(w, c, "u", 1)
		ration.StopRenewals(p)
		pass(term - time.Microsecond)
		require.False(w, p.Lost())
		require.False(w, ended(p))
		pass(time.Microsecond)
		require.True(w, ended(p))
		require.True(w, p.Lost())
	})
}

// A holder whose clock is 1.5 % slow has lost its permit when Redis gives the units to others.
func TestSlowClockHoldsNothingLate(t *testing.T) {
	inBubble(t, func(w *world) {
		store, other := w.store(), w.jobs(w.store(), 1)
		began := time.Now()
		store.SetClock(func() time.Duration { return time.Duration(float64(time.Since(began)) * 0.985) })
		p := acquire(w, w.jobs(store, 1), "u", 1)
		ration.StopRenewals(p)
		pass(2990 * time.Millisecond)
		for !p.Lost() {
			refusedPermit(w, other, "u", 1)
			pass(time.Millisecond)
		}
		refusedPermit(w, other, "u", 1)
		require.Less(w, time.Since(began), 3*time.Second)
	})
}

// A lease whose answer comes when it's over is none.
func TestAnswerAfterTheLease(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.jobs(w.store(ration.WithTimeout(time.Minute)), 1)
		w.spoil(slowly(term))
		p, _, err := c.Acquire(ctx, "u", 1)
		require.ErrorIs(w, err, ration.ErrUnavailable)
		require.Equal(w, ration.ClassTimeout, ration.ClassOf(err))
		require.Nil(w, p)
		w.spoil(nil)
		pass(term)
		require.EqualValues(w, 0, inFlight(w, c, "u"))
	})
}

// An Acquire whose answer is lost has made a lease that nobody holds: it's given back, or runs out.
func TestLostAcquire(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.jobs(w.store(noBreaker), 1)
		require.EqualValues(w, 0, inFlight(w, c, "u")) // now the server has the script
		once := func(f fault) fault {
			return func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				w.spoil(f)
				return lostReply(ctx, cmd, next)
			}
		}
		for _, f := range []fault{nil, refused} {
			w.spoil(once(f))
			w.take()
			p, d, err := c.Acquire(ctx, "u", 1)
			require.ErrorIs(w, err, ration.ErrUnavailable)
			require.Zero(w, d)
			require.Nil(w, p)
			pass(200 * time.Millisecond)
			if f == nil {
				require.Len(w, w.take(), 2, "an Acquire and a release")
			} else {
				require.Len(w, w.take(), 3, "an Acquire, never twice, and two attempts to give back")
				w.spoil(nil)
				pass(2800*time.Millisecond - time.Microsecond)
				refusedPermit(w, c, "u", 1)
				pass(time.Millisecond)
			}
			acquire(w, c, "u", 1).Release()
		}
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		w.spoil(slowly(20 * time.Millisecond))
		_, _, err := c.Acquire(short, "u", 1)
		require.ErrorIs(w, err, context.DeadlineExceeded)
		pass(100 * time.Millisecond)
		require.EqualValues(w, 0, inFlight(w, c, "u"), "its caller had left")
		require.Zero(w, ration.Permits(c))
	})
}

// A release that overtakes the Acquire it's for is made again.
func TestOvertakenAcquire(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.jobs(w.store(), 1)
		require.EqualValues(w, 0, inFlight(w, c, "u"))
		w.spoil(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			w.spoil(nil) // the others overtake it
			return slowly(50*time.Millisecond)(ctx, cmd, next)
		})
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		_, _, err := c.Acquire(short, "u", 1)
		require.ErrorIs(w, err, context.DeadlineExceeded)
		pass(50 * time.Millisecond)
		require.EqualValues(w, 1, inFlight(w, c, "u"))
		pass(100 * time.Millisecond)
		require.EqualValues(w, 0, inFlight(w, c, "u"))
		require.Zero(w, ration.Permits(c))
	})
}

// A Release that Redis doesn't hear is made again until it does, or the lease is over.
func TestReleaseIsMadeAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.jobs(w.store(noBreaker), 1)
		p := acquire(w, c, "u", 1)
		w.spoil(refused)
		p.Release()
		pass(500 * time.Millisecond)
		w.spoil(nil)
		pass(3*time.Second/24 + time.Millisecond)
		acquire(w, c, "u", 1)
		p.Release()
		refusedPermit(w, c, "u", 1)
		p = acquire(w, c, "v", 1)
		w.spoil(silence)
		p.Release()
		require.Equal(w, 2, ration.Permits(c))
		pass(4 * time.Second)
		require.Equal(w, 0, ration.Permits(c), "it's tried after the lease's end")
		w.take()
		pass(time.Minute)
		require.Empty(w, w.take())
	})
}

// Close ends what is held at once, and what is under way; the leases run out, and later releases send nothing.
func TestCloseWithPermits(t *testing.T) {
	inBubble(t, func(w *world) {
		store := w.store()
		c, other := w.jobs(store, 4), w.jobs(w.store(), 4)
		p, again := acquire(w, c, "u", 1), acquire(w, c, "u", 1)
		renewing := acquire(w, c, "u", 1)
		pass(500 * time.Millisecond)
		w.spoil(refused)
		again.Release()
		w.spoil(slowly(10 * time.Millisecond))
		pass(505 * time.Millisecond) // the renewals are under way
		require.NoError(w, store.Close())
		w.take()
		for _, p := range []*ration.Permit{p, renewing} {
			require.True(w, ended(p))
			require.True(w, p.Lost())
			p.Release()
			p.Release()
		}
		again.Release()
		_, _, err := c.Acquire(ctx, "u", 1)
		require.ErrorIs(w, err, ration.ErrClosed)
		pass(2800 * time.Millisecond)
		require.Empty(w, w.take())
		require.EqualValues(w, 2, inFlight(w, other, "u"), "others may have it while it's at work")
		pass(500 * time.Millisecond)
		require.EqualValues(w, 0, inFlight(w, other, "u"))
	})
}

// Acquire, Release and Close at once, from many goroutines.
func TestCloseAmongPermits(t *testing.T) {
	inBubble(t, func(w *world) {
		for range 20 {
			store := w.store()
			c := w.jobs(store, 10)
			w.spoil(slowly(time.Millisecond))
			var all sync.WaitGroup
			for i := range 50 {
				all.Go(func() {
					for range 5 {
						pass(time.Duration(i) * 100 * time.Microsecond)
						p, _, _ := c.Acquire(ctx, "u", 1)
						p.Release()
					}
				})
			}
			pass(7 * time.Millisecond)
			require.NoError(w, store.Close())
			all.Wait()
			w.spoil(nil)
			pass(3 * time.Second)
		}
		require.EqualValues(w, 0, inFlight(w, w.jobs(w.store(), 10), "u"))
	})
}

func TestPermitsByClientTime(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.jobs(w.store(ration.WithClientTime()), 1)
		_, _, err := ration.AcquireAs(c, "u", "crashed", 1)
		require.NoError(w, err)
		pass(3*time.Second - time.Microsecond)
		require.Equal(w, time.Microsecond, refusedPermit(w, c, "u", 1).RetryAfter)
		pass(time.Microsecond)
		acquire(w, c, "u", 1)
	})
}
