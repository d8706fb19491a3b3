package ration_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// Whole runs of several items, handed to both scripts as they are: fast and slow parts mix in one run.
func TestHostilePlayRuns(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	rdb := redistest.Start(t).Client(t)
	join := func(parts ...string) *redis.Script {
		var b strings.Builder
		for _, p := range parts {
			b.WriteString(ration.ScriptPart(p))
		}
		return redis.NewScript(b.String())
	}
	log := join("prelude", "common", "members", "zset", "driver")
	compact := join("prelude", "compact_const", "compact_fast", "common", "compact", "driver")
	now := int64(1_800_000_000_000_000)
	end := time.Now().Add(3 * time.Second)
	runs := 0
	for round := 0; time.Now().Before(end); round++ {
		require.NoError(t, rdb.FlushAll(ctx).Err())
		width := int64(60_000_000)
		if rng.IntN(3) == 0 {
			width = 1 + rng.Int64N(3_000_000)
		}
		cost := []int64{1, 3, 17, 5000, 30_000_000, 1 << 45}[rng.IntN(6)]
		units := min(1<<53, 1+rng.Int64N(cost*[]int64{3, 40, 300}[rng.IntN(3)]))
		var trace []string
		for i := range 150 {
			switch rng.IntN(10) {
			case 0:
				now += rng.Int64N(width + 2)
			case 1, 2, 3, 4:
				now += rng.Int64N(width/20 + 2)
			case 5:
				if rng.IntN(6) == 0 {
					now -= rng.Int64N(width/2 + 1)
				}
			}
			if rng.IntN(30) == 0 {
				units = min(1<<53, 1+rng.Int64N(cost*40))
			}
			var keys []string
			items := []any{}
			prev := ""
			prevOwn := 0
			for range 1 + rng.IntN(6) {
				op, n := "a", 1+rng.Int64N(cost)
				switch rng.IntN(12) {
				case 0:
					op = "u"
				case 1:
					op, n = "p", 0
				case 2, 3:
					op = "r"
				case 4:
					op = fmt.Sprintf("a%d", 2+rng.IntN(20))
				case 5:
					op = fmt.Sprintf("u%d", 2+rng.IntN(5))
				case 6:
					if rng.IntN(10) == 0 {
						op, n = "x", 0
					}
				case 7:
					n = 1 + rng.Int64N(units)
				}
				if rng.IntN(40) == 0 {
					n = 1<<53 + 2
					op = "a"
				}
				own := 1
				if rng.IntN(6) == 0 {
					own = 2
				}
				subject := fmt.Sprint("s", rng.IntN(3))
				lims := []any{units, width, 1}
				if own == 2 {
					lims = append(lims, min(1<<53, 2*units), 2*width+1, 1)
				}
				keys = append(keys, "w1"+subject)
				if own == 2 {
					keys = append(keys, "w2"+subject)
				}
				items = append(items, op, n)
				if s := fmt.Sprint(lims); s == prev && own == prevOwn {
					items = append(items, 0)
				} else {
					items = append(append(items, own), lims...)
					prev, prevOwn = s, own
				}
			}
			runs++
			a := func(prefix string, head ...any) ([]string, []any) {
				ks := make([]string, len(keys))
				for i, k := range keys {
					ks[i] = prefix + k
				}
				return ks, append(append([]any{now}, head...), items...)
			}
			ks, args := a("l", fmt.Sprintf("%x", runs))
			want, err := log.Run(ctx, rdb, ks, args...).Result()
			ks2, args2 := a("c")
			got, err2 := compact.Run(ctx, rdb, ks2, args2...).Result()
			trace = append(trace, fmt.Sprint(now, " ", keys, " ", items))
			if err != nil || err2 != nil || fmt.Sprint(want) != fmt.Sprint(got) {
				t.Fatalf("round %d run %d: %v %v\nwant %v\ngot  %v\n%s", round, i, err, err2, want, got, strings.Join(trace[max(0, len(trace)-6):], "\n"))
			}
		}
	}
	t.Log(runs, "runs")
}
