// Package reqlog reads requests out of logs: access logs in common or combined
// format, and JSON lines. It takes nothing on trust: whatever a line holds,
// reading it gives an [Entry] or a [LineError] and never panics.
package reqlog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// Entry is one request.
type Entry struct {
	// Micros is the time in microseconds since 1970, 0 to the end of the year
	// 2199. What a log says beyond a microsecond is cut off.
	Micros int64
	// Key is the subject, never empty.
	Key string
	// N is the cost in units, 1 or more.
	N int64
	// Line is the number of its line, from 1.
	Line int
}

// LineError is a line that can't be read. Reading goes on after it.
type LineError struct {
	Line   int
	Reason string
	Text   string // the beginning of the line
}

// Error gives all of it in one line of printable text.
func (e *LineError) Error() string {
	return fmt.Sprintf("line %d: %s: %s", e.Line, e.Reason, e.Text)
}

const (
	maxLine   = 1 << 20 // a line of so many bytes or more is unreadable
	maxSample = 60      // bytes of a line in a LineError
)

// Reader reads a log line by line. Blank lines are passed over.
type Reader struct {
	src    *bufio.Reader
	parser Parser
	line   int
	buf    []byte
}

// NewReader makes a Reader of src whose lines are read by p.
func NewReader(src io.Reader, p Parser) *Reader {
	return &Reader{src: bufio.NewReaderSize(src, 1<<16), parser: p}
}

// Lines is the number of lines read so far.
func (r *Reader) Lines() int { return r.line }

// Next gives the next request. The error is io.EOF at the end, a *LineError
// for a line that can't be read, or else what reading src gave.
func (r *Reader) Next() (Entry, error) {
	for {
		raw, long, err := r.readLine()
		if err != nil {
			return Entry{}, err
		}
		r.line++
		if r.line == 1 {
			raw = bytes.TrimPrefix(raw, []byte("\ufeff"))
		}
		if long {
			return Entry{}, r.bad(raw, errors.New("the line has 1 MiB or more"))
		}
		raw = bytes.TrimSpace(raw)
		if len(raw) == 0 {
			continue
		}
		e, err := r.parser.Line(raw)
		if err != nil {
			return Entry{}, r.bad(raw, err)
		}
		e.Line = r.line
		return e, nil
	}
}

func (r *Reader) bad(raw []byte, err error) error {
	return &LineError{Line: r.line, Reason: err.Error(), Text: sample(string(raw[:min(len(raw), 2*maxSample)]))}
}

// sample is the beginning of text, quoted, so that it can do a terminal no harm.
func sample(text string) string {
	if len(text) <= maxSample {
		return strconv.Quote(text)
	}
	cut := maxSample
	for cut > maxSample-utf8.UTFMax && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strconv.Quote(text[:cut]) + "…"
}

// readLine reads up to the next newline. A long line is read to its end too,
// but only its beginning is kept.
func (r *Reader) readLine() (line []byte, long bool, err error) {
	r.buf = r.buf[:0]
	size := 0
	for {
		part, err := r.src.ReadSlice('\n')
		size += len(part)
		if size <= maxLine {
			r.buf = append(r.buf, part...)
		}
		switch {
		case err == nil, err == io.EOF && size > 0:
			return r.buf, len(bytes.TrimRight(part, "\r\n"))+size-len(part) >= maxLine, nil
		case err != bufio.ErrBufferFull:
			return nil, false, err
		}
	}
}
