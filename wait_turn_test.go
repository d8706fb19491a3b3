package ration_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// crew waits at a bucket in a bubble.
type crew struct {
	*world
	sync.WaitGroup
	began time.Time

	mu       sync.Mutex
	admitted map[int]time.Duration
	refused  map[int]ration.Decision
	left     map[int]error
}

func newCrew(w *world) *crew {
	return &crew{
		world: w, began: time.Now(), admitted: map[int]time.Duration{}, refused: map[int]ration.Decision{}, left: map[int]error{},
	}
}

// wait has number i wait. All calls before it have reached Redis when it returns.
func (c *crew) wait(ctx context.Context, l ration.Limiter, i int, n int64) {
	c.Go(func() {
		d, err := ration.Wait(ctx, l, "u", n)
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case err != nil:
			c.left[i] = err
		case d.Allowed:
			c.admitted[i] = time.Since(c.began)
		default:
			c.refused[i] = d
		}
	})
	synctest.Wait()
}

// twoInstances are limiters of one policy on two stores.
func (c *crew) twoInstances(p ration.Policy, opts ...ration.Option) [2]ration.Limiter {
	return [2]ration.Limiter{c.of("token", c.store(opts...), p), c.of("token", c.store(opts...), p)}
}

// B25: waiters of two instances get turns of their own, evenly spaced, in the order in which they came, and at no
// other time; one that leaves has charged nothing, if nobody is behind it.
func TestB25TurnsAtABucket(t *testing.T) {
	inBubble(t, func(w *world) {
		c := newCrew(w)
		both := c.twoInstances(ration.Policy{Name: "p", Limits: []ration.Limit{bucket(10, time.Second, 1)}})
		for i := range 50 {
			c.wait(ctx, both[i%2], i, 1)
		}
		leaving, leave := context.WithCancel(ctx)
		c.wait(leaving, both[0], 50, 1)
		pass(time.Second / 2)
		leave()
		c.Wait()
		require.ErrorIs(t, c.left[50], context.Canceled)
		require.Len(t, c.admitted, 50)
		for i := range 50 {
			require.Equal(t, time.Duration(i)*100*time.Millisecond, c.admitted[i], i)
		}
		d := must(both[1].Peek(ctx, "u")) // the 51st would have come 100 ms after the 50th
		require.Equal(t, 100*time.Millisecond, d.ResetAfter)
	})
}

// Calls that don't wait are refused while others have reserved, and so are refunds; a waiter that leaves from among
// others leaves their turns as they are.
func TestTurnsStand(t *testing.T) {
	inBubble(t, func(w *world) {
		c := newCrew(w)
		l := c.twoInstances(ration.Policy{Name: "p", Limits: []ration.Limit{bucket(1, time.Second, 1)}})[0]
		leaving, leave := context.WithCancel(ctx)
		for i := range 4 {
			own := ctx
			if i == 2 {
				own = leaving
			}
			c.wait(own, l, i, 1)
		}
		d := must(l.Allow(ctx, "u"))
		require.False(t, d.Allowed)
		require.Equal(t, 4*time.Second, d.RetryAfter)
		require.Zero(t, must(l.Refund(ctx, "u", 1)).Granted)
		pass(time.Second / 2)
		leave()
		synctest.Wait()
		require.ErrorIs(t, c.left[2], context.Canceled)
		c.wait(ctx, l, 4, 1)
		c.Wait()
		for i, want := range map[int]time.Duration{0: 0, 1: time.Second, 3: 3 * time.Second, 4: 4 * time.Second} {
			require.Equal(t, want, c.admitted[i], i)
		}
	})
}

// The context bounds the wait: who can't have a turn in time is told so at once, and has none.
func TestTurnsWithinADeadline(t *testing.T) {
	inBubble(t, func(w *world) {
		c := newCrew(w)
		l := c.twoInstances(ration.Policy{Name: "p", Limits: []ration.Limit{bucket(1, time.Second, 2)}})[0]
		soon, cancel := context.WithTimeout(ctx, 2500*time.Millisecond)
		defer cancel()
		c.wait(ctx, l, 0, 2)
		c.wait(soon, l, 1, 2) // at 2 s
		c.wait(soon, l, 2, 1) // at 3 s
		c.wait(soon, l, 3, 3) // never
		c.wait(ctx, l, 4, 1)  // at 3 s
		require.Equal(t, 3*time.Second, c.refused[2].RetryAfter)
		require.Equal(t, ration.Never, c.refused[3].RetryAfter)
		require.Zero(t, c.refused[2].Granted)
		c.Wait()
		require.Equal(t, map[int]time.Duration{0: 0, 1: 2 * time.Second, 4: 3 * time.Second}, c.admitted)
		require.Empty(t, c.left)
	})
}

// An answer that comes late doesn't make a waiter late: the turn goes back.
func TestTurnAfterASlowAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		c := newCrew(w)
		l := c.twoInstances(ration.Policy{Name: "p", Limits: []ration.Limit{bucket(1, time.Second, 1)}}, ration.WithTimeout(time.Minute))[0]
		c.wait(ctx, l, 0, 1)
		w.spoil(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			defer pass(100 * time.Millisecond)
			return next(ctx, cmd)
		})
		soon, cancel := context.WithTimeout(ctx, 1050*time.Millisecond)
		defer cancel()
		c.wait(soon, l, 1, 1)
		pass(300 * time.Millisecond)
		c.Wait()
		require.Equal(t, time.Second, c.refused[1].RetryAfter)
		w.spoil(nil)
		require.Equal(t, 700*time.Millisecond, must(l.Peek(ctx, "u")).ResetAfter)
	})
}

// Under several limits, and while the failure rule decides, waiters compete as elsewhere.
func TestWaitersThatCompete(t *testing.T) {
	inBubble(t, func(w *world) {
		c := newCrew(w)
		l := c.twoInstances(ration.Policy{Name: "p", Limits: []ration.Limit{bucket(10, time.Second, 1), bucket(2, time.Minute, 2)}})[0]
		c.wait(ctx, l, 0, 1)
		c.wait(ctx, l, 1, 1)
		c.Wait()
		require.Equal(t, map[int]time.Duration{0: 0, 1: 100 * time.Millisecond}, c.admitted)

		c = newCrew(w)
		policy := ration.Policy{Name: "q", Limits: []ration.Limit{bucket(10, time.Second, 1)}}
		local := c.twoInstances(policy, ration.WithOnFailure(ration.FailLocal(1)))[0]
		strict := c.twoInstances(policy)[0]
		w.spoil(refused)
		c.wait(ctx, local, 0, 1)
		c.wait(ctx, local, 1, 1)
		c.wait(ctx, strict, 2, 1)
		require.ErrorIs(t, c.left[2], ration.ErrUnavailable)
		c.Wait()
		require.Len(t, c.admitted, 2)
		require.GreaterOrEqual(t, c.admitted[1]-c.admitted[0], 100*time.Millisecond)
	})
}
