package httplimit

import (
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/rationgo/ration"
)

// The fields' names in Go's canonical form.
const (
	fieldPolicy     = "Ratelimit-Policy"
	fieldLimits     = "Ratelimit"
	fieldRetryAfter = "Retry-After"
)

const (
	maxInteger = 999_999_999_999_999 // the largest Integer of a Structured Field
	maxMembers = 64                  // limits that are remembered
)

// member is what never changes in a limit's members of the two lists.
type member struct {
	name   string // as in the fields, for problem documents
	item   string // "login", quoted
	policy string // "login";q=5;w=60
}

// members remembers them, since making one by httpsfv costs more than all else here. A map is
// never changed once others can see it.
type members struct {
	known atomic.Pointer[map[ration.Limit]*member]
	mu    sync.Mutex // held by whoever puts a larger map in place
}

func (ms *members) of(l ration.Limit) *member {
	known := ms.known.Load()
	if known != nil {
		if m := (*known)[l]; m != nil {
			return m
		}
		if len(*known) >= maxMembers { // numbers of their own for everybody
			return newMember(l)
		}
	}
	m := newMember(l)
	ms.mu.Lock()
	defer ms.mu.Unlock()
	larger := map[ration.Limit]*member{l: m}
	if known = ms.known.Load(); known != nil {
		maps.Copy(larger, *known)
	}
	ms.known.Store(&larger)
	return m
}

func newMember(l ration.Limit) *member {
	name := printable(l.String())
	bare := httpsfv.NewItem(name)
	whole := httpsfv.NewItem(name)
	units, window := quota(l)
	whole.Params.Add("q", integer(units))
	whole.Params.Add("w", max(1, seconds(window)))
	return &member{name: name, item: marshal(bare), policy: marshal(whole)}
}

// quota is what a client can have in what time. A token bucket's is the Burst, in the time
// in which it comes back: Units in a Window would be more, or less, than ever remains.
func quota(l ration.Limit) (units int64, window time.Duration) {
	if l.Burst <= 0 || l.Units <= 0 {
		return l.Units, l.Window
	}
	fill := float64(l.Window) * float64(l.Burst) / float64(l.Units)
	return l.Burst, time.Duration(min(fill, float64(ration.MaxWindow)))
}

// marshal can't fail for a printable string and integers in range.
func marshal(i httpsfv.Item) string {
	s, _ := httpsfv.Marshal(i)
	return s
}

// printable keeps a name within what a String of a Structured Field can hold: other bytes are
// written as %XX, and so is then the percent sign.
func printable(name string) string {
	odd := func(r rune) bool { return r < ' ' || r > '~' }
	if strings.IndexFunc(name, odd) < 0 {
		return name
	}
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; odd(rune(c)) || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// setFields says where the limits stand, beside what an outer middleware has said of its own.
func (c *config) setFields(h http.Header, d *ration.Decision) {
	// FailOpen's numbers count nothing, and what ration.NewShadow let through shall hold nobody back.
	if c.headers == 0 || d.Source == ration.Failure || d.Shadowed {
		return
	}
	if c.headers&Draft11 != 0 {
		c.setLists(h, d)
	}
	if c.headers&(Draft06|XRateLimit) == 0 {
		return
	}
	s := deciding(d)
	if c.headers&Draft06 != 0 {
		setTriple(h, [3]string{"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"}, d, &s, seconds(effective(&s)))
	}
	if c.headers&XRateLimit != 0 {
		at := c.now().Add(effective(&s) + time.Second - 1) // cut to seconds that's rounded up
		setTriple(h, [3]string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}, d, &s, at.Unix())
	}
}

// setLists makes both values in one piece of memory, and their slices in another.
func (c *config) setLists(h http.Header, d *ration.Decision) {
	var buf [512]byte
	b := joinTo(buf[:0], h[fieldPolicy])
	if d.Limits == nil {
		s := deciding(d)
		m := c.members.of(s.Limit)
		b = append(b, m.policy...)
		cut := len(b)
		setBoth(h, appendLimit(joinTo(b, h[fieldLimits]), m, &s), cut)
		return
	}
	for i := range d.Limits {
		b = append(separate(b, i), c.members.of(d.Limits[i].Limit).policy...)
	}
	cut := len(b)
	b = joinTo(b, h[fieldLimits])
	for i := range d.Limits {
		b = appendLimit(separate(b, i), c.members.of(d.Limits[i].Limit), &d.Limits[i])
	}
	setBoth(h, b, cut)
}

func setBoth(h http.Header, b []byte, cut int) {
	both := string(b)
	values := []string{both[:cut], both[cut:]}
	h[fieldPolicy], h[fieldLimits] = values[0:1:1], values[1:2:2]
}

// joinTo writes what is there of a list already, ready for more members.
func joinTo(b []byte, values []string) []byte {
	for _, v := range values {
		if v != "" {
			b = append(append(b, v...), ", "...)
		}
	}
	return b
}

func separate(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ", "...)
	}
	return b
}

// appendLimit writes a member of RateLimit; an Integer of a Structured Field is plain digits.
func appendLimit(b []byte, m *member, s *ration.LimitState) []byte {
	b = append(append(b, m.item...), ";r="...)
	b = strconv.AppendInt(b, integer(s.Remaining), 10)
	b = append(b, ";t="...)
	return strconv.AppendInt(b, seconds(effective(s)), 10)
}

// setTriple says where one limit stands, unless an outer middleware's is tighter. names are
// of Limit, Remaining and Reset.
func setTriple(h http.Header, names [3]string, d *ration.Decision, s *ration.LimitState, reset int64) {
	if outer := h[names[1]]; d.Allowed && len(outer) > 0 {
		if n, err := strconv.ParseInt(outer[0], 10, 64); err == nil && n <= s.Remaining {
			return
		}
	}
	values := make([]string, 3)
	units, _ := quota(s.Limit)
	for i, n := range [3]int64{units, max(0, s.Remaining), reset} {
		values[i] = strconv.FormatInt(n, 10)
		h[names[i]] = values[i : i+1 : i+1]
	}
}

// deciding is the state of the limit that decided. Those of two strategies may be equal, so its numbers count, too.
func deciding(d *ration.Decision) ration.LimitState {
	for i := range d.Limits {
		s := &d.Limits[i]
		if s.Limit == d.Limit && s.RetryAfter == d.RetryAfter && (!d.Allowed || s.Remaining == d.Remaining) {
			return *s
		}
	}
	return ration.LimitState{Limit: d.Limit, Remaining: d.Remaining, RetryAfter: d.RetryAfter, ResetAfter: d.ResetAfter}
}

// effective is the time in which no more than Remaining can be counted on, kept within 0 to
// the quota's window whatever the limiter says.
func effective(s *ration.LimitState) time.Duration {
	t := s.ResetAfter
	if s.RetryAfter > 0 && s.RetryAfter != ration.Never {
		t = s.RetryAfter
	}
	_, window := quota(s.Limit)
	return max(0, min(t, window))
}

// seconds rounds up, so that who waits as long as told isn't early.
func seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}

func integer(n int64) int64 { return max(0, min(n, maxInteger)) }
