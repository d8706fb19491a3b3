// Quickstart: three instances of a service share one limit, and three strategies
// meet the boundary burst, a full budget just before a window's turn and
// another just after.
//
//	go run ./examples/quickstart                          # an embedded miniredis
//	go run ./examples/quickstart -redis 127.0.0.1:6380    # a real Redis
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration"
)

const (
	instances = 3
	asks      = 5 // calls of each instance in a burst
	window    = 2 * time.Second
)

var limit = ration.Limit{Units: 10, Window: window}

func main() {
	redis.SetLogger(silent{}) // the errors come back to us, once is enough
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// run is main with its surroundings as arguments. It returns 0, 1 when Redis
// fails, 2 for a wrong flag.
func run(args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	addr := flags.String("redis", "", "HOST:PORT of a Redis; empty starts an embedded miniredis")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(out, "usage: quickstart [-redis HOST:PORT]   (without -redis an embedded miniredis is started)")
			return 0
		}
		fmt.Fprintf(errs, "quickstart: %v (usage: quickstart [-redis HOST:PORT])\n", err)
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(errs, "quickstart: unexpected argument %q (usage: quickstart [-redis HOST:PORT])\n", flags.Arg(0))
		return 2
	}
	if err := demo(*addr, out); err != nil {
		fmt.Fprintf(errs, "quickstart: %v\n", err)
		return 1
	}
	return 0
}

func demo(addr string, out io.Writer) error {
	server := "the Redis at " + addr
	if addr == "" {
		mini, err := miniredis.Run()
		if err != nil {
			return fmt.Errorf("starting miniredis: %w", err)
		}
		defer mini.Close()
		addr, server = mini.Addr(), "an embedded miniredis"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()

	// Every instance has a client and a store of its own, as separate
	// processes would.
	var stores []*ration.Store
	var clock *redis.Client
	for range instances {
		rdb := redis.NewClient(&redis.Options{Addr: addr, DialTimeout: 2 * time.Second, MaxRetries: -1})
		defer rdb.Close()
		store, err := ration.Open(rdb, ration.WithTimeout(time.Second))
		if err != nil {
			return err
		}
		defer store.Close()
		stores, clock = append(stores, store), rdb
	}
	if err := clock.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("no Redis at %s: %w", addr, err)
	}
	fmt.Fprintf(out, "%d instances share a limit of %d calls in %v on %s.\n", instances, limit.Units, window, server)
	fmt.Fprintf(out, "Each asks %d times just before a window's turn, and %d times just after.\n\n", asks, asks)
	rows, err := boundaryBurst(ctx, stores, clock)
	if err != nil {
		return err
	}
	return printTable(out, rows)
}

// row is what one strategy let through, instance by instance.
type row struct {
	name, promise string
	limiters      []ration.Limiter
	before, after [instances]int
}

func boundaryBurst(ctx context.Context, stores []*ration.Store, clock *redis.Client) ([]*row, error) {
	rows := []*row{
		{name: "fixed window", promise: "10 in each window of the clock: twice that across a turn"},
		{name: "sliding log", promise: "10 in any 2 s, exactly"},
		{name: "sliding buckets", promise: "10 in any 2 s, held up to 100 ms longer"},
	}
	constructors := []func(*ration.Store, ration.Policy) (ration.Limiter, error){
		ration.NewFixedWindow, ration.NewSlidingLog, ration.NewSlidingBuckets,
	}
	for i, r := range rows {
		for _, store := range stores {
			l, err := constructors[i](store, ration.Policy{Name: "quickstart", Limits: []ration.Limit{limit}})
			if err != nil {
				return nil, err
			}
			r.limiters = append(r.limiters, l)
		}
	}
	// A machine that is too busy to finish the first burst in time gets a
	// longer run-up.
	for _, runUp := range []time.Duration{300 * time.Millisecond, 800 * time.Millisecond} {
		done, err := aroundTurn(ctx, rows, clock, runUp)
		if done || err != nil {
			return rows, err
		}
	}
	return nil, errors.New("this machine is too busy to make 45 calls in 0.8 s")
}

// aroundTurn makes a burst on either side of a turn; false if the first took too long.
func aroundTurn(ctx context.Context, rows []*row, clock *redis.Client, runUp time.Duration) (bool, error) {
	// A subject of its own, so that two runs against one Redis don't meet.
	subject := fmt.Sprintf("visitor-%d-%d", os.Getpid(), time.Now().UnixNano())
	for _, r := range rows {
		r.before, r.after = [instances]int{}, [instances]int{}
	}
	turn, err := untilTurn(ctx, clock, -runUp)
	if err != nil {
		return false, err
	}
	if err := burst(ctx, rows, subject, func(r *row) *[instances]int { return &r.before }); err != nil {
		return false, err
	}
	if now, err := clock.Time(ctx).Result(); err != nil || !now.Before(turn) {
		return false, err
	}
	if err := until(ctx, clock, turn.Add(20*time.Millisecond)); err != nil {
		return false, err
	}
	return true, burst(ctx, rows, subject, func(r *row) *[instances]int { return &r.after })
}

// untilTurn waits for the instant that lies offset from the next turn but one
// of the server's clock at the latest, and gives that turn.
func untilTurn(ctx context.Context, clock *redis.Client, offset time.Duration) (time.Time, error) {
	now, err := clock.Time(ctx).Result()
	if err != nil {
		return time.Time{}, err
	}
	turn := now.Truncate(window).Add(window)
	if turn.Add(offset).Before(now) {
		turn = turn.Add(window)
	}
	return turn, until(ctx, clock, turn.Add(offset))
}

// until waits for an instant of the server's clock.
func until(ctx context.Context, clock *redis.Client, instant time.Time) error {
	for {
		now, err := clock.Time(ctx).Result()
		if err != nil {
			return err
		}
		left := instant.Sub(now)
		if left <= 0 {
			return nil
		}
		select {
		case <-time.After(left):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// burst lets every instance ask, all at once.
func burst(ctx context.Context, rows []*row, subject string, counts func(*row) *[instances]int) error {
	errs := make([]error, len(rows)*instances)
	var callers sync.WaitGroup
	for i, r := range rows {
		for j, l := range r.limiters {
			callers.Go(func() {
				for range asks {
					d, err := l.Allow(ctx, subject)
					if err != nil {
						errs[i*instances+j] = err
						return
					}
					if d.Allowed {
						counts(r)[j]++
					}
				}
			})
		}
	}
	callers.Wait()
	return errors.Join(errs...)
}

func printTable(out io.Writer, rows []*row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "strategy\tbefore the turn\tafter the turn\tlet through\tpromise")
	for _, r := range rows {
		before, after := total(r.before), total(r.after)
		fmt.Fprintf(w, "%s\t%d  (%s)\t%d  (%s)\t%d of %d\t%s\n", r.name, before, shares(r.before), after, shares(r.after),
			before+after, 2*instances*asks, r.promise)
	}
	fmt.Fprintln(w, "\nIn brackets: what each instance got.")
	return w.Flush()
}

func total(counts [instances]int) int {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return sum
}

func shares(counts [instances]int) string {
	return fmt.Sprintf("%d + %d + %d", counts[0], counts[1], counts[2])
}
