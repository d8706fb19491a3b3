package integration

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

// bounds are the ways in which a store may cut its runs.
var bounds = map[string]ration.Option{
	"default bounds":   ration.WithBatch(ration.Batch{}),
	"smallest bounds":  smallest,
	"without batching": ration.WithoutBatching(),
}

// The whole suite holds for every strategy on every server, however runs are cut. (In memory with
// the default bounds it's among the library's own tests.)
func TestConformance(t *testing.T) {
	t.Parallel()
	all := maps.Clone(strategies)
	all["token"] = bucket
	for kind, start := range servers {
		for name, st := range all {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				srv := start(t)
				for how, bound := range bounds {
					if kind == "miniredis" && how == "default bounds" {
						continue
					}
					t.Run(how, func(t *testing.T) {
						rationtest.Exercise(t, func(t *testing.T) rationtest.Harness {
							return harness(t, srv, name, st, bound)
						})
					})
				}
			})
		}
	}
}

func harness(t *testing.T, srv server, name string, st strategy, bound ration.Option) rationtest.Harness {
	prefix := freshName()
	rdb := client(t, srv.Addr())
	store := open(t, rdb, ration.WithPrefix(prefix), bound)
	h := rationtest.Harness{
		New:     func(p ration.Policy) (ration.Limiter, error) { return st.limiter(store, p) },
		Now:     srv.Now,
		Advance: srv.Advance,
		Grid:    name == "fixed" || name == "counter",
		Refills: name == "token",
		Shared:  true,
		Source:  ration.Redis,
		Keys: func() []string {
			keys, err := rdb.Keys(ctx, prefix+":*").Result()
			require.NoError(t, err)
			return keys
		},
	}
	switch name {
	case "buckets":
		h.Hold = oneSlot
	case "counter": // up to the end of the next window, and windows are rounded up
		h.Estimates = true
		h.Hold = func(_ ration.Policy, window time.Duration) time.Duration { return window + time.Microsecond }
	}
	return h
}

// oneSlot is how much longer than a window the buckets count a unit at most.
func oneSlot(p ration.Policy, window time.Duration) time.Duration {
	slots := int64(p.Slots)
	if slots == 0 {
		slots = 20
	}
	micros := (window.Nanoseconds() + 999) / 1000
	width := (micros + slots - 1) / slots
	return time.Duration(width*(slots+1))*time.Microsecond - window
}
