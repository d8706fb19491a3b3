package httplimit

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dunglas/httpsfv"
)

// holds are the keys that an API's answers have held back, and until when. Those that have ended
// go when the map has doubled, so it's as large as the keys in use.
type holds struct {
	mu    sync.Mutex
	ends  map[string]time.Time
	sweep int // number of keys at which to look for ended ones
}

const minSweep = 64

// until holds a key back; a later end wins, since answers overtake each other.
func (h *holds) until(key string, end time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ends == nil {
		h.ends, h.sweep = make(map[string]time.Time), minSweep
	}
	if end.After(h.ends[key]) {
		h.ends[key] = end
	}
	if len(h.ends) < h.sweep {
		return
	}
	now := time.Now()
	for k, e := range h.ends {
		if !e.After(now) {
			delete(h.ends, k)
		}
	}
	h.sweep = max(minSweep, 2*len(h.ends))
}

// left is how long a key is still held back; 0 if it isn't.
func (h *holds) left(key string) time.Duration {
	h.mu.Lock()
	end, held := h.ends[key]
	h.mu.Unlock()
	if !held {
		return 0
	}
	return max(0, time.Until(end))
}

// wait sleeps until the key isn't held back, also if that's prolonged meanwhile.
func (h *holds) wait(ctx context.Context, key string) error {
	for {
		left := h.left(key)
		if left == 0 {
			return ctx.Err()
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if !inTime(ctx, left) {
			return &LimitedError{left}
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// heldBack is how long an answer asks not to be called again. Retry-After goes before RateLimit, and
// what can't be read says nothing.
func heldBack(resp *http.Response) time.Duration {
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		if d, ok := retryAfter(resp.Header); ok {
			return d
		}
	}
	if resp.Header.Get("Age") != "" { // from a cache: not the server's words of now
		return 0
	}
	return exhausted(resp.Header.Values(fieldLimits))
}

// retryAfter reads seconds or a date; a date counts from the answer's own Date, if there is one,
// so that the two clocks needn't agree.
func retryAfter(h http.Header) (time.Duration, bool) {
	v := strings.TrimSpace(h.Get(fieldRetryAfter))
	n, err := strconv.ParseUint(v, 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) {
		return secondsOf(n), true
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0, false
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return max(0, at.Sub(now)), true
}

func secondsOf(n uint64) time.Duration {
	if n > math.MaxInt64/uint64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Second
}

// exhausted is the longest t of the limits that have nothing left (r=0).
func exhausted(values []string) time.Duration {
	if len(values) == 0 {
		return 0
	}
	list, err := httpsfv.UnmarshalList(values)
	if err != nil {
		return 0
	}
	var longest time.Duration
	for _, m := range list {
		item, ok := m.(httpsfv.Item)
		if !ok {
			continue
		}
		r, hasR := item.Params.Get("r")
		t, hasT := item.Params.Get("t")
		if !hasR || !hasT || r != int64(0) {
			continue
		}
		if n, ok := t.(int64); ok && n > 0 {
			longest = max(longest, secondsOf(uint64(n)))
		}
	}
	return longest
}
