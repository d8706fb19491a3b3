package main

import (
	"fmt"
	"io"
	"math"
)

// goal is a number to reach.
type goal struct {
	what      string
	workloads []string // the worst of them counts
	callers   int
	limiter   string
	value     func(*row) float64
	bound     float64
	least     bool // the bound is the least, not the most
}

func speed(r *row) float64  { return r.speed }
func p50(r *row) float64    { return r.p50Ratio }
func p99(r *row) float64    { return r.p99Ratio }
func allocs(r *row) float64 { return r.allocs }
func sent(r *row) float64   { return r.commands }

var goals = func() []goal {
	hot, even, zipf, all := []string{"hot"}, []string{"even"}, []string{"zipf"}, []string{"hot", "even", "zipf"}
	var list []goal
	for _, name := range []string{fixed, log, compact, buckets} {
		list = append(list,
			goal{"decisions/s, hot, 256 callers", hot, 256, name, speed, 25, true},
			goal{"p99, hot, 256 callers", hot, 256, name, p99, 0.25, false},
			goal{"allocations, hot, 256 callers", hot, 256, name, allocs, 2, false},
			goal{"p50, one caller, the worst workload", all, 1, name, p50, 1.05, false})
	}
	return append(list,
		goal{"decisions/s, even, 256 callers", even, 256, fixed, speed, 4, true},
		goal{"decisions/s, even, 256 callers", even, 256, log, speed, 2.5, true},
		goal{"decisions/s, even, 256 callers", even, 256, compact, speed, 2.5, true},
		goal{"decisions/s, even, 256 callers", even, 256, buckets, speed, 2.5, true},
		goal{"decisions/s, zipf, 256 callers", zipf, 256, fixed, speed, 6, true},
		goal{"decisions/s, hot, 256 callers", hot, 256, leased, speed, 100, true},
		goal{"commands, hot, 256 callers", hot, 256, leased, sent, 0.001, false},
		goal{"decisions/s, refused, 256 callers", []string{refused}, 256, denied, speed, 100, true},
		goal{"commands, refused, 256 callers", []string{refused}, 256, denied, sent, 0.0001, false})
}()

// reached gives the value of the worst workload, false if none was measured.
func (g goal) reached(r *results) (worst float64, ok bool) {
	for _, w := range g.workloads {
		m := r.row(cell{w, g.callers}, g.limiter)
		if m == nil || math.IsNaN(g.value(m)) {
			continue
		}
		v := g.value(m)
		if !ok || (g.least && v < worst) || (!g.least && v > worst) {
			worst, ok = v, true
		}
	}
	return worst, ok
}

func (r *results) printGoals(w io.Writer) {
	fmt.Fprint(w, "\n| to redis_rate's, except allocations and commands | limiter | goal | reached | |\n|---|---|--:|--:|---|\n")
	for _, g := range goals {
		v, ok := g.reached(r)
		if !ok {
			continue
		}
		sign, verdict := "≤", "missed"
		if g.least {
			sign = "≥"
		}
		if v == g.bound || v > g.bound == g.least {
			verdict = "reached"
		}
		fmt.Fprintf(w, "| %s | %s | %s %g | %.3g | %s |\n", g.what, g.limiter, sign, g.bound, v, verdict)
	}
}
