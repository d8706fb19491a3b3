package middleware

import "github.com/rationgo/ration"

// Unavailable tells the refusal of ration.FailClosed, which has no limit, from one by a limit:
// FailLocal's ring, or a cost that FailOpen can't let through.
func Unavailable(d *ration.Decision) bool {
	return d.Degraded && !d.Allowed && d.Limit == ration.Limit{}
}

// Refusing are the states of the limits that refuse, at least one.
func Refusing(d *ration.Decision) []ration.LimitState {
	var states []ration.LimitState
	for i := range d.Limits {
		if d.Limits[i].RetryAfter > 0 {
			states = append(states, d.Limits[i])
		}
	}
	if states == nil {
		states = []ration.LimitState{{Limit: d.Limit, Remaining: d.Remaining, RetryAfter: d.RetryAfter, ResetAfter: d.ResetAfter}}
	}
	return states
}
