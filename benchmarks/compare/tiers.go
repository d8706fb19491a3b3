package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/benchmarks/internal/stats"
)

// How much of a limit instances use under steady demand above it, and whether together they
// ever use more. All instances are in this process, each with a client and a store of its own.

const (
	tierUnits   = 10_000
	tierWindow  = time.Second
	tierCallers = 4 // an instance
)

// tier is one row of the table.
type tier struct {
	strategy  string
	instances int
	mode      string
}

// tiers are the rows, the shorter list for -quick.
func tiers(quick bool) []tier {
	var all []tier
	for _, strategy := range []string{fixed, log} {
		for _, n := range []int{1, 4, 16} {
			for _, mode := range []string{"single tier", "lease", "share"} {
				all = append(all, tier{strategy, n, mode})
			}
		}
		if quick {
			break
		}
	}
	return append(all, tier{fixed, 4, "FailLocal(4)"})
}

// limiter makes the limiter of one instance on a client of its own, and what ends it.
func (r tier) limiter(o *redis.Options, prefix string) (ration.Limiter, func(), error) {
	options := *o
	options.PoolSize = 8
	opts := []ration.Option{ration.WithPrefix(prefix), ration.WithTimeout(10 * time.Second)}
	if r.mode == "FailLocal(4)" {
		options.Addr, options.DialerRetries = "127.0.0.1:1", 1
		opts = append(opts, ration.WithOnFailure(ration.FailLocal(r.instances)))
	}
	rdb := redis.NewClient(&options)
	store, err := ration.Open(rdb, opts...)
	if err != nil {
		return nil, nil, err
	}
	end := func() { _, _ = store.Close(), rdb.Close() }
	make := map[string]newLimiter{fixed: ration.NewFixedWindow, log: ration.NewSlidingLog}[r.strategy]
	l, err := make(store, ration.Policy{Name: "tiers", Limits: []ration.Limit{ration.Per(tierUnits, tierWindow)}})
	if err == nil && r.mode == "lease" {
		l, err = ration.NewTwoTier(l)
	} else if err == nil && r.mode == "share" {
		l, err = ration.NewTwoTier(l, ration.WithShare(0.5), ration.WithInstances(r.instances))
	}
	return l, end, err
}

// use is what was admitted, each call between two instants, in microseconds since 1970, and how many calls there were.
type use struct {
	before, after []int64
	calls         int64
	end           time.Time
}

// demand asks for more than the limit until the time is over.
func (u *use) demand(l ration.Limiter, until time.Time) error {
	for {
		before := time.Now()
		if before.After(until) {
			return nil
		}
		d, err := l.Allow(context.Background(), "u")
		if err != nil {
			return err
		}
		u.calls++
		if d.Allowed {
			u.before = append(u.before, before.UnixMicro())
			u.after = append(u.after, time.Now().UnixMicro())
		} else {
			time.Sleep(min(d.RetryAfter, time.Millisecond)) // the demand stays above the limit
		}
	}
}

var tierRuns atomic.Int64

// run has all instances call for so many windows, and one to get going.
func (r tier) run(o *redis.Options, windows int) (*use, error) {
	prefix := fmt.Sprintf("tiers%d", tierRuns.Add(1))
	until := time.Now().Add(time.Duration(windows+2) * tierWindow).Truncate(tierWindow)
	uses := make([]use, r.instances*tierCallers)
	errs := make(chan error, len(uses))
	var all sync.WaitGroup
	for i := range r.instances {
		l, end, err := r.limiter(o, prefix)
		if err != nil {
			return nil, err
		}
		defer end()
		for c := range tierCallers {
			all.Go(func() { errs <- uses[i*tierCallers+c].demand(l, until) })
		}
	}
	all.Wait()
	close(errs)
	sum := &use{end: until}
	for err := range errs {
		if err != nil {
			return nil, err
		}
	}
	for _, u := range uses {
		sum.before, sum.after, sum.calls = append(sum.before, u.before...), append(sum.after, u.after...), sum.calls+u.calls
	}
	slices.Sort(sum.before)
	slices.Sort(sum.after)
	return sum, nil
}

// used is the share of the limit used in the last windows of the grid.
func (u *use) used(windows int) float64 {
	end := u.end.UnixMicro()
	n := below(u.after, end) - below(u.after, end-int64(windows)*tierWindow.Microseconds())
	return float64(n) / float64(windows) / tierUnits
}

// over is how many more units than the limit were surely used in a window: of calls that
// were wholly inside it.
func (u *use) over(strategy string) int64 {
	w, most := tierWindow.Microseconds(), 0
	for _, at := range u.after {
		from, to := at-w+1, at+1
		if strategy == fixed {
			from = at / w * w
			to = from + w
		}
		most = max(most, below(u.after, to)-below(u.before, from))
	}
	return int64(max(0, most-tierUnits))
}

func below(sorted []int64, at int64) int {
	n, _ := slices.BinarySearch(sorted, at)
	return n
}

// printTiers measures the rows and prints them.
func printTiers(ctx context.Context, rdb *redis.Client, rows []tier, windows int, w io.Writer) error {
	fmt.Fprintf(w, "\nHow much of %d units in %v the instances use under steady demand above it, in %d of these windows:\n\n", tierUnits, tierWindow, windows)
	fmt.Fprintln(w, "| strategy | instances | mode | used | over the limit | commands per decision |\n|---|--:|---|--:|--:|--:|")
	for _, r := range rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		before, err := stats.Commands(ctx, rdb)
		if err != nil {
			return err
		}
		u, err := r.run(rdb.Options(), windows)
		if err != nil {
			return fmt.Errorf("%+v: %w", r, err)
		}
		after, err := stats.Commands(ctx, rdb)
		if err != nil {
			return err
		}
		sent := (&entry{sends: script}).cost(before, after).Calls / float64(u.calls)
		fmt.Fprintf(w, "| %s | %d | %s | %.1f %% | %d | %s |\n", r.strategy, r.instances, r.mode, 100*u.used(windows), u.over(r.strategy), short(sent))
	}
	return nil
}
