// Package benchmarks measures ration beside its rivals, which are nobody's
// dependency that way. All contenders of a table take turns in one run on one
// Redis and the medians of several rounds are compared: ratios mean something
// on a busy machine, absolute times don't.
package benchmarks

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/benchmarks/internal/stats"
	"github.com/rationgo/ration/internal/redistest"
)

var (
	rounds = flag.Int("rounds", 1, "rounds of each measurement; the table has the medians")
	calls  = flag.Int("calls", 500, "calls a round")
)

const (
	subjects = 1000
	callers  = 64 // at once, in the parallel rounds
)

var ctx = context.Background()

// contender is one way to decide.
type contender struct {
	name   string
	decide func(subject string) error

	alone, parallel, server, allocs []float64
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// contenders are the strategies, the rival, and a script that does nothing.
func contenders(rdb *redis.Client) []*contender {
	store := must(ration.Open(rdb, ration.WithTimeout(10*time.Second)))
	of := func(newLimiter func(*ration.Store, ration.Policy) (ration.Limiter, error), window time.Duration) func(string) error {
		return allows(must(newLimiter(store, ration.Policy{Name: "bench", Limits: []ration.Limit{ration.Per(1_000_000_000, window)}})))
	}
	rival := redis_rate.NewLimiter(rdb)
	empty := redis.NewScript("return 1")
	jobs := must(ration.NewConcurrency(store, ration.ConcurrencyPolicy{Name: "jobs", Limit: 1_000_000_000}))
	return []*contender{
		{name: "redis_rate", decide: func(subject string) error {
			_, err := rival.Allow(ctx, subject, redis_rate.PerMinute(1_000_000_000))
			return err
		}},
		{name: "fixed window", decide: of(ration.NewFixedWindow, time.Minute)},
		{name: "sliding log", decide: of(ration.NewSlidingLog, time.Second)},
		{name: "compact log", decide: of(ration.NewCompactLog, time.Second)},
		{name: "sliding buckets", decide: of(ration.NewSlidingBuckets, time.Minute)},
		{name: "token bucket", decide: of(ration.NewTokenBucket, time.Minute)},
		{name: "three colours", decide: allows(must(ration.NewThreeColor(store, ration.ThreeColor{Name: "colors", Committed: ration.PerMinute(1_000_000_000)})))},
		{name: "token bucket and fixed window", decide: allows(must(ration.Combine(
			must(ration.NewTokenBucket(store, ration.Policy{Name: "a", Limits: []ration.Limit{ration.PerSecond(1_000_000_000)}})),
			must(ration.NewFixedWindow(store, ration.Policy{Name: "b", Limits: []ration.Limit{ration.PerDay(1_000_000_000)}})),
		)))},
		{name: "sliding counter", decide: of(ration.NewSlidingCounter, time.Minute)},
		{name: "a permit, got and released", decide: func(subject string) error {
			p, _, err := jobs.Acquire(ctx, subject, 1)
			p.Release()
			return err
		}},
		{name: "(empty script)", decide: func(subject string) error { return empty.Run(ctx, rdb, []string{subject}).Err() }},
	}
}

func allows(l ration.Limiter) func(string) error {
	return func(subject string) error {
		_, err := l.Allow(ctx, subject)
		return err
	}
}

func TestStrategies(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t, func(o *redis.Options) { o.PoolSize, o.ContextTimeoutEnabled = callers, true })
	all := contenders(rdb)
	names := make([]string, subjects)
	for i := range names {
		names[i] = "subject-" + strconv.Itoa(i)
	}
	for round := range *rounds + 1 { // the first only warms up
		for _, i := range rand.Perm(len(all)) {
			c := all[i]
			runtime.GC()
			alone, parallel, server, allocs := measure(t, rdb, c, names)
			if round > 0 {
				c.alone, c.parallel = append(c.alone, alone), append(c.parallel, parallel)
				c.server, c.allocs = append(c.server, server), append(c.allocs, allocs)
			}
		}
	}
	table("| strategy | alone | allocations | server time | against redis_rate | 64 callers |\n|---|---|---|---|---|---|\n")
	for _, c := range all {
		table("| %s | %.1f µs | %.0f | %.2f µs | %.2f× | %.1f µs a call |\n", c.name, stats.Median(c.alone)/1e3, stats.Median(c.allocs),
			stats.Median(c.server), stats.Ratio(c.server, all[0].server), stats.Median(c.parallel)/1e3)
	}
	table("\n%d rounds of %d calls over %d subjects. Against redis_rate: server time, median of the rounds' ratios.\n\n", *rounds, *calls, subjects)
}

func measure(t *testing.T, rdb *redis.Client, c *contender, names []string) (alone, parallel, server, allocs float64) {
	var before, after runtime.MemStats
	runs, micros := scripts(t, rdb)
	runtime.ReadMemStats(&before)
	began := time.Now()
	for i := range *calls {
		if err := c.decide(names[i%subjects]); err != nil {
			t.Fatal(c.name, err)
		}
	}
	alone = float64(time.Since(began)) / float64(*calls)
	runtime.ReadMemStats(&after)
	allocs = float64(after.Mallocs-before.Mallocs) / float64(*calls)
	runsAfter, microsAfter := scripts(t, rdb)
	server = (microsAfter - micros) / (runsAfter - runs)

	var next atomic.Int64
	var group sync.WaitGroup
	began = time.Now()
	for range callers {
		group.Go(func() {
			for i := next.Add(1); i <= int64(*calls); i = next.Add(1) {
				if err := c.decide(names[i%subjects]); err != nil {
					t.Error(c.name, err)
				}
			}
		})
	}
	group.Wait()
	parallel = float64(time.Since(began)) / float64(*calls)
	return alone, parallel, server, allocs
}

// scripts is how many EVALSHAs the server has run and the microseconds it took.
func scripts(t *testing.T, rdb *redis.Client) (runs, micros float64) {
	all, err := stats.Commands(ctx, rdb)
	if err != nil {
		t.Fatal(err)
	}
	return all["evalsha"].Calls, all["evalsha"].Micros
}

func table(format string, args ...any) { fmt.Printf(format, args...) }

// TestMemory prints what a subject takes in Redis.
func TestMemory(t *testing.T) {
	s := redistest.Start(t, redistest.WithClock(time.Unix(1_800_000_000, 0)))
	rdb := s.Client(t)
	store := must(ration.Open(rdb, ration.WithTimeout(10*time.Second)))
	policy := ration.Policy{Name: "memory", Limits: []ration.Limit{ration.PerMinute(1_000_000)}}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 0, ' ', 0)
	defer w.Flush()
	fmt.Fprintf(w, "| strategy | used | bytes |\n|---|---|---|\n")
	row := func(strategy, used string, l ration.Limiter, subject string, calls int, units int64, step time.Duration) {
		for range calls {
			must(l.AllowN(ctx, subject, units))
			s.Advance(step)
		}
		var bytes int64
		for _, key := range must(rdb.Keys(ctx, "*{"+subject+"}*").Result()) {
			bytes += must(rdb.MemoryUsage(ctx, key, 0).Result())
		}
		fmt.Fprintf(w, "| %s | %s | %d |\n", strategy, used, bytes)
	}
	fixed := must(ration.NewFixedWindow(store, policy))
	row("fixed window", "anything", fixed, "user-1", 1, 1, 0)
	logs := map[string]ration.Limiter{
		"sliding log": must(ration.NewSlidingLog(store, policy)), "compact log": must(ration.NewCompactLog(store, policy)),
	}
	for _, name := range []string{"sliding log", "compact log"} {
		log, subject := logs[name], strings.ReplaceAll(name, " ", "-")
		row(name, "1 unit", log, subject+"-1", 1, 1, time.Microsecond)
		row(name, "100 units, one a call", log, subject+"-2", 100, 1, time.Microsecond)
		row(name, "3,000 units, one a call", log, subject+"-3", 3000, 1, time.Microsecond)
		row(name, "10,000 units, one a call", log, subject+"-4", 10_000, 1, time.Microsecond)
		row(name, "10,000 units, one call", log, subject+"-5", 1, 10_000, time.Microsecond)
	}
	buckets := must(ration.NewSlidingBuckets(store, policy))
	row("sliding buckets", "one of 20 slots", buckets, "user-6", 1, 1, 0)
	row("sliding buckets", "all of 20 slots", buckets, "user-7", 21, 1, 3*time.Second)
	row("token bucket", "1 unit", must(ration.NewTokenBucket(store, policy)), "user-10", 1, 1, 0)
	row("token bucket", "after some charges", must(ration.NewTokenBucket(store, policy)), "user-11", 5, 7, time.Microsecond)
	counter := must(ration.NewSlidingCounter(store, policy))
	row("sliding counter", "1 unit", counter, "user-8", 1, 1, 0)
	row("sliding counter", "500,000 units in each of two windows", counter, "user-9", 2, 500_000, time.Minute)
}
