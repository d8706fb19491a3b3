package benchmarks

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

func TestQuick(t *testing.T) {
	if os.Getenv("QUICK") == "" {
		t.Skip()
	}
	s := redistest.Start(t)
	rdb := s.Client(t, func(o *redis.Options) { o.PoolSize = 64 })
	store := must(ration.Open(rdb, ration.WithTimeout(10*time.Second)))
	mk := func(f func(*ration.Store, ration.Policy) (ration.Limiter, error), units int64, w time.Duration) func(string) error {
		l := must(f(store, ration.Policy{Name: "bench" + strconv.Itoa(int(units)), Limits: []ration.Limit{ration.Per(units, w)}}))
		return func(s string) error { _, err := l.Allow(ctx, s); return err }
	}
	rival := redis_rate.NewLimiter(rdb)
	cs := []*contender{
		{name: "redis_rate", decide: func(s string) error { _, err := rival.Allow(ctx, s, redis_rate.PerMinute(1000000000)); return err }},
		{name: "fixed", decide: mk(ration.NewFixedWindow, 1e9, time.Minute)},
		{name: "log", decide: mk(ration.NewSlidingLog, 1e9, time.Second)},
		{name: "buckets", decide: mk(ration.NewSlidingBuckets, 1e9, time.Minute)},
	}
	names := make([]string, 10000)
	for i := range names {
		names[i] = "user-" + strconv.Itoa(i)
	}
	for _, w := range []string{"hot", "even", "zipf"} {
		for _, callers := range []int{1, 64, 256} {
			res := map[string][]float64{}
			p99 := map[string][]float64{}
			p50 := map[string][]float64{}
			al := map[string][]float64{}
			for round := 0; round < 4; round++ {
				for _, i := range rand.Perm(len(cs)) {
					c := cs[i]
					var mu sync.Mutex
					var lats []time.Duration
					var g sync.WaitGroup
					var m0, m1 runtime.MemStats
					runtime.GC()
					runtime.ReadMemStats(&m0)
					t0 := time.Now()
					for k := range callers {
						g.Go(func() {
							rng := rand.New(rand.NewPCG(uint64(k), uint64(round)))
							z := rand.NewZipf(rng, 1.1, 1, 9999)
							lat := make([]time.Duration, 0, 100000)
							for n := 0; ; n++ {
								var sub string
								switch w {
								case "hot":
									sub = names[0]
								case "even":
									sub = names[rng.IntN(10000)]
								default:
									sub = names[z.Uint64()]
								}
								a := time.Now()
								if err := c.decide(sub); err != nil {
									t.Error(err)
									return
								}
								lat = append(lat, time.Since(a))
								if a.Sub(t0) > 400*time.Millisecond {
									break
								}
							}
							mu.Lock()
							lats = append(lats, lat...)
							mu.Unlock()
						})
					}
					g.Wait()
					el := time.Since(t0)
					runtime.ReadMemStats(&m1)
					if round > 0 {
						slices.Sort(lats)
						res[c.name] = append(res[c.name], float64(len(lats))/el.Seconds())
						p99[c.name] = append(p99[c.name], float64(lats[len(lats)*99/100])/1e3)
						p50[c.name] = append(p50[c.name], float64(lats[len(lats)/2])/1e3)
						al[c.name] = append(al[c.name], float64(m1.Mallocs-m0.Mallocs)/float64(len(lats)))
					}
				}
			}
			for _, c := range cs {
				fmt.Printf("%-5s %4d %-11s %9.0f/s  %6.2fx  p50 %7.1f p99 %8.1f (%.2f)  allocs %.2f\n", w, callers, c.name, median(res[c.name]), median(res[c.name])/median(res["redis_rate"]), median(p50[c.name]), median(p99[c.name]), median(p99[c.name])/median(p99["redis_rate"]), median(al[c.name]))
			}
		}
	}
}
