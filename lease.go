package ration

import (
	"context"
	"time"
)

// An instance may take a block of units out of Redis, a lease, and spend it from its own
// memory until the lease's term is over. The script counts them as used at the end of the
// term, so no limit is broken whenever in the term they are spent.

// leased is a block of units taken from Redis.
type leased struct {
	units int64
	term  time.Duration // they may be used for so long from the moment the script ran
	end   int64         // the end of the term, server time in microseconds: as used then they are counted
	left  Decision      // what Redis had left
}

// lending is what the items of a lease or a reservation say beside n, as in scripts/driver.lua.
type lending struct {
	hold, share int64 // opLease; opReserve has the longest wait as its hold
	end         int64 // opGiveBack; of opCancel the turn
}

// lease takes up to want units, no more than one part in share of what fits now, to
// use within hold or less. Of nothing the term is 0, too.
func (l *redisLimiter) lease(ctx context.Context, key string, limits []Limit, bound []boundLimit, want, share int64, hold time.Duration) (leased, error) {
	it, err := l.askAlone(ctx, opLease, key, bound, want, &lending{hold: luaMicros(hold), share: max(1, min(share, MaxUnits))})
	if err != nil {
		return leased{}, err
	}
	head, tail := it.reply[:len(it.reply)-2], it.reply[len(it.reply)-2:]
	got := leased{units: it.reply[0], term: micros(tail[0]), end: tail[1]}
	it.reply = head
	got.left.fill(Request{Op: OpAllowUpTo, Key: key, N: want}, limits, it, 0)
	return got, nil
}

// luaMicros is a term in microseconds as a script takes it: Lua need not count beyond MaxWindow.
func luaMicros(d time.Duration) int64 { return max(0, min(d, MaxWindow)).Microseconds() }

// giveBack gives back unused units of a lease with this end. It returns how many were
// still counted, by the limit that had most.
func (l *redisLimiter) giveBack(ctx context.Context, key string, bound []boundLimit, units, end int64) (int64, error) {
	it, err := l.askAlone(ctx, opGiveBack, key, bound, units, &lending{end: max(0, min(end, MaxUnits))})
	if err != nil {
		return 0, err
	}
	return it.reply[0], nil
}

// shed is a Refund that gives back the oldest units: the newest may be leased by
// somebody and not used yet.
func (l *redisLimiter) shed(ctx context.Context, key string, limits []Limit, bound []boundLimit, n int64, d *Decision) error {
	it, err := l.askAlone(ctx, opShed, key, bound, n, nil)
	if err == nil {
		d.fill(Request{Op: OpRefund, Key: key, N: n}, limits, it, 0)
	}
	return err
}

// askAlone brings a call to Redis and back as an item that no other call joins.
func (l *redisLimiter) askAlone(ctx context.Context, op byte, key string, bound []boundLimit, n int64, more *lending) (*item, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	it, _, err := l.store.lanes.of(key).ask(ctx, mergeKey{}, func() *item {
		it := l.item(op, max(0, min(n, MaxUnits)), key, bound)
		it.lending = more
		return it
	})
	return it, err
}
