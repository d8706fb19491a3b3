package model

import "github.com/rationgo/ration"

// Leased is a block of units lent to an instance: it may use them for Term µs from now on, up
// to End, and they are counted as used at End.
type Leased struct{ Units, Term, End int64 }

// Lease lends at most want units, and at most one part in share of what remains, for
// at most hold µs. The decision is that of an AllowUpTo that granted as much.
func (m *Model) Lease(now int64, key string, want, share, hold int64, limits []ration.Limit, slots int64) (Leased, ration.Decision) {
	m.ClockAt(now)
	parts := m.parts(key, limits, slots)
	lent := Leased{Term: hold}
	for _, p := range parts {
		if m.strategy != SlidingLog { // the last microsecond of the cell that's charged
			last := (p.usage.cell(now)+1)*p.usage.width() - 1
			lent.Term = min(lent.Term, last-now)
		}
	}
	if lent.Term >= 1 {
		lent.Units = min(want, remaining(now, parts)/share)
	}
	if lent.Units == 0 {
		return Leased{}, decide(now, 1, 0, false, parts)
	}
	lent.End = now + lent.Term
	for _, p := range parts {
		p.usage.lend(now, lent.End, lent.Units)
	}
	return lent, decide(now, 1, lent.Units, true, parts)
}

// GiveBack takes back up to n of the units that are counted as used at end.
func (m *Model) GiveBack(now int64, key string, n, end int64, limits []ration.Limit, slots int64) ration.Decision {
	m.ClockAt(now)
	parts := m.parts(key, limits, slots)
	granted := int64(0)
	for _, p := range parts {
		granted = max(granted, p.usage.giveBack(now, n, end))
	}
	return decide(now, 1, granted, remaining(now, parts) > 0, parts)
}

// Shed is a Refund that takes the oldest first.
func (m *Model) Shed(now int64, key string, n int64, limits []ration.Limit, slots int64) ration.Decision {
	m.ClockAt(now)
	parts := m.parts(key, limits, slots)
	granted := int64(0)
	for _, p := range parts {
		granted = max(granted, p.usage.refund(now, n, oldest))
	}
	return decide(now, 1, granted, remaining(now, parts) > 0, parts)
}

func oldest(a, b batch) bool { return a.at < b.at }

// lend charges units as used at end, which lies in the cell of now.
func (u *usage) lend(now, end, n int64) {
	b := batch{at: u.cell(now), units: n, seen: now}
	if u.strategy == SlidingLog {
		b.at = end
	}
	u.batches = append(u.batches, b)
}

// giveBack takes back up to n of the units that count in the cell that end lies in.
func (u *usage) giveBack(now, n, end int64) int64 {
	return u.takeBack(n, newest, func(b batch) bool { return b.at == end/u.width() && u.counts(b, now) })
}
