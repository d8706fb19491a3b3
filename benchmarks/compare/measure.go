package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration/benchmarks/internal/stats"
)

// maxDecisions is the most in one measurement, shared evenly by the callers.
const maxDecisions = 4_000_000

// sample is one measurement: of one limiter, under one workload, in one round.
type sample struct {
	perSecond, p50, p99      float64 // times in nanoseconds
	allocs, server, commands float64 // per decision; server in microseconds
	failed                   float64 // part of all calls
	failure                  error   // of one of them
}

// bench measures. Whatever it needs while it does is made beforehand.
type bench struct {
	rdb       *redis.Client
	names     []string
	latencies []nanos // the callers' shares, one after the other
	histogram *hdrhistogram.Histogram
}

// nanos are a latency of at most 4.2 seconds; a longer one counts as this.
// Latencies are noted one after the other and sorted in later: a histogram
// a caller would be many times the memory, and thrash the processor's caches.
type nanos uint32

func newBench(rdb *redis.Client) *bench {
	b := &bench{rdb: rdb, names: names(), latencies: make([]nanos, maxDecisions),
		histogram: hdrhistogram.New(1, math.MaxUint32, 3)}
	for i := range b.latencies {
		b.latencies[i] = 1 // so that the kernel gives the memory now
	}
	return b
}

// caller is one goroutine and its notes.
type caller struct {
	place     int
	latencies []nanos // of admitted calls
	failed    int
	failure   error // of one of them
	end       time.Duration
}

// drive is the work of all callers in one measurement.
type drive struct {
	decide
	workload
	names  []string
	round  int
	limit  time.Duration
	start  time.Time
	ready  sync.WaitGroup
	gate   chan struct{}
	finish sync.WaitGroup
}

// measure has callers call e at once and over again until limit has passed.
func (b *bench) measure(ctx context.Context, e *entry, w workload, callers, round int, limit time.Duration) (sample, error) {
	d := &drive{decide: e.under(w.name), workload: w, names: b.names, round: round, limit: limit, gate: make(chan struct{})}
	all, quota := make([]*caller, callers), maxDecisions/callers
	for i := range all {
		c := &caller{place: i, latencies: b.latencies[i*quota : i*quota : (i+1)*quota]}
		all[i] = c
		d.ready.Add(1)
		d.finish.Go(func() { c.run(d) })
	}
	runtime.GC()
	before, err := stats.Commands(ctx, b.rdb)
	d.ready.Wait()
	var memBefore, memAfter runtime.MemStats
	runtime.ReadMemStats(&memBefore)
	d.start = time.Now()
	close(d.gate)
	d.finish.Wait()
	runtime.ReadMemStats(&memAfter)
	after, errAfter := stats.Commands(ctx, b.rdb)
	if err := errors.Join(err, errAfter); err != nil {
		return sample{}, err
	}
	s, decisions, err := b.collect(all)
	if err != nil {
		return s, fmt.Errorf("%s, %s, %d callers: %w", e.name, w.name, callers, err)
	}
	s.allocs = float64(memAfter.Mallocs-memBefore.Mallocs) / decisions
	sent := e.cost(before, after)
	s.commands, s.server = sent.Calls/decisions, sent.Micros/decisions
	return s, nil
}

var errRefused = errors.New("a call got the other verdict than the workload is made for")

// run calls until the time is over or the notes are full. A call's latency is
// the time since the one before it was over, so the clock is read once a call.
func (c *caller) run(d *drive) {
	at := c.place*orderLen/1024 + d.round*7919 // others than in the round before
	d.ready.Done()
	<-d.gate
	last := time.Since(d.start)
	for last < d.limit && len(c.latencies) < cap(c.latencies) {
		admitted, err := d.decide(d.names[d.order[at%orderLen]])
		now := time.Since(d.start)
		switch {
		case err != nil:
			c.failed++
			c.failure = err
		case !admitted:
			c.failed++
			c.failure = errRefused
		default:
			c.latencies = append(c.latencies, nanos(min(now-last, math.MaxUint32)))
		}
		at++
		last = now
	}
	c.end = last
}

// collect makes one sample of the callers' notes. Failed calls are no decisions.
func (b *bench) collect(all []*caller) (s sample, decisions float64, err error) {
	b.histogram.Reset()
	failed, end := 0, time.Duration(0)
	for _, c := range all {
		for _, latency := range c.latencies {
			_ = b.histogram.RecordValue(int64(latency)) // it holds any
		}
		failed += c.failed
		end = max(end, c.end)
		if c.failure != nil {
			s.failure = c.failure
		}
	}
	decisions = float64(b.histogram.TotalCount())
	if errors.Is(s.failure, errRefused) || decisions == 0 {
		return s, 0, errors.Join(errors.New("no figures"), s.failure)
	}
	s.perSecond = decisions / end.Seconds()
	s.p50, s.p99 = percentile(b.histogram, 50), percentile(b.histogram, 99)
	s.failed = float64(failed) / (float64(failed) + decisions)
	return s, decisions, nil
}

func percentile(h *hdrhistogram.Histogram, p float64) float64 {
	return float64(h.ValueAtPercentile(p))
}

// cost is what the server counted of the entry's own commands between two looks.
func (e *entry) cost(before, after map[string]stats.Command) stats.Command {
	spent := func(name string) stats.Command {
		return stats.Command{Calls: after[name].Calls - before[name].Calls, Micros: after[name].Micros - before[name].Micros}
	}
	runs := 0.0
	for _, name := range script {
		runs += spent(name).Calls
	}
	var sum stats.Command
	for _, name := range e.sends {
		c := spent(name)
		if slices.Contains(e.inner, name) && c.Calls > 0 {
			own := max(0, c.Calls-runs)
			c = stats.Command{Calls: own, Micros: c.Micros * own / c.Calls}
		}
		sum.Calls += c.Calls
		sum.Micros += c.Micros
	}
	return sum
}
