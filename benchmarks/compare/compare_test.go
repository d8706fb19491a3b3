package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/rationgo/ration/benchmarks/internal/stats"
)

// TestSmoke is the whole of it, very short.
func TestSmoke(t *testing.T) {
	rdb := client(t, 4)
	about, err := machine(t.Context(), rdb)
	if err != nil {
		t.Fatal(err)
	}
	p := plan{workloads: workloadNames, callers: []int{1, 4}, rounds: 2, limit: 20 * time.Millisecond}
	r, err := p.measure(t.Context(), rdb, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.cells() {
		for _, name := range r.limiters {
			checkRow(t, c, name, r.row(c, name))
		}
	}
	var out bytes.Buffer
	r.print(&out, about)
	const notHot = 4 // the cache and the failure rules
	if rows := strings.Count(out.String(), "\n| hot | "); rows != 2*(len(r.limiters)-notHot) {
		t.Errorf("%d rows for hot:\n%s", rows, &out)
	}
	file := filepath.Join(t.TempDir(), "chart.svg")
	if err := r.chart(file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(text, new(struct{})); err != nil || !bytes.Contains(text, []byte(fixed)) {
		t.Errorf("the chart: %v\n%s", err, text)
	}
}

func checkRow(t *testing.T, c cell, name string, m *row) {
	if m == nil {
		return
	}
	if m.perSecond <= 0 || m.p50 <= 0 || m.p99 < m.p50 || c.workload != outage && m.speed <= 0 {
		t.Fatalf("%v, %s: %+v", c, name, m)
	}
	least, most := 1e-9, 1.2 // of few calls on a busy machine a script sent twice is many
	switch {
	case c.workload == outage:
		least, most = 0, 0.001 // of the tiers' heartbeats
	case name == denied || name == leased || name == shared:
		least = 0
	case name == throttle:
		most = 100
	}
	if m.commands < least || m.commands > most || m.server < 0 {
		t.Errorf("%v, %s: %v commands a decision, %v µs", c, name, m.commands, m.server)
	}
}

func TestEndedContextStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := plan{workloads: workloadNames, callers: []int{1}, rounds: 1, limit: time.Hour}
	if _, err := p.measure(ctx, client(t, 1), io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestPercentile(t *testing.T) {
	h := hdrhistogram.New(1, math.MaxUint32, 3)
	for i := range 1000 {
		_ = h.RecordValue(int64(i+1) * 1000)
	}
	for p, want := range map[float64]float64{50: 500_000, 99: 990_000, 100: 1_000_000} {
		if got := percentile(h, p); math.Abs(got-want) > want/1000 {
			t.Errorf("percentile %v is %v, not about %v", p, got, want)
		}
	}
}

// Of the caller's calls two took 1 ms and one 3 ms, and one failed.
func TestCollect(t *testing.T) {
	b := newBench(nil)
	failure := errors.New("no luck")
	s, decisions, err := b.collect([]*caller{
		{latencies: []nanos{1e6, 1e6}, end: time.Second},
		{latencies: []nanos{3e6}, failed: 1, failure: failure, end: 2 * time.Second},
	})
	if err != nil || decisions != 3 || s.perSecond != 1.5 || s.failed != 0.25 || s.failure != failure {
		t.Errorf("got %+v, %v, %v", s, decisions, err)
	}
	if math.Abs(s.p50-1e6) > 1e3 || math.Abs(s.p99-3e6) > 3e3 {
		t.Errorf("p50 is %v, p99 %v", s.p50, s.p99)
	}
	if _, _, err = b.collect([]*caller{{latencies: []nanos{1}, failed: 1, failure: errRefused}}); !errors.Is(err, errRefused) {
		t.Errorf("a refused call: %v", err)
	}
	if _, _, err = b.collect([]*caller{{failed: 1, failure: failure}}); !errors.Is(err, failure) {
		t.Errorf("no call succeeded: %v", err)
	}
}

// A script run calls GET, too: ten of the fourteen are not the limiter's own.
func TestCost(t *testing.T) {
	of := func(calls, micros float64) stats.Command { return stats.Command{Calls: calls, Micros: micros} }
	before := map[string]stats.Command{"get": of(100, 100)}
	after := map[string]stats.Command{"get": of(114, 128), "eval": of(10, 50), "setex": of(10, 20), "info": of(1, 99)}
	e := entry{sends: []string{"get", "eval", "time"}, inner: []string{"get"}}
	if got, want := e.cost(before, after), of(14, 58); got != want {
		t.Errorf("the cost is %v, not %v", got, want)
	}
}

func TestWorkloads(t *testing.T) {
	share := map[string]float64{}
	for _, name := range workloadNames {
		w, err := newWorkload(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, subject := range w.order {
			if subject == 0 {
				share[name] += 1.0 / orderLen
			}
		}
	}
	if share["hot"] != 1 || share["even"] > 0.001 || share["zipf"] < 0.1 || share["zipf"] > 0.3 {
		t.Errorf("the first subject's shares are %v", share)
	}
	if _, err := newWorkload("cold"); err == nil {
		t.Error("there's a workload called cold")
	}
}

func TestGoals(t *testing.T) {
	r := &results{samples: map[cell]map[string][]sample{
		{"hot", 1}:  {redisRate: {{p50: 100}}, fixed: {{p50: 90}}},
		{"even", 1}: {redisRate: {{p50: 100}}, fixed: {{p50: 120}}},
	}}
	g := goal{workloads: workloadNames, callers: 1, limiter: fixed, value: p50, bound: 1.05}
	if v, ok := g.reached(r); !ok || v != 1.2 {
		t.Errorf("got %v, %v", v, ok)
	}
	g.callers = 2
	if v, ok := g.reached(r); ok {
		t.Errorf("got %v without a measurement", v)
	}
}

func TestCommandCleansUp(t *testing.T) {
	var c command
	var order []int
	c.Cleanup(func() { order = append(order, 1) })
	c.Cleanup(func() { order = append(order, 2) })
	err := c.do(func() error { c.Fatalf("no %s", "server"); return nil })
	if err == nil || err.Error() != "no server" {
		t.Errorf("got %v", err)
	}
	if len(order) != 2 || order[0] != 2 {
		t.Errorf("cleaned up in the order %v", order)
	}
}

func TestParse(t *testing.T) {
	full, err := parse(nil, io.Discard)
	if err != nil || full.rounds != 9 || len(full.callers) != 5 || full.chart != "chart.svg" || full.limiters != nil {
		t.Errorf("without flags: %+v, %v", full, err)
	}
	quick, err := parse([]string{"-quick", "-rounds", "5", "-callers", "8"}, io.Discard)
	if err != nil || quick.rounds != 5 || len(quick.callers) != 1 || quick.chart != "" {
		t.Errorf("-quick: %+v, %v", quick, err)
	}
	if _, err := parse([]string{"-callers", "0"}, io.Discard); err == nil {
		t.Error("no callers at all pass")
	}
}

// Of three calls one began in the window before, and so wasn't surely in this one.
func TestOver(t *testing.T) {
	w := tierWindow.Microseconds()
	u := use{before: []int64{w - 1}, after: []int64{w + 1}, end: time.UnixMicro(2 * w)}
	for i := range int64(tierUnits + 5) {
		u.before, u.after = append(u.before, w+i+2), append(u.after, w+i+3)
	}
	if got := u.over(fixed); got != 5 {
		t.Errorf("%d units over, not 5", got)
	}
	if got := u.over(log); got != 5+1 {
		t.Errorf("%d units over in any span, not 6", got)
	}
	if got := u.used(1); got < 1 || got > 1.01 {
		t.Errorf("%v of the limit used", got)
	}
}

func TestTiers(t *testing.T) {
	var out bytes.Buffer
	rows := []tier{{fixed, 2, "lease"}, {log, 2, "share"}, {fixed, 4, "FailLocal(4)"}}
	if err := printTiers(t.Context(), client(t, 4), rows, 1, &out); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), " | 0 | "); n != len(rows) {
		t.Errorf("not 0 over the limit in each row:\n%s", &out)
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567.8: "1,234,568"} {
		if got := thousands(v); got != want {
			t.Errorf("thousands(%v) is %s, not %s", v, got, want)
		}
	}
	if got := micros(12_345) + times(2) + times(25) + times(math.NaN()) + short(0.00123); got != "12.32.00×25.0×–0.0012" {
		t.Error(got)
	}
}
