package model

import (
	"math/big"

	"github.com/rationgo/ration"
)

// bucket is a token bucket: how many tokens are out, as a fraction.
type bucket struct {
	window int64        // µs
	limit  ration.Limit // as of the call under way
	out    *big.Rat     // at the time at
	at     int64        // µs
	ends   int64        // all are back then, at the rate there was when it was last charged
	seen   int64        // the latest clock
	paced  int64        // the Units by which the last turn was found
}

func newBucket(window int64) *bucket { return &bucket{window: window, out: new(big.Rat)} }

// now is the time that counts: a clock that was set back doesn't.
func (b *bucket) now(clock int64) int64 { return max(clock, b.at) }

// outAt is how many tokens are out.
func (b *bucket) outAt(clock int64) *big.Rat {
	now := b.now(clock)
	out := new(big.Rat)
	if clock >= b.ends {
		return out
	}
	back := new(big.Rat).Mul(rat(now-b.at), b.rate())
	if out.Sub(b.out, back); out.Sign() < 0 {
		out.SetInt64(0)
	}
	return out
}

// counted is outAt, rounded up.
func (b *bucket) counted(clock int64) int64 { return ceil(b.outAt(clock)) }

func (b *bucket) charge(clock, n int64) {
	if clock >= b.at {
		b.paced = 0
	}
	b.at, b.out = b.now(clock), new(big.Rat).Add(b.outAt(clock), rat(n))
	b.ends = b.at + ceil(b.time(b.out))
}

// refund puts tokens back, unless somebody waits for a turn.
func (b *bucket) refund(clock, n int64) int64 {
	if b.at > clock && b.paced > 0 {
		return 0
	}
	return b.takeBack(clock, n)
}

func (b *bucket) takeBack(clock, n int64) int64 {
	out, given := b.outAt(clock), min(n, b.counted(clock))
	if given == 0 {
		return 0
	}
	if out.Sub(out, rat(given)); out.Sign() <= 0 {
		b.at, b.out, b.ends = 0, new(big.Rat), 0 // nothing is left to remember
		return given
	}
	b.at, b.out = b.now(clock), out
	if b.limit.Units > 0 {
		b.ends = min(b.ends, b.at+ceil(b.time(out)))
	}
	return given
}

// Reserve charges n units at now that fit within longest (µs), under one limit of a TokenBucket, and
// says when they do, in µs from now.
func (m *Model) Reserve(now int64, key string, n int64, l ration.Limit, longest int64) (turn int64, ok bool) {
	b := m.parts(key, []ration.Limit{l}, 0)[0].usage.bucket
	if n > Size(l) || b.fits(now, n) > now+longest {
		return 0, false
	}
	turn = b.fits(now, n) - now
	b.charge(now, n)
	b.pace()
	return turn, true
}

// pace lets time go on to the last turn, if more is out than fits.
func (b *bucket) pace() {
	over := new(big.Rat).Sub(b.out, rat(Size(b.limit)))
	if over.Sign() <= 0 {
		return
	}
	turn := b.at + ceil(b.time(over))
	b.out.Sub(b.out, new(big.Rat).Mul(rat(turn-b.at), b.rate()))
	b.at, b.paced = turn, b.limit.Units
	if b.out.Sign() <= 0 { // all is back within that µs
		b.at, b.out, b.ends = 0, new(big.Rat), 0
	}
}

// Cancel gives n reserved units back if they are the last that were, and their turn isn't over.
func (m *Model) Cancel(now int64, key string, n int64, l ration.Limit, turn int64) int64 {
	b := m.parts(key, []ration.Limit{l}, 0)[0].usage.bucket
	if turn < now || b.at > now && b.paced > 0 && (b.at != turn || b.paced != l.Units) {
		return 0
	}
	if b.at > now && b.paced > 0 {
		b.out.Add(b.out, new(big.Rat).Mul(rat(b.at-now), b.rate()))
		b.at = now
	}
	given := b.takeBack(now, n)
	b.pace()
	return given
}

// fits is the first instant from clock on at which n more fit.
func (b *bucket) fits(clock, n int64) int64 {
	over := b.outAt(clock)
	over.Sub(over, rat(Size(b.limit)-n))
	if over.Sign() <= 0 {
		return clock
	}
	if b.limit.Units == 0 {
		return b.ends
	}
	pause := new(big.Rat).Add(b.time(over), rat(b.now(clock)))
	if pause.Cmp(rat(b.ends)) > 0 {
		return b.ends
	}
	return ceil(pause)
}

// rate is how many tokens come back in a µs.
func (b *bucket) rate() *big.Rat { return big.NewRat(b.limit.Units, b.window) }

// time is how long so many tokens take to come back, in µs.
func (b *bucket) time(tokens *big.Rat) *big.Rat {
	return new(big.Rat).Mul(tokens, big.NewRat(b.window, b.limit.Units))
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func ceil(r *big.Rat) int64 {
	q, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q.Int64()
}
