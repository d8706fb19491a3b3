package ration

import (
	"context"
	"time"
)

// What the tests outside of the package need of a Permit's inside.

// PermitID is the name of a permit's lease in Redis.
func PermitID(p *Permit) string { return p.id }

// RenewNow renews a permit at once, and says whether it's held still.
func RenewNow(p *Permit) bool {
	p.mu.Lock()
	p.disarm()
	p.mu.Unlock()
	p.renew()
	return !p.Lost()
}

// StopRenewals has no timer of a permit fire any more.
func StopRenewals(p *Permit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.disarm()
}

// PermitTerm is how long a lease is surely alive.
func PermitTerm(c *Concurrency) time.Duration { return c.term() }

// AcquireAs sends an Acquire's item with an id.
func AcquireAs(c *Concurrency, key, id string, n int64) (granted, units int64, err error) {
	reply, err := c.ask(context.Background(), permitAcquire, key, id, n, c.policy.Limit)
	if err != nil {
		return 0, 0, err
	}
	return reply[0], reply[1], nil
}

// Permits is how many permits a Concurrency looks after.
func Permits(c *Concurrency) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held)
}

// Tallied is how many subjects a Concurrency counts in this process.
func Tallied(c *Concurrency) int {
	c.tally.mu.Lock()
	defer c.tally.mu.Unlock()
	return len(c.tally.units)
}

// DecodePermit is decodePermits for one item of n units.
func DecodePermit(n int64, reply []any) error {
	return decodePermits(reply, []*item{{script: permitScript, n: n}})
}
