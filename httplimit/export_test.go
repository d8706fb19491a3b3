package httplimit

import "time"

// WithNow puts in the clock of XRateLimit.
func WithNow(now func() time.Time) Option { return func(c *config) { c.now = now } }

// Held is the number of keys that a Transport remembers.
func Held(t *Transport) int { return len(t.holds.ends) }
