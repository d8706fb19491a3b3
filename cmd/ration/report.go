package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rationgo/ration"
)

// summary is the JSON object of one strategy.
type summary struct {
	Strategy        string         `json:"strategy"`
	Policy          string         `json:"policy"`
	Limits          []limitSummary `json:"limits"`
	By              string         `json:"by"`
	Requests        int            `json:"requests"`
	Admitted        int            `json:"admitted"`
	Refused         int            `json:"refused"`
	UnitsAdmitted   int64          `json:"units_admitted"`
	UnitsRefused    int64          `json:"units_refused"`
	Subjects        int            `json:"subjects"`
	RefusedSubjects int            `json:"refused_subjects"`
	Worst           []worstSummary `json:"worst"`
	Compare         *compareTotals `json:"compare,omitempty"`
	Shadowed        int            `json:"let_through_by_the_shadow,omitempty"`
	Unreadable      int            `json:"unreadable"`
	First           *string        `json:"first"` // null: no request
	Last            *string        `json:"last"`
}

type limitSummary struct {
	Name   string `json:"name"`
	Units  int64  `json:"units"`
	Window int64  `json:"window_us"`
	Burst  int64  `json:"burst,omitempty"`
}

type worstSummary struct {
	Key      string `json:"key"`
	Requests int    `json:"requests"`
	Refused  int    `json:"refused"`
}

// compareTotals say how a strategy's verdicts differ from another's.
type compareTotals struct {
	Strategy  string `json:"strategy"`
	Both      int    `json:"admitted_by_both"`
	Neither   int    `json:"refused_by_both"`
	OnlyThis  int    `json:"admitted_by_this_alone"`
	OnlyOther int    `json:"admitted_by_the_other_alone"`
}

func (y *tally) compared() *compareTotals {
	if y.other == nil {
		return nil
	}
	return &compareTotals{
		Strategy: y.other.name, Both: y.kinds[ration.BothAllowed], Neither: y.kinds[ration.BothRefused],
		OnlyThis: y.kinds[ration.OnlyFirst], OnlyOther: y.kinds[ration.OnlySecond],
	}
}

func printJSON(w io.Writer, s *settings, t *traffic, tallies []*tally) error {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	for _, y := range tallies {
		if err := enc.Encode(summarize(s, t, y)); err != nil {
			return err
		}
	}
	_, err := w.Write(out.Bytes())
	return err
}

func summarize(s *settings, t *traffic, y *tally) summary {
	sum := summary{
		Strategy:        y.strategy,
		Policy:          s.policy.Name,
		By:              s.parser.By.String(),
		Requests:        len(t.requests),
		Admitted:        y.admitted,
		Refused:         y.refused,
		UnitsAdmitted:   y.unitsAdmitted,
		UnitsRefused:    y.unitsRefused,
		Subjects:        len(t.keys),
		RefusedSubjects: y.refusedSubjects(),
		Worst:           []worstSummary{},
		Unreadable:      t.unreadable,
		Compare:         y.compared(),
		Shadowed:        y.spared,
	}
	for _, l := range s.policy.Limits {
		sum.Limits = append(sum.Limits, limitSummary{Name: l.String(), Units: l.Units, Window: l.Window.Microseconds(), Burst: l.Burst})
	}
	for _, place := range worst(t, []*tally{y}) {
		of := y.subjects[place]
		sum.Worst = append(sum.Worst, worstSummary{Key: t.keys[place], Requests: of.requests, Refused: of.refused})
	}
	if last := len(t.requests) - 1; last >= 0 {
		sum.First = new(clock(t.requests[0].micros))
		sum.Last = new(clock(t.requests[last].micros))
	}
	return sum
}

func printText(w io.Writer, s *settings, t *traffic, tallies []*tally) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "policy %s: %s by %s\n", s.policy.Name, limitsText(s.policy.Limits), s.parser.By)
	if last := len(t.requests) - 1; last >= 0 {
		fmt.Fprintf(&out, "log from %s to %s\n", clock(t.requests[0].micros), clock(t.requests[last].micros))
	}
	out.WriteByte('\n')
	writeTable(&out, s.totals(t, tallies))
	out.WriteByte('\n')
	if places := worst(t, tallies); len(places) > 0 {
		writeTable(&out, worstRows(t, tallies, places))
	} else {
		out.WriteString("no subject was refused\n")
	}
	_, err := w.Write(out.Bytes())
	return err
}

func limitsText(limits []ration.Limit) string {
	texts := make([]string, len(limits))
	for i, l := range limits {
		texts[i] = display(l.String())
	}
	return strings.Join(texts, " and ")
}

// totals are the rows of the upper table, a column a strategy.
func (s *settings) totals(t *traffic, tallies []*tally) [][]string {
	rows := [][]string{{"strategy"}}
	for _, y := range tallies {
		rows[0] = append(rows[0], y.strategy)
	}
	add := func(name string, value func(*tally) int64) {
		row := []string{name}
		for _, y := range tallies {
			row = append(row, strconv.FormatInt(value(y), 10))
		}
		rows = append(rows, row)
	}
	add("requests", func(*tally) int64 { return int64(len(t.requests)) })
	add("admitted", func(y *tally) int64 { return int64(y.admitted) })
	add("refused", func(y *tally) int64 { return int64(y.refused) })
	if t.hasCosts() {
		add("units admitted", func(y *tally) int64 { return y.unitsAdmitted })
		add("units refused", func(y *tally) int64 { return y.unitsRefused })
	}
	if s.shadow {
		add("let through by the shadow", func(y *tally) int64 { return int64(y.spared) })
	}
	add("subjects", func(*tally) int64 { return int64(len(t.keys)) })
	add("subjects refused at least once", func(y *tally) int64 { return int64(y.refusedSubjects()) })
	add("unreadable lines", func(*tally) int64 { return int64(t.unreadable) })
	if other := tallies[0].other; other != nil {
		add("admitted, also by "+other.name, func(y *tally) int64 { return int64(y.kinds[ration.BothAllowed]) })
		add("admitted, but not by "+other.name, func(y *tally) int64 { return int64(y.kinds[ration.OnlyFirst]) })
		add("refused, also by "+other.name, func(y *tally) int64 { return int64(y.kinds[ration.BothRefused]) })
		add("refused, but not by "+other.name, func(y *tally) int64 { return int64(y.kinds[ration.OnlySecond]) })
		row := []string{"verdicts that differ"}
		for _, y := range tallies {
			row = append(row, strconv.FormatFloat(y.differing(), 'f', 3, 64)+"%")
		}
		rows = append(rows, row)
	}
	return rows
}

// hasCosts says whether a request asks for more than one unit.
func (t *traffic) hasCosts() bool {
	for _, r := range t.requests {
		if r.n > 1 {
			return true
		}
	}
	return false
}

func worstRows(t *traffic, tallies []*tally, places []int) [][]string {
	rows := [][]string{{"refused most", "requests"}}
	for _, y := range tallies {
		if len(tallies) == 1 {
			rows[0] = append(rows[0], "refused")
		} else {
			rows[0] = append(rows[0], "refused by "+y.strategy)
		}
	}
	for _, place := range places {
		row := []string{display(t.keys[place]), strconv.Itoa(tallies[0].subjects[place].requests)}
		for _, y := range tallies {
			row = append(row, strconv.Itoa(y.subjects[place].refused))
		}
		rows = append(rows, row)
	}
	return rows
}

// writeTable aligns the first column left and the others right.
func writeTable(w *bytes.Buffer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				w.WriteString(cell + pad)
			} else {
				w.WriteString("  " + pad + cell)
			}
		}
		w.WriteByte('\n')
	}
}

// display is a key for a terminal: nothing in it but what prints, and not too long.
func display(key string) string {
	const longest = 60
	if strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) || !utf8.ValidString(key) {
		key = strconv.Quote(key)
	}
	if runes := []rune(key); len(runes) > longest {
		return string(runes[:longest-1]) + "…"
	}
	return key
}
