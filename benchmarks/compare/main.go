// Command compare measures ration beside other limiters on one Redis, which it
// starts and stops itself, and prints a table. It needs redis-server on the PATH.
//
//	go run ./compare          some fifteen minutes, and draws chart.svg
//	go run ./compare -quick   under two
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

// settings are the flags.
type settings struct {
	plan
	pool           int
	quick          bool
	tierWindows    int
	chart, profile string
}

func parse(args []string, stderr io.Writer) (settings, error) {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quick := flags.Bool("quick", false, "take fewer callers and rounds, and draw no chart unless told to")
	workloads := flags.String("workloads", strings.Join(workloadNames, ","), "the workloads")
	callers := flags.String("callers", "", "how many call at once (default 1,16,64,256,1024; -quick 1,64,256)")
	limiters := flags.String("limiters", "", "the limiters, by their names in the table (default all)")
	rounds := flags.Int("rounds", 0, "rounds of each measurement (default 9; -quick 3)")
	limit := flags.Duration("time", 0, "of one measurement (default 750ms; -quick 400ms)")
	pool := flags.Int("pool", 64, "the client's PoolSize")
	chart := flags.String("chart", "", "the SVG file to draw the chart into (default chart.svg)")
	windows := flags.Int("windows", -1, "windows in which the use of the limit by several instances is measured, 0 for none (default 3; -quick 1)")
	profile := flags.String("cpuprofile", "", "the file to write a CPU profile into")
	if err := flags.Parse(args); err != nil {
		return settings{}, err
	}
	s := settings{plan: plan{workloads: list(*workloads), limiters: list(*limiters), rounds: 9, limit: 750 * time.Millisecond},
		pool: *pool, quick: *quick, tierWindows: 3, chart: "chart.svg", profile: *profile}
	numbers := "1,16,64,256,1024"
	if *quick {
		s.rounds, s.limit, s.tierWindows, s.chart, numbers = 3, 200*time.Millisecond, 1, "", "1,64,256"
	}
	if *windows >= 0 {
		s.tierWindows = *windows
	}
	if *rounds > 0 {
		s.rounds = *rounds
	}
	if *limit > 0 {
		s.limit = *limit
	}
	if *chart != "" {
		s.chart = *chart
	}
	if *callers != "" {
		numbers = *callers
	}
	for _, text := range list(numbers) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 10_000 {
			return s, fmt.Errorf("-callers %s: %q isn't a number from 1 to 10000", numbers, text)
		}
		s.callers = append(s.callers, n)
	}
	return s, nil
}

// list splits at commas; nothing is no item.
func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if s.profile != "" {
		f, err := os.Create(s.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	var c command
	return c.do(func() error {
		rdb := client(&c, s.pool)
		about, err := machine(ctx, rdb)
		if err != nil {
			return err
		}
		r, err := s.measure(ctx, rdb, stderr)
		if err != nil {
			return err
		}
		r.print(stdout, about)
		if s.tierWindows > 0 {
			if err := printTiers(ctx, rdb, tiers(s.quick), s.tierWindows, stdout); err != nil {
				return err
			}
		}
		if s.chart == "" {
			return nil
		}
		return r.chart(s.chart)
	})
}
