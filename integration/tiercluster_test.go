package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// Several policies, strategies and modes on one store, that of a cluster: two instances use up a hot subject's
// units between them, most from memory, and no more; what others have left goes back.
func TestTiersOnACluster(t *testing.T) {
	t.Parallel()
	const units = 2000
	cluster := redistest.StartCluster(t)
	var stores []*ration.Store
	tiers := map[string][]ration.Limiter{}
	for range 2 {
		store := open(t, cluster.Client(t))
		stores = append(stores, store)
		for name, st := range leased {
			for mode, tier := range map[string][]ration.TierOption{"lease": nil, "share": shared(0.8, 2)} {
				policy := ration.Policy{Name: name + "-" + mode, Limits: []ration.Limit{ration.Per(units, century)}}
				l, err := ration.NewTwoTier(st.under(t, store, policy), tier...)
				require.NoError(t, err)
				if mode == "share" {
					awaitShare(t, l, "x", units/5)
				}
				tiers[policy.Name] = append(tiers[policy.Name], l)
			}
		}
	}
	used := map[string]int64{}
	for name, both := range tiers {
		used[name] = useUp(t, name, both, units)
	}
	for _, store := range stores {
		require.NoError(t, store.Close())
	}
	checks := open(t, cluster.Client(t))
	for name, st := range leased {
		policy := ration.Policy{Name: name + "-lease", Limits: []ration.Limit{ration.Per(units, century)}}
		d, err := st.under(t, checks, policy).Peek(ctx, "other")
		require.NoError(t, err)
		require.Equal(t, units-used[policy.Name], d.Remaining, name)
	}
}

// useUp calls until a hot subject's units are gone, says how much of another's was used meanwhile.
func useUp(t *testing.T, name string, both []ration.Limiter, units int64) (other int64) {
	t.Helper()
	var granted, memory int64
	for i := 0; granted < units; i++ {
		require.Less(t, i, 4*int(units), name)
		d, err := both[i%2].Allow(ctx, "hot")
		require.NoError(t, err)
		granted += d.Granted
		if d.Allowed && d.Source != ration.Redis {
			memory++
		}
		if i%4 < 2 && i < 400 {
			d, err := both[i%2].Allow(ctx, "other")
			require.NoError(t, err)
			other += d.Granted
		}
	}
	require.Greater(t, memory, units/2, "%s: from memory", name)
	for _, l := range both {
		d, err := l.Allow(ctx, "hot")
		require.NoError(t, err)
		require.False(t, d.Allowed, fmt.Sprint(name, d))
	}
	return other
}
