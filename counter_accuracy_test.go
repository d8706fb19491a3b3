package ration_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// How often the counter's verdict differs from the exact log's on random traffic: a caller who comes
// at random times (a Poisson process), at rates from a tenth of the limit to three times it. Whoever stays
// well below the limit is never judged otherwise. Above it which calls are refused is chance under
// either, so many single verdicts differ, but as many are let in. The figures are in the README.
func TestCounterAgainstTheLog(t *testing.T) {
	const calls, seed = 5000, 1
	r := backends["redis"](t) // much faster than the one in memory
	store := r.store(t)
	limit := ration.PerMinute(100)
	for _, c := range []struct {
		rate float64 // of the limit
		most float64 // percent of verdicts that may differ
		more float64 // percent that the calls let in may be more or fewer
	}{{0.1, 0, 0}, {0.5, 0, 0}, {0.7, 0, 0}, {0.8, 0.3, 0.3}, {0.95, 7, 1.5}, {1.05, 14, 1.5}, {1.5, 34, 1.5}, {3, 42, 1.5}} {
		counter, err := ration.NewSlidingCounter(store, ration.Policy{Name: fmt.Sprintf("rate-%v", c.rate), Limits: []ration.Limit{limit}})
		require.NoError(t, err)
		both, heard := compareOf(t, counter, exactLog(r, limit))
		rng := rand.New(rand.NewPCG(seed, math.Float64bits(c.rate)))
		mean := float64(limit.Window) / (c.rate * float64(limit.Units))
		for range calls {
			r.Advance(time.Duration(rng.ExpFloat64() * mean))
			must(both.Allow(ctx, "u"))
		}
		kinds := map[ration.CompareKind]int{}
		for _, e := range heard.compares {
			kinds[e.Kind()]++
		}
		let, refused := kinds[ration.OnlyFirst], kinds[ration.OnlySecond]
		differ := 100 * float64(let+refused) / calls
		more := 100 * float64(let-refused) / float64(kinds[ration.BothAllowed]+refused)
		t.Logf("at %v of the limit: %.2f %% of verdicts differ, %+.2f %% let in: %d let in and %d refused against the log, which refused %d of %d",
			c.rate, differ, more, let, refused, let+kinds[ration.BothRefused], calls)
		require.LessOrEqual(t, differ, c.most, "at %v of the limit", c.rate)
		require.LessOrEqual(t, math.Abs(more), c.more, "at %v of the limit", c.rate)
	}
}

// exactLog is the sliding log of one subject, as a list.
func exactLog(r backend, limit ration.Limit) ration.Limiter {
	var admitted []int64
	return ration.LimiterFunc(func(context.Context, ration.Request) (ration.Decision, error) {
		now := r.Now().UnixMicro()
		for len(admitted) > 0 && admitted[0] <= now-limit.Window.Microseconds() {
			admitted = admitted[1:]
		}
		if int64(len(admitted)) >= limit.Units {
			return ration.Decision{}, nil
		}
		admitted = append(admitted, now)
		return ration.Decision{Allowed: true, Granted: 1}, nil
	})
}
