package ration

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTakeOfAHugeCost: no cost makes an empty or ended block wrap round to a full one.
func TestTakeOfAHugeCost(t *testing.T) {
	for _, n := range []int64{math.MaxInt64, math.MaxInt64/2 + 2, MaxUnits + 1} {
		b := &block{expires: 1, size: 10}
		b.left.Store(10)
		require.Zero(t, b.take(0, n, false))
		require.EqualValues(t, 10, b.finish())
		require.Zero(t, b.take(0, n, false))
		require.Zero(t, b.take(0, n, true))
		require.Zero(t, b.unspend(0, n))
		require.Zero(t, b.finish())
	}
}
