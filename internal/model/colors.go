package model

import (
	"math/big"
	"time"

	"github.com/rationgo/ration"
)

// Colors is the single rate three colour marker, as RFC 2697 tells it: tokens drop into the committed bucket, and into
// the excess bucket while that is full.
type Colors struct {
	Rate              *big.Rat // tokens a microsecond
	Committed, Excess int64

	at     int64 // µs
	tc, te *big.Rat
}

// NewColors makes one whose buckets are full.
func NewColors(now int64, p ration.ThreeColor) *Colors {
	return &Colors{
		Rate: big.NewRat(p.Committed.Units, windowMicros(p.Committed.Window)), Committed: Size(p.Committed), Excess: p.Excess,
		at: now, tc: rat(Size(p.Committed)), te: rat(p.Excess),
	}
}

// Move lets tokens drop until now, which must not be earlier than before.
func (c *Colors) Move(now int64) {
	c.tc.Add(c.tc, new(big.Rat).Mul(c.Rate, rat(now-c.at)))
	c.at = now
	if over := new(big.Rat).Sub(c.tc, rat(c.Committed)); over.Sign() > 0 {
		c.tc = rat(c.Committed)
		if c.te.Add(c.te, over).Cmp(rat(c.Excess)) > 0 {
			c.te = rat(c.Excess)
		}
	}
}

// Color is that of a call of n units.
func (c *Colors) Color(n int64) ration.Color {
	switch {
	case c.tc.Cmp(rat(n)) >= 0:
		return ration.Green
	case c.te.Cmp(rat(n)) >= 0:
		return ration.Yellow
	}
	return ration.Red
}

// Left is how many whole tokens are in the buckets.
func (c *Colors) Left() (committed, excess int64) { return floor(c.tc), floor(c.te) }

// Take takes n tokens for a call of some colour.
func (c *Colors) Take(n int64, of ration.Color) {
	switch of {
	case ration.Green:
		c.tc.Sub(c.tc, rat(n))
	case ration.Yellow:
		c.te.Sub(c.te, rat(n))
	}
}

// Refund puts n tokens back, into the excess bucket first. It says how many were out.
func (c *Colors) Refund(n int64) int64 {
	given := int64(0)
	for _, b := range []struct {
		left *big.Rat
		size int64
	}{{c.te, c.Excess}, {c.tc, c.Committed}} {
		back := min(n-given, b.size-floor(b.left))
		if b.left.Add(b.left, rat(back)).Cmp(rat(b.size)) > 0 {
			b.left.SetInt64(b.size)
		}
		given += back
	}
	return given
}

// RetryAfter is when a call of n units isn't Red any more.
func (c *Colors) RetryAfter(n int64) time.Duration {
	need := new(big.Rat)
	switch {
	case c.Color(n) != ration.Red:
		return 0
	case n <= c.Committed:
		need.Sub(rat(n), c.tc)
	case n <= c.Excess: // the committed bucket is filled first
		need.Sub(rat(c.Committed+n), c.tc)
		need.Sub(need, c.te)
	default:
		return ration.Never
	}
	return micros(ceil(need.Quo(need, c.Rate)))
}

// ResetAfter is when both are full.
func (c *Colors) ResetAfter() time.Duration {
	need := rat(c.Committed + c.Excess)
	need.Sub(need, c.tc).Sub(need, c.te)
	return micros(ceil(need.Quo(need, c.Rate)))
}

func floor(r *big.Rat) int64 { return new(big.Int).Div(r.Num(), r.Denom()).Int64() }
