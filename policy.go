package ration

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"time"
)

// The bounds of a policy.
const (
	// MaxUnits is the largest Units of a Limit: above it Lua's numbers no
	// longer count by one.
	MaxUnits int64 = 1 << 53
	// MinWindow is the shortest Window of a Limit: Redis counts lifetimes in
	// milliseconds.
	MinWindow = time.Millisecond
	// MaxWindow is the longest Window of a Limit: 50 years of 365 days.
	MaxWindow = 50 * 365 * 24 * time.Hour
	// MaxLimits is the largest number of limits in a policy.
	MaxLimits = 8
	// MaxSlots is the largest number of slots a window is cut into.
	MaxSlots = 1000

	defaultSlots  = 20
	maxPolicyName = 64
)

// Limit is: at most Units in Window.
type Limit struct {
	// Name names the limit in headers and metrics; "" means a name made from
	// the numbers, such as "5/1m0s" (see String).
	Name string
	// Units is the number of units let through in a Window, 0 to MaxUnits. 0
	// refuses everything.
	Units int64
	// Window is MinWindow to MaxWindow. Windows are counted in whole
	// microseconds; a fraction of one is rounded up.
	Window time.Duration
	// Burst is how many units a token bucket ([NewTokenBucket]) holds, and so how many can pass at once, 0
	// to MaxUnits. 0 means Units. Other strategies have no burst: a policy with one is
	// ErrInvalidPolicy there.
	Burst int64
}

// size is the most that can pass at once.
func (l Limit) size() int64 {
	if l.Burst > 0 && l.Units > 0 {
		return l.Burst
	}
	return l.Units
}

// PerSecond is a limit of units in one second.
func PerSecond(units int64) Limit { return Per(units, time.Second) }

// PerMinute is a limit of units in one minute.
func PerMinute(units int64) Limit { return Per(units, time.Minute) }

// PerHour is a limit of units in one hour.
func PerHour(units int64) Limit { return Per(units, time.Hour) }

// PerDay is a limit of units in 24 hours.
func PerDay(units int64) Limit { return Per(units, 24*time.Hour) }

// Per is a limit of units in window.
func Per(units int64, window time.Duration) Limit {
	return Limit{Units: units, Window: window}
}

// String is the limit's Name, or its numbers if it has none: "5/1m0s", and with
// a Burst "5/1m0s+10".
func (l Limit) String() string {
	if l.Name != "" {
		return l.Name
	}
	s := strconv.FormatInt(l.Units, 10) + "/" + l.Window.String()
	if l.Burst != 0 {
		s += "+" + strconv.FormatInt(l.Burst, 10)
	}
	return s
}

func (l Limit) validate() error {
	switch {
	case l.Units < 0 || l.Units > MaxUnits:
		return fmt.Errorf("the Units %d are not in 0 to 1<<53", l.Units)
	case l.Window < MinWindow || l.Window > MaxWindow:
		return fmt.Errorf("the Window %v is not in %v to %v", l.Window, MinWindow, MaxWindow)
	case l.Burst < 0 || l.Burst > MaxUnits:
		return fmt.Errorf("the Burst %d is not in 0 to 1<<53", l.Burst)
	case l.Burst > 0 && l.fill() > MaxWindow.Microseconds():
		return fmt.Errorf("at %d in %v a Burst of %d takes longer than %v to come back", l.Units, l.Window, l.Burst, MaxWindow)
	}
	return nil
}

// fill is the time in which the whole size of a bucket comes back, in microseconds, rounded up.
func (l Limit) fill() int64 {
	if l.Units == 0 {
		return 0
	}
	return mulDivUp(l.size(), l.micros(), l.Units)
}

// mulDivUp is a·b/c, rounded up, or MaxInt64 if it's more.
func mulDivUp(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, rest := bits.Div64(hi, lo, uint64(c))
	if rest > 0 {
		q++
	}
	return int64(min(q, math.MaxInt64))
}

// micros is the window in whole microseconds, rounded up.
func (l Limit) micros() int64 {
	return int64((l.Window-1)/time.Microsecond) + 1
}

// Policy is a name and the limits that hold together for each subject: a call
// is charged under all of them or under none. A policy is copied by the
// constructors; changing it afterwards has no effect.
type Policy struct {
	// Name is 1 to 64 characters of A-Z a-z 0-9 _ . and -. It's part of the
	// Redis key: limiters of one name, strategy and window share their counts,
	// and others don't.
	Name string
	// Limits are 1 to MaxLimits limits of different windows (of two limits over one
	// window the smaller alone would decide). May be empty if LimitsFor is set.
	Limits []Limit
	// LimitsFor, if set, is asked on every call for this subject's own
	// numbers; no limits and no error mean the policy's Limits. It's called
	// concurrently, from the caller's goroutine, and its error is returned to the caller,
	// wrapped. New Units act at once on what is already counted; a new Window starts
	// a fresh count.
	LimitsFor func(ctx context.Context, key string) ([]Limit, error)
	// Slots is the number of slots a window is cut into by the sliding
	// buckets and the local ring: 1 to MaxSlots, 0 means 20. More slots forget
	// sooner (a unit is held for up to Window/Slots too long) and cost more memory.
	Slots int

	bursts bool // its limits may have a Burst
}

func (p Policy) validate() error {
	if err := validateName(p.Name); err != nil {
		return err
	}
	if p.Slots < 0 || p.Slots > MaxSlots {
		return fmt.Errorf("%w %q: Slots %d is not in 0 to %d", ErrInvalidPolicy, p.Name, p.Slots, MaxSlots)
	}
	if len(p.Limits) == 0 && p.LimitsFor != nil {
		return nil
	}
	return p.validateLimits(p.Limits)
}

func validateName(name string) error {
	if name == "" || len(name) > maxPolicyName {
		return fmt.Errorf("%w: Name has %d characters, not 1 to %d", ErrInvalidPolicy, len(name), maxPolicyName)
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '.', c == '-':
		default:
			return fmt.Errorf("%w: Name %q has a character other than A-Z a-z 0-9 _ . -", ErrInvalidPolicy, name)
		}
	}
	return nil
}

func (p Policy) validateLimits(limits []Limit) error {
	if len(limits) == 0 || len(limits) > MaxLimits {
		return fmt.Errorf("%w %q: %d limits, not 1 to %d", ErrInvalidPolicy, p.Name, len(limits), MaxLimits)
	}
	for i, l := range limits {
		if err := l.validate(); err != nil {
			return fmt.Errorf("%w %q: limit %d: %w", ErrInvalidPolicy, p.Name, i, err)
		}
		if l.Burst != 0 && !p.bursts {
			return fmt.Errorf("%w %q: limit %d: this strategy has no Burst", ErrInvalidPolicy, p.Name, i)
		}
		for j := range i {
			if limits[j].micros() == l.micros() {
				return fmt.Errorf("%w %q: limits %d and %d have the same Window %v", ErrInvalidPolicy, p.Name, j, i, l.Window)
			}
		}
	}
	return nil
}

// slots is the number of slots with the default put in.
func (p Policy) slots() int64 {
	if p.Slots == 0 {
		return defaultSlots
	}
	return int64(p.Slots)
}

// limitsFor gives the limits of one call. The error never names the subject;
// what LimitsFor put into its own error is its own affair.
func (p Policy) limitsFor(ctx context.Context, key string) ([]Limit, error) {
	if p.LimitsFor == nil {
		return p.Limits, nil
	}
	limits, err := p.LimitsFor(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("ration: limits of policy %q: %w", p.Name, err)
	}
	if len(limits) == 0 {
		limits = p.Limits
	}
	if err := p.validateLimits(limits); err != nil {
		return nil, err
	}
	return limits, nil
}
