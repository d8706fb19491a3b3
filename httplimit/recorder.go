package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// recorder is a ResponseWriter that knows the status, and implies one where none is set.
// What else the writer below can do stays possible through wrap.
type recorder struct {
	http.ResponseWriter
	status  int // 0 until it's known
	implied int // of an answer without WriteHeader
}

// WriteHeader notes the final status; 1xx ones but 101 come before it.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// begin settles the status at the latest moment. 200 needs no saying: the writer below implies it.
func (w *recorder) begin() {
	if w.status != 0 {
		return
	}
	w.status = w.implied
	if w.implied != http.StatusOK {
		w.ResponseWriter.WriteHeader(w.implied)
	}
}

func (w *recorder) Write(p []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(p)
}

// ReadFrom leaves copying to the writer below, which may send a file without reading it.
func (w *recorder) ReadFrom(src io.Reader) (int64, error) {
	w.begin()
	return io.Copy(w.ResponseWriter, src)
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// flushing is what http.Flusher and http.ResponseController ask for.
type flushing interface {
	http.Flusher
	FlushError() error
}

// wrap gives the recorder the methods that the writer below has, and no others: handlers ask
// by type assertion whether they can stream or hijack.
func (w *recorder) wrap() http.ResponseWriter {
	_, canFlush := w.ResponseWriter.(http.Flusher)
	_, canHijack := w.ResponseWriter.(http.Hijacker)
	switch {
	case canFlush && canHijack:
		return struct {
			*recorder
			flushing
			http.Hijacker
		}{w, flusher{w}, hijacker{w}}
	case canFlush:
		return struct {
			*recorder
			flushing
		}{w, flusher{w}}
	case canHijack:
		return struct {
			*recorder
			http.Hijacker
		}{w, hijacker{w}}
	}
	return w
}

type flusher struct{ w *recorder }

func (f flusher) Flush() { _ = f.FlushError() }

func (f flusher) FlushError() error {
	f.w.begin()
	return http.NewResponseController(f.w.ResponseWriter).Flush()
}

type hijacker struct{ w *recorder }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.w.ResponseWriter).Hijack()
	if err == nil && h.w.status == 0 {
		h.w.status = http.StatusSwitchingProtocols
	}
	return conn, rw, err
}
