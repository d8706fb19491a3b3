package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/rationgo/ration/cmd/ration/internal/reqlog"
)

// request is one request of the log.
type request struct {
	micros int64 // since 1970
	n      int64
	line   int
	key    int32 // its subject's place in traffic.keys
}

// traffic is a log in the order of time.
type traffic struct {
	requests   []request
	keys       []string // the subjects
	unreadable int
	samples    []error // of the first unreadable lines
}

const maxSamples = 5

// readLog reads the whole log. An error is a file that can't be read, or with
// -strict a line.
func (s *settings) readLog(stdin io.Reader, bar *progress) (*traffic, error) {
	src := stdin
	if s.input != "" {
		file, err := os.Open(s.input)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		src = file
	}
	t := &traffic{}
	places := map[string]int32{}
	for log := reqlog.NewReader(src, s.parser); ; {
		e, err := log.Next()
		bar.show("reading line", log.Lines(), 0)
		var bad *reqlog.LineError
		switch {
		case err == io.EOF:
			t.sort()
			return t, nil
		case errors.As(err, &bad) && !s.strict:
			t.skip(bad)
			continue
		case err != nil:
			return nil, err
		}
		place, known := places[e.Key]
		if !known {
			place = int32(len(t.keys))
			key := strings.Clone(e.Key) // not the whole line
			places[key] = place
			t.keys = append(t.keys, key)
		}
		t.requests = append(t.requests, request{micros: e.Micros, n: e.N, line: e.Line, key: place})
	}
}

func (t *traffic) skip(bad *reqlog.LineError) {
	t.unreadable++
	if len(t.samples) < maxSamples {
		t.samples = append(t.samples, bad)
	}
}

// sort orders by time, and within one time by line.
func (t *traffic) sort() {
	slices.SortFunc(t.requests, func(a, b request) int {
		return cmp.Or(cmp.Compare(a.micros, b.micros), cmp.Compare(a.line, b.line))
	})
}

// complain shows the first lines that couldn't be read.
func (t *traffic) complain(w io.Writer) {
	for _, err := range t.samples {
		fmt.Fprintln(w, "ration simulate: unreadable", err)
	}
	if more := t.unreadable - len(t.samples); more > 0 {
		fmt.Fprintf(w, "ration simulate: and %d more unreadable lines\n", more)
	}
}
