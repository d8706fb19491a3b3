package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration/benchmarks/internal/stats"
)

// plan is what to measure.
type plan struct {
	workloads []string
	callers   []int
	limiters  []string // of none all
	rounds    int
	limit     time.Duration // of a measurement
}

// cell is what is measured at once, by turns: all limiters under one load.
type cell struct {
	workload string
	callers  int
}

// results has each limiter's samples in the order of the rounds.
type results struct {
	plan
	samples map[cell]map[string][]sample
}

func (p plan) cells() []cell {
	var all []cell
	for _, w := range p.workloads {
		for _, n := range p.callers {
			all = append(all, cell{w, n})
		}
	}
	return all
}

// measure carries out the plan. It stops between two measurements if ctx ends.
func (p plan) measure(ctx context.Context, rdb *redis.Client, progress io.Writer) (*results, error) {
	all, err := entries(rdb)
	if err != nil {
		return nil, err
	}
	if all, err = choose(all, p.limiters); err != nil {
		return nil, err
	}
	p.limiters = nil
	for _, e := range all {
		p.limiters = append(p.limiters, e.name)
	}
	b := newBench(rdb)
	r := &results{plan: p, samples: map[cell]map[string][]sample{}}
	for _, c := range p.cells() {
		began := time.Now()
		if r.samples[c], err = b.rounds(ctx, c, all, p); err != nil {
			return nil, err
		}
		fmt.Fprintf(progress, "%s, %d callers: %.1f s\n", c.workload, c.callers, time.Since(began).Seconds())
	}
	return r, nil
}

// rounds measures all entries under one load, in each round in another order.
// A short first round only makes connections, keys and caches warm.
func (b *bench) rounds(ctx context.Context, c cell, all []*entry, p plan) (map[string][]sample, error) {
	w, err := newWorkload(c.workload)
	if err != nil {
		return nil, err
	}
	samples := map[string][]sample{}
	for round := range p.rounds + 1 {
		limit := p.limit
		if round == 0 {
			limit /= 3
		}
		for _, i := range rand.Perm(len(all)) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			e := all[i]
			if e.under(w.name) == nil {
				continue
			}
			s, err := b.measure(ctx, e, w, c.callers, round, limit)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				samples[e.name] = append(samples[e.name], s)
			}
		}
	}
	return samples, nil
}

func choose(all []*entry, names []string) ([]*entry, error) {
	if len(names) == 0 {
		return all, nil
	}
	var chosen []*entry
	for _, name := range names {
		n := len(chosen)
		for _, e := range all {
			if e.name == name {
				chosen = append(chosen, e)
			}
		}
		if len(chosen) == n {
			return nil, fmt.Errorf("no limiter is called %q", name)
		}
	}
	return chosen, nil
}

// row is the medians of a limiter's rounds.
type row struct {
	sample                            // failure is one of any round
	speed, p50Ratio, p99Ratio float64 // to redis_rate, NaN without it
}

// row gives nil for what wasn't measured.
func (r *results) row(c cell, name string) *row {
	rounds := r.samples[c][name]
	if len(rounds) == 0 {
		return nil
	}
	field := func(of []sample, get func(*sample) float64) []float64 {
		values := make([]float64, len(of))
		for i := range of {
			values[i] = get(&of[i])
		}
		return values
	}
	var out row
	for _, s := range rounds {
		if s.failure != nil {
			out.failure = s.failure
		}
	}
	for _, f := range []func(*sample) *float64{
		func(s *sample) *float64 { return &s.perSecond },
		func(s *sample) *float64 { return &s.p50 },
		func(s *sample) *float64 { return &s.p99 },
		func(s *sample) *float64 { return &s.allocs },
		func(s *sample) *float64 { return &s.server },
		func(s *sample) *float64 { return &s.commands },
		func(s *sample) *float64 { return &s.failed },
	} {
		*f(&out.sample) = stats.Median(field(rounds, func(s *sample) float64 { return *f(s) }))
	}
	base := r.samples[c][redisRate]
	ratio := func(get func(*sample) float64) float64 {
		if len(base) == 0 {
			return math.NaN()
		}
		return stats.Ratio(field(rounds, get), field(base, get))
	}
	out.speed = ratio(func(s *sample) float64 { return s.perSecond })
	out.p50Ratio = ratio(func(s *sample) float64 { return s.p50 })
	out.p99Ratio = ratio(func(s *sample) float64 { return s.p99 })
	return &out
}
