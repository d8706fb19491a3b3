package ration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// TestHeartbeat counts instances as they come, close and are lost.
func TestHeartbeat(t *testing.T) {
	inTierBubble(t, func(tt *tierTest) {
		first := tt.instance("fixed", minute(1000), 1, nil)
		passes := func(d time.Duration, all ...*tierInstance) int64 {
			for range d / (50 * time.Millisecond) {
				for _, in := range all {
					ration.Instances(in.Limiter) // as each fetch of a block asks
				}
				pass(50 * time.Millisecond)
			}
			return ration.Instances(first.Limiter)
		}
		require.EqualValues(t, 1, ration.Instances(first.Limiter))
		second, third := tt.instance("fixed", minute(1000), 1, nil), tt.instance("fixed", minute(1000), 1, nil)
		require.EqualValues(t, 3, passes(1100*time.Millisecond, first, second, third))
		require.NoError(t, second.store.Close())
		require.EqualValues(t, 2, passes(1100*time.Millisecond, first, third))
		third.net.cut.Store(true)
		require.EqualValues(t, 2, passes(1800*time.Millisecond, first))
		require.EqualValues(t, 1, passes(2300*time.Millisecond, first), "lost, it's known after a second and three more")
		pass(2 * time.Second)
		before := first.net.commands.Load()
		pass(time.Minute)
		require.Equal(t, before, first.net.commands.Load(), "it beats and isn't in use")
		require.Empty(t, tt.server.Mini().Keys())
	})
}

func TestPanicInABeatIsCaught(t *testing.T) {
	inTierBubble(t, func(tt *tierTest) {
		in := tt.instance("fixed", minute(1000), 1, nil)
		in.net.ran = func([]any, any) { panic("a hook") }
		ration.Instances(in.Limiter)
		pass(time.Second / 2)
	})
}

func TestCloseTwice(t *testing.T) {
	inTierBubble(t, func(tt *tierTest) {
		for _, tier := range [][]ration.TierOption{nil, {ration.WithShare(0.5), ration.WithInstances(2)}} {
			in := tt.instance("log", minute(1000), 1, nil, tier...)
			in.steady(100)
			done := make(chan int64)
			for range 2 { // at once
				go func() {
					in.store.Close()
					done <- must(in.reader(tt).Peek(ctx, "u")).Remaining
				}()
			}
			for range 2 {
				if left := <-done; tier == nil {
					require.EqualValues(t, 900, left, "what was held hadn't come back when Close returned")
				}
			}
			require.NoError(t, in.store.Close())
			d, err := in.Allow(ctx, "u")
			require.ErrorIs(t, err, ration.ErrClosed)
			require.False(t, d.Allowed)
			before := in.net.commands.Load()
			_, err = in.AllowUpTo(ctx, "u", 5)
			require.ErrorIs(t, err, ration.ErrClosed)
			pass(10 * time.Second)
			require.Equal(t, before, in.net.commands.Load(), "something is still running")
		}
	})
}

// reader is a limiter on another store.
func (in *tierInstance) reader(tt *tierTest) ration.Limiter {
	return tt.instance("log", minute(1000), 1, nil).global
}
