package benchmarks

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/benchmarks/internal/stats"
	"github.com/rationgo/ration/internal/redistest"
)

// logCase is a log as a call finds it: so many live entries of a unit each in some subjects.
type logCase struct {
	live, subjects int
	steady         bool // in each call about one entry has just stopped to count
}

func (c logCase) String() string {
	if c.steady {
		return fmt.Sprintf("%d live, one ends a call", c.live)
	}
	return fmt.Sprintf("%d live", c.live)
}

// TestLogs prints the server time of one caller's call on a filled log, of both logs in turns.
func TestLogs(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t, func(o *redis.Options) { o.PoolSize, o.ContextTimeoutEnabled = callers, true })
	store := must(ration.Open(rdb, ration.WithTimeout(10*time.Second)))
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 0, ' ', 0)
	defer w.Flush()
	fmt.Fprintf(w, "| log | sliding log | compact log | ratio |\n|---|---|---|---|\n")
	for _, c := range []logCase{
		{live: 1, subjects: 500}, {live: 5, subjects: 500}, {live: 100, subjects: 200}, {live: 3000, subjects: 10},
		{live: 100, steady: true}, {live: 3000, steady: true},
	} {
		sliding, compact := c.measure(t, rdb, store)
		fmt.Fprintf(w, "| %v | %.2f µs | %.2f µs | %.2f |\n", c, stats.Median(sliding), stats.Median(compact), stats.Median(compact)/stats.Median(sliding))
	}
}

// measure gives the microseconds of a call in each round.
func (c logCase) measure(t *testing.T, rdb *redis.Client, store *ration.Store) (sliding, compact []float64) {
	window := time.Hour
	if c.steady { // a lone caller's pace here, about
		window = time.Duration(c.live) * 120 * time.Microsecond
	}
	policy := ration.Policy{Name: strconv.Itoa(rand.Int()), Limits: []ration.Limit{ration.Per(1_000_000, window)}}
	logs := []ration.Limiter{must(ration.NewSlidingLog(store, policy)), must(ration.NewCompactLog(store, policy))}
	for round := range 2 * *rounds {
		for _, i := range rand.Perm(len(logs)) {
			runtime.GC()
			one := c.round(t, rdb, logs[i], "s"+strconv.Itoa(round)+"-")
			if i == 0 {
				sliding = append(sliding, one)
			} else {
				compact = append(compact, one)
			}
		}
	}
	return sliding, compact
}

// round fills the logs of new subjects and then calls each a few times.
func (c logCase) round(t *testing.T, rdb *redis.Client, l ration.Limiter, prefix string) float64 {
	names := make([]string, max(1, c.subjects))
	var group sync.WaitGroup
	for i := range names {
		names[i] = prefix + strconv.Itoa(i)
		group.Go(func() {
			for range c.live {
				must(l.Allow(ctx, names[i]))
			}
		})
	}
	group.Wait()
	times := *calls / len(names)
	if !c.steady {
		times = max(1, min(times, c.live/10))
	}
	runs, micros := scripts(t, rdb)
	for range times {
		for _, name := range names {
			must(l.Allow(ctx, name))
		}
	}
	runsAfter, microsAfter := scripts(t, rdb)
	for _, name := range names {
		_ = l.Reset(ctx, name)
	}
	return (microsAfter - micros) / (runsAfter - runs)
}
