package ration

import "fmt"

// Color tells how far beyond the committed rate a call is, see [NewThreeColor].
type Color int

// The colours of RFC 2697.
const (
	NoColor Color = iota // of limiters without colours
	Green                // within the committed rate and burst
	Yellow               // beyond, but within the excess burst: admitted, a service may do less for it
	Red                  // beyond both: refused
)

// String gives the colour in lower case, for logs and metrics.
func (c Color) String() string {
	switch c {
	case Green:
		return "green"
	case Yellow:
		return "yellow"
	case Red:
		return "red"
	}
	return "none"
}

// ThreeColor is what [NewThreeColor] limits.
type ThreeColor struct {
	// Name is as in [Policy].
	Name string
	// Committed is the rate that is always given, Units in a Window, and its Burst, 0 for Units.
	Committed Limit
	// Excess is how many units more can pass at once after a while of less use, 0 to MaxUnits
	// together with the Burst. They come back at the committed rate when the committed burst is whole. 0 means none, so nothing is ever Yellow.
	Excess int64
}

// NewThreeColor is the single rate three colour marker of RFC 2697, colour-blind: a call is Green and admitted if the
// committed bucket has all its units, else Yellow and admitted if the excess bucket has, else Red and refused.
// Decision.Color says which, so a service can degrade before it refuses. Of a Peek it's the colour of a call
// of one unit.
//
// It promises at most Burst + Excess + Units·t/Window in every span of length t, of which at most Burst + Units·t/Window
// are Green. A call takes its units from one of the buckets; so do the units of an AllowUpTo, from the committed one if
// that has any. Remaining is what both have: calls of one unit can use that up, one call of as many perhaps not.
// Decision.Limits has the committed bucket and the excess bucket, the latter as a Limit whose Burst is Excess.
// Refund gives back to the excess bucket first.
//
// Both buckets are charged together, in one script run; they take two strings of about 60 bytes a subject. The
// denied-key cache isn't used. While Redis is away the failure rule is applied to the committed bucket: what it admits is
// Green. [NewTwoTier] and [Combine] don't take it, and [Wait] lets waiters under it compete.
//
// It fails with ErrInvalidPolicy or ErrInvalidClient, and works with no Redis running.
func NewThreeColor(s *Store, p ThreeColor) (Limiter, error) {
	if p.Excess < 0 || p.Excess > MaxUnits {
		return nil, fmt.Errorf("%w %q: the Excess %d is not in 0 to 1<<53", ErrInvalidPolicy, p.Name, p.Excess)
	}
	l, err := makeRedisLimiter(s, Policy{Name: p.Name, Limits: []Limit{p.Committed}}, strategy{
		script:  colorScript,
		code:    func(Policy) string { return "tc1" },
		layout:  wholeWindow,
		refills: true,
		local:   bucketShare,
	})
	if err != nil {
		return nil, err
	}
	both := p.Committed
	if both.Units > 0 {
		both.Burst = both.size() + p.Excess
	}
	if err := both.validate(); err != nil {
		return nil, fmt.Errorf("%w %q: Burst and Excess together: %w", ErrInvalidPolicy, p.Name, err)
	}
	l.denied = nil // larger costs than a refused one may fit the other bucket
	l.policy.Limits = append(l.policy.Limits, both)
	l.code = "te1"
	l.fixed = append(l.fixed, l.bind(l.policy.Limits[1:])...)
	return l, nil
}

// fillColor makes d the answer of scripts/colors.lua.
func (d *Decision) fillColor(r Request, limits []Limit, it *item) {
	color, out := it.reply[len(it.reply)-2], it.reply[len(it.reply)-1]
	committed, both := limitState(limits[0], it.limitReply(0), 0), limitState(limits[1], it.limitReply(1), 0)
	excess := LimitState{Limit: limits[0], RetryAfter: both.RetryAfter, ResetAfter: both.ResetAfter}
	if excess.Limit.Burst = limits[1].size() - limits[0].size(); excess.Limit.Burst == 0 {
		excess.Limit.Units = 0 // a Burst of 0 would mean Units
	}
	excess.Remaining = max(0, excess.Limit.Burst-out)
	d.Color = Color(min(color, int64(Red)))
	d.Remaining = committed.Remaining + excess.Remaining
	d.Allowed = d.verdict(r)
	d.Limit, d.ResetAfter = limits[0], both.ResetAfter
	for _, s := range []*LimitState{&committed, &excess} {
		s.RetryAfter = d.retryAfter(r, s)
	}
	if d.Limits = []LimitState{committed, excess}; !d.Allowed {
		d.RetryAfter = min(committed.RetryAfter, excess.RetryAfter)
	}
}
