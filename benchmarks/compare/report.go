package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

const notes = `
%d rounds of %v each, in which the limiters take turns in an order drawn anew; medians. The ratios to redis_rate are
medians of each round's ratio. The limits admit every call under hot, even and zipf; one that fails is no decision. Allocations are the whole
process's, per decision; the subjects and the room for the latencies are made beforehand. Server time is what Redis
counts for a limiter's commands, the network left out, per decision, like the commands. The subjects are drawn at
random from 10,000: hot is always the same one, even all equally often, zipf with exponent 1.1. Windows are a minute,
ration log's and ration compact's a second. ration alone is the fixed window WithoutBatching, ration lease and ration share are the two tiers over the
fixed window; ration's timeout is 10 s. Under refused no call is admitted, for one subject whose limit of 1 a day is used up. Under
outage nothing listens where Redis should be, and ration's failure rules decide.
`

// print writes the table, what belongs to it, and the goals.
func (r *results) print(w io.Writer, machine string) {
	fmt.Fprintf(w, "%s\n\n", machine)
	fmt.Fprintln(w, "| workload | callers | limiter | decisions/s | p50 µs | p99 µs | allocations | server µs | commands | decisions/s to redis_rate's | p99 to redis_rate's |")
	fmt.Fprintln(w, "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, c := range r.cells() {
		for _, name := range r.limiters {
			m := r.row(c, name)
			if m == nil {
				continue
			}
			fmt.Fprintf(w, "| %s | %d | %s | %s | %s | %s | %.1f | %.2f | %s | %s | %s |\n", c.workload, c.callers, name,
				thousands(m.perSecond), micros(m.p50), micros(m.p99), m.allocs, m.server, short(m.commands), times(m.speed), times(m.p99Ratio))
		}
	}
	fmt.Fprintf(w, notes, r.rounds, r.limit)
	for _, c := range r.cells() {
		for _, name := range r.limiters {
			if m := r.row(c, name); m != nil && m.failure != nil {
				fmt.Fprintf(w, "\n%s, %s, %d callers: %.2g %% of the calls failed (%v).\n", name, c.workload, c.callers, 100*m.failed, m.failure)
			}
		}
	}
	r.printGoals(w)
}

func micros(nanos float64) string {
	if nanos < 100_000 {
		return fmt.Sprintf("%.1f", nanos/1e3)
	}
	return thousands(nanos / 1e3)
}

// thousands rounds and puts a comma before each three digits.
func thousands(v float64) string {
	digits := strconv.FormatFloat(v, 'f', 0, 64)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

func short(v float64) string {
	if v < 0.1 {
		return fmt.Sprintf("%.4f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func times(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case v < 10:
		return fmt.Sprintf("%.2f×", v)
	}
	return fmt.Sprintf("%.1f×", v)
}
