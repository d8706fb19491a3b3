package ration_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/model"
)

// mixable are the strategies that are combined.
var mixable = strings.Fields(every)

// combine makes a limiter of one for each limit.
func (h *history) combine(p ration.Policy) (ration.Limiter, error) {
	var parts []ration.Limiter
	for i, l := range p.Limits {
		own := p
		own.Name = fmt.Sprint("p", i)
		if own.Limits = []ration.Limit{l}; h.dynamic {
			own.LimitsFor = func(context.Context, string) ([]ration.Limit, error) { return h.limits[i : i+1], nil }
		}
		part, err := playStrategies[h.mix[i]].limiter(h.world.store, own)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return ration.Combine(parts...)
}

// micros is d in whole microseconds, rounded up as windows are.
func micros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

func (h *history) genLimits(t *rapid.T) []ration.Limit {
	limits := genLimits().Draw(t, "limits")
	for i := range limits {
		limits[i].Burst = h.genBurst(t, i, limits[i])
	}
	return limits
}

func genLimits() *rapid.Generator[[]ration.Limit] {
	limit := rapid.Custom(func(t *rapid.T) ration.Limit {
		return ration.Limit{
			Name:   rapid.SampledFrom([]string{"", "burst"}).Draw(t, "name"),
			Units:  genUnits().Draw(t, "units"),
			Window: genWindow().Draw(t, "window"),
		}
	})
	return rapid.SliceOfNDistinct(limit, 1, 3, func(l ration.Limit) int64 { return micros(l.Window) })
}

// genBurst is a Burst for limit i, one that comes back within MaxWindow.
func (h *history) genBurst(t *rapid.T, i int, l ration.Limit) int64 {
	if h.world.strategy != model.TokenBucket && (h.mix == nil || h.mix[i] != "token") {
		return 0
	}
	b := rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(1, 30), genUnits()).Draw(t, "burst")
	if float64(b)*float64(l.Window) > 0.99*float64(l.Units)*float64(ration.MaxWindow) {
		return 0
	}
	return b
}

func genUnits() *rapid.Generator[int64] {
	small := rapid.Int64Range(0, 30)
	return rapid.OneOf(
		small, small, small, small,
		rapid.SampledFrom([]int64{1e6 - 1, 1e6}), // where the fixed window writes in another way
		rapid.SampledFrom([]int64{100, 1e15 + 1, ration.MaxUnits - 1, ration.MaxUnits}),
		rapid.Int64Range(31, 1e9),
	)
}

func genWindow() *rapid.Generator[time.Duration] {
	return rapid.OneOf(
		rapid.SampledFrom([]time.Duration{
			ration.MinWindow, 1500001 * time.Nanosecond, 3333 * time.Microsecond, time.Second, 7 * time.Second,
			time.Minute, 13 * time.Minute, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour,
		}),
		rapid.Map(rapid.IntRange(1000, 10_000_000), func(us int) time.Duration { return time.Duration(us) * time.Microsecond }),
	)
}
