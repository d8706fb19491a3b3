package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

const (
	progressAfter = time.Second            // quick work shows none
	progressEvery = 200 * time.Millisecond // between two showings
)

// progress is a line on a terminal that says how far the work is. A nil one
// shows nothing.
type progress struct {
	w     io.Writer
	next  time.Time // of showing
	shown bool
}

// newProgress is for work that begins now. It's nil unless w is a terminal.
func newProgress(w io.Writer) *progress {
	file, ok := w.(*os.File)
	if !ok {
		return nil
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return &progress{w: w, next: time.Now().Add(progressAfter)}
}

// show says that done of total are done; a total of 0 isn't known.
func (p *progress) show(what string, done, total int) {
	if p == nil || done%64 != 0 {
		return
	}
	now := time.Now()
	if now.Before(p.next) {
		return
	}
	p.next, p.shown = now.Add(progressEvery), true
	fmt.Fprintf(p.w, "\r\x1b[K%s %d", what, done)
	if total > 0 {
		fmt.Fprintf(p.w, " of %d (%d%%)", total, int64(done)*100/int64(total))
	}
}

// clear takes the line away.
func (p *progress) clear() {
	if p != nil && p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}
