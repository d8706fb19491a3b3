package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"time"

	"github.com/rationgo/ration"
)

// tally is what a strategy did. It hears how that differs from what another did.
type tally struct {
	ration.NopObserver
	strategy                    string
	admitted, refused           int
	unitsAdmitted, unitsRefused int64
	subjects                    []subject // by place in traffic.keys

	spared int // let through by a shadow

	other *strategy // nil: none
	kinds map[ration.CompareKind]int
}

// Compared counts the kind.
func (y *tally) Compared(e ration.CompareEvent) { y.kinds[e.Kind()]++ }

// Shadowed counts a request that was refused and let through all the same.
func (y *tally) Shadowed(ration.ShadowEvent) { y.spared++ }

// differing is the share of requests with two verdicts, in percent.
func (y *tally) differing() float64 {
	apart := y.kinds[ration.OnlyFirst] + y.kinds[ration.OnlySecond]
	return 100 * float64(apart) / float64(max(1, y.admitted+y.refused))
}

// subject is what a strategy did to one subject.
type subject struct{ requests, refused int }

func newTally(strategy string, subjects int) *tally {
	return &tally{strategy: strategy, subjects: make([]subject, subjects), kinds: map[ration.CompareKind]int{}}
}

func (y *tally) add(r *request, d ration.Decision) {
	s := &y.subjects[r.key]
	s.requests++
	if d.Shadowed {
		s.refused++ // it would have been
	}
	if d.Allowed {
		y.admitted++
		y.unitsAdmitted = addUnits(y.unitsAdmitted, r.n)
		return
	}
	s.refused++
	y.refused++
	y.unitsRefused = addUnits(y.unitsRefused, r.n)
}

// addUnits adds and stops at the largest number.
func addUnits(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// refusedSubjects is the number of subjects refused at least once.
func (y *tally) refusedSubjects() int {
	n := 0
	for _, s := range y.subjects {
		if s.refused > 0 {
			n++
		}
	}
	return n
}

const maxWorst = 10

// worst gives the places of the subjects refused most often by any of the
// tallies, ten at most; of equals the smaller key goes first.
func worst(t *traffic, tallies []*tally) []int {
	most := make([]int, len(t.keys))
	var places []int
	for place := range t.keys {
		for _, y := range tallies {
			most[place] = max(most[place], y.subjects[place].refused)
		}
		if most[place] > 0 {
			places = append(places, place)
		}
	}
	slices.SortFunc(places, func(a, b int) int {
		return cmp.Or(cmp.Compare(most[b], most[a]), cmp.Compare(t.keys[a], t.keys[b]))
	})
	return places[:min(len(places), maxWorst)]
}

// decisionFile is the file of -decisions. A nil one takes everything and
// writes nothing.
type decisionFile struct {
	file *os.File
	buf  *bufio.Writer
	enc  *json.Encoder
}

// decisionLine is one of its lines.
type decisionLine struct {
	Strategy   string `json:"strategy"`
	Time       string `json:"time"`
	Key        string `json:"key"`
	N          int64  `json:"n"`
	Allowed    bool   `json:"allowed"`
	Shadowed   bool   `json:"shadowed,omitempty"` // let through by -shadow
	Remaining  int64  `json:"remaining"`
	RetryAfter *int64 `json:"retry_after_us"` // null: never
	Line       int    `json:"line"`
}

func createDecisions(path string) (*decisionFile, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	buf := bufio.NewWriter(file)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	return &decisionFile{file: file, buf: buf, enc: enc}, nil
}

func (f *decisionFile) write(strategy string, t *traffic, i int, d ration.Decision) error {
	if f == nil {
		return nil
	}
	r := t.requests[i]
	line := decisionLine{
		Strategy:  strategy,
		Time:      clock(r.micros),
		Key:       t.keys[r.key],
		N:         r.n,
		Allowed:   d.Allowed,
		Shadowed:  d.Shadowed,
		Remaining: d.Remaining,
		Line:      r.line,
	}
	if d.RetryAfter != ration.Never {
		line.RetryAfter = new(d.RetryAfter.Microseconds())
	}
	return f.enc.Encode(line)
}

func (f *decisionFile) close() error {
	if f == nil {
		return nil
	}
	return errors.Join(f.buf.Flush(), f.file.Close())
}

// clock is a time as reports write it.
func clock(micros int64) string {
	return time.UnixMicro(micros).UTC().Format(time.RFC3339Nano)
}
