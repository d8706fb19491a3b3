package rationtest

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/rationgo/ration"
)

func countsDown(x *exercise) {
	limit := ration.Limit{Name: "five", Units: 5, Window: time.Minute}
	l := x.limiter(limit)
	x.align(time.Minute)
	for want := int64(4); want >= 0; want-- {
		d := x.admitted(l.Allow(x.ctx, "u"))
		equal(x, "Granted", d.Granted, 1)
		equal(x, "Remaining", d.Remaining, want)
		equal(x, "Limit", d.Limit, limit)
		if d.Limits != nil {
			x.Fatalf("a policy of one limit answers with Limits %v", d.Limits)
		}
	}
	d := x.refused(l.Allow(x.ctx, "u"))
	equal(x, "Remaining", d.Remaining, 0)
	equal(x, "Limit", d.Limit, limit)
}

func retryAfterIsExact(x *exercise) {
	for _, window := range []time.Duration{7 * time.Second, time.Minute, 13 * time.Minute} {
		l := x.limiter(ration.Per(10, window))
		x.align(window)
		x.Advance((window / 7).Truncate(time.Millisecond))
		x.admitted(l.AllowN(x.ctx, "u", 6))
		x.Advance((window / 3).Truncate(time.Millisecond))
		x.admitted(l.AllowN(x.ctx, "u", x.answer(l.Peek(x.ctx, "u")).Remaining-1))
		d := x.refused(l.AllowN(x.ctx, "u", 2))
		x.Advance(d.RetryAfter - time.Millisecond)
		again := x.refused(l.AllowN(x.ctx, "u", 2))
		equal(x, "RetryAfter a millisecond before the end", again.RetryAfter, time.Millisecond)
		x.Advance(time.Millisecond)
		x.admitted(l.AllowN(x.ctx, "u", 2))
	}
}

func resetAfterIsExact(x *exercise) {
	l := x.limiter(ration.Per(10, time.Minute))
	x.align(time.Minute)
	equal(x, "ResetAfter of an unused subject", x.answer(l.Peek(x.ctx, "u")).ResetAfter, 0)
	x.admitted(l.AllowN(x.ctx, "u", 4))
	x.Advance(5 * time.Second)
	reset := x.admitted(l.AllowN(x.ctx, "u", 3)).ResetAfter
	if reset <= 0 {
		x.Fatalf("ResetAfter is %v with 7 units used", reset)
	}
	x.Advance(reset - time.Millisecond)
	d := x.answer(l.Peek(x.ctx, "u"))
	equal(x, "ResetAfter a millisecond before the end", d.ResetAfter, time.Millisecond)
	if d.Remaining == 10 {
		x.Fatal("the whole limit is there before ResetAfter")
	}
	x.Advance(time.Millisecond)
	x.remaining(l, "u", 10)
}

func refusedChargesNothing(x *exercise) {
	l := x.limiter(ration.Per(5, time.Minute))
	x.align(time.Minute)
	x.admitted(l.AllowN(x.ctx, "u", 3))
	for range 50 {
		d := x.refused(l.AllowN(x.ctx, "u", 4))
		equal(x, "Remaining", d.Remaining, 2)
	}
	x.admitted(l.AllowN(x.ctx, "u", 2))
	x.refused(l.Allow(x.ctx, "u"))
}

func costAboveLimitNever(x *exercise) {
	l := x.limiter(ration.Per(300, time.Minute))
	x.align(time.Minute)
	for _, n := range []int64{301, 1 << 53, 1<<53 + 1, math.MaxInt64} {
		d := x.refused(l.AllowN(x.ctx, "u", n))
		equal(x, "RetryAfter", d.RetryAfter, ration.Never)
		equal(x, "Remaining", d.Remaining, 300)
	}
	x.noKeys()
	equal(x, "Remaining", x.admitted(l.Allow(x.ctx, "u")).Remaining, 299)
}

func costOfWholeLimit(x *exercise) {
	l := x.limiter(ration.Per(300, time.Minute))
	x.align(time.Minute)
	d := x.admitted(l.AllowN(x.ctx, "u", 300))
	equal(x, "Granted", d.Granted, 300)
	equal(x, "Remaining", d.Remaining, 0)
	x.refused(l.Allow(x.ctx, "u"))
}

func allowUpTo(x *exercise) {
	l := x.limiter(ration.Per(10, time.Minute))
	x.align(time.Minute)
	equal(x, "Granted", x.admitted(l.AllowUpTo(x.ctx, "u", 7)).Granted, 7)
	d := x.admitted(l.AllowUpTo(x.ctx, "u", 7))
	equal(x, "Granted", d.Granted, 3)
	equal(x, "Remaining", d.Remaining, 0)
	d = x.refused(l.AllowUpTo(x.ctx, "u", 7))
	x.Advance(d.RetryAfter)
	x.admitted(l.AllowUpTo(x.ctx, "u", 7))
	equal(x, "Granted of more than the limit", x.admitted(l.AllowUpTo(x.ctx, "v", math.MaxInt64)).Granted, 10)
}

func peekLeavesNoTrace(x *exercise) {
	l := x.limiter(ration.Per(2, time.Minute))
	x.align(time.Minute)
	for range 20 {
		d := x.answer(l.Peek(x.ctx, "u"))
		equal(x, "Allowed", d.Allowed, true)
		equal(x, "Granted", d.Granted, 0)
		equal(x, "Remaining", d.Remaining, 2)
		equal(x, "Remaining of AllowN 0", x.answer(l.AllowN(x.ctx, "u", 0)).Remaining, 2)
		equal(x, "Remaining of AllowUpTo 0", x.answer(l.AllowUpTo(x.ctx, "u", 0)).Remaining, 2)
	}
	x.noKeys()
	x.admitted(l.AllowN(x.ctx, "u", 2))
	first := x.refused(l.Allow(x.ctx, "u"))
	for range 20 {
		d := x.answer(l.Peek(x.ctx, "u"))
		equal(x, "Allowed", d.Allowed, false)
		equal(x, "RetryAfter", d.RetryAfter, first.RetryAfter)
		equal(x, "ResetAfter", d.ResetAfter, first.ResetAfter)
	}
	x.Advance(first.RetryAfter)
	x.admitted(l.Allow(x.ctx, "u"))
}

// noKeys demands that the backend stores nothing.
func (x *exercise) noKeys() {
	x.Helper()
	if x.Keys == nil {
		return
	}
	if keys := x.Keys(); len(keys) > 0 {
		x.Fatalf("keys were left: %q", keys)
	}
}

func refund(x *exercise) {
	l := x.limiter(ration.Per(5, time.Minute))
	x.align(time.Minute)
	x.answer(l.Refund(x.ctx, "u", 3))
	x.noKeys()
	x.admitted(l.AllowN(x.ctx, "u", 2))
	x.Advance(time.Second)
	x.admitted(l.AllowN(x.ctx, "u", 3))
	x.refused(l.Allow(x.ctx, "u"))
	d := x.answer(l.Refund(x.ctx, "u", 4))
	equal(x, "Granted", d.Granted, 4)
	equal(x, "Remaining", d.Remaining, 4)
	equal(x, "Allowed", d.Allowed, true)
	x.admitted(l.AllowN(x.ctx, "u", 4))
	x.refused(l.Allow(x.ctx, "u"))
	equal(x, "Granted of more than was used", x.answer(l.Refund(x.ctx, "u", math.MaxInt64)).Granted, 5)
	x.noKeys()
	x.remaining(l, "u", 5)
}

func refundTooLate(x *exercise) {
	p := x.policy(ration.Per(2, time.Minute))
	l := x.of(p)
	x.align(time.Minute)
	x.admitted(l.AllowN(x.ctx, "u", 2))
	x.Advance(time.Minute + x.hold(p, time.Minute))
	for range 3 {
		d := x.answer(l.Refund(x.ctx, "u", 1))
		equal(x, "Granted", d.Granted, 0)
		equal(x, "Remaining", d.Remaining, 2)
	}
	x.admitted(l.AllowN(x.ctx, "u", 2))
	x.refused(l.Allow(x.ctx, "u"))
}

func reset(x *exercise) {
	l := x.limiter(ration.Per(5, time.Minute), ration.Per(7, time.Hour))
	x.align(time.Hour)
	for range 5 {
		x.admitted(l.Allow(x.ctx, "u"))
		x.Advance(7 * time.Second)
	}
	x.admitted(l.AllowN(x.ctx, "neighbour", 4))
	if err := l.Reset(x.ctx, "u"); err != nil {
		x.Fatal(err)
	}
	for range 5 {
		x.admitted(l.Allow(x.ctx, "u"))
	}
	x.refused(l.Allow(x.ctx, "u"))
	x.remaining(l, "neighbour", 1)
	for _, key := range []string{"u", "neighbour", "nobody"} {
		if err := l.Reset(x.ctx, key); err != nil {
			x.Fatal(err)
		}
	}
	x.noKeys()
}

func zeroLimitRefuses(x *exercise) {
	l := x.limiter(ration.PerMinute(0))
	for range 3 {
		d := x.refused(l.Allow(x.ctx, "u"))
		equal(x, "RetryAfter", d.RetryAfter, ration.Never)
		equal(x, "Remaining", d.Remaining, 0)
		equal(x, "RetryAfter of AllowUpTo", x.refused(l.AllowUpTo(x.ctx, "u", 5)).RetryAfter, ration.Never)
		equal(x, "Allowed of Peek", x.answer(l.Peek(x.ctx, "u")).Allowed, false)
	}
	x.noKeys()
}

func hugeNumbers(x *exercise) {
	x.align(24 * time.Hour)
	for _, units := range []int64{1 << 31, 1<<32 + 5, 100_000_000, 1<<53 - 1, 1 << 53} {
		l := x.limiter(ration.PerDay(units))
		d := x.admitted(l.Allow(x.ctx, "u"))
		equal(x, "Limit.Units", d.Limit.Units, units)
		equal(x, "Remaining", d.Remaining, units-1)
		d = x.admitted(l.AllowN(x.ctx, "u", units-1))
		equal(x, "Granted", d.Granted, units-1)
		x.refused(l.Allow(x.ctx, "u"))
		equal(x, "Granted", x.answer(l.Refund(x.ctx, "u", units-2)).Granted, units-2)
		x.remaining(l, "u", units-2)
		for _, n := range []int64{units + 1, units + 2, units + 3, math.MaxInt64} {
			equal(x, "RetryAfter", x.refused(l.AllowN(x.ctx, "v", n)).RetryAfter, ration.Never)
		}
		x.admitted(l.AllowN(x.ctx, "v", units))
		x.refused(l.AllowN(x.ctx, "v", units))
	}
}

func mistakes(x *exercise) {
	l := x.limiter(ration.Per(5, time.Minute))
	x.align(time.Minute)
	x.admitted(l.AllowN(x.ctx, "u", 2))
	for _, n := range []int64{-1, -3, math.MinInt64} {
		for _, call := range []func(context.Context, string, int64) (ration.Decision, error){l.AllowN, l.AllowUpTo, l.Refund} {
			for _, key := range []string{"u", "fresh"} {
				d, err := call(x.ctx, key, n)
				if !errors.Is(err, ration.ErrInvalidCost) || d.Allowed || d.Granted != 0 {
					x.Fatalf("%d units: %v, allowed %v", n, err, d.Allowed)
				}
			}
		}
	}
	for _, op := range []ration.Op{ration.OpAllow, ration.OpAllowUpTo, ration.OpPeek, ration.OpRefund, ration.OpReset} {
		d, err := ration.Request{Op: op, N: 1}.Do(x.ctx, l)
		if !errors.Is(err, ration.ErrInvalidKey) || d.Allowed {
			x.Fatalf("%v of an empty key: %v", op, err)
		}
	}
	for range 3 {
		x.admitted(l.Allow(x.ctx, "u"))
	}
	x.refused(l.Allow(x.ctx, "u"))
	x.remaining(l, "fresh", 5)
}

func badPolicies(x *exercise) {
	good := ration.PerMinute(5)
	bad := map[string]ration.Policy{
		"no name":            {Limits: []ration.Limit{good}},
		"blank in the name":  {Name: "a b", Limits: []ration.Limit{good}},
		"colon in the name":  {Name: "a:b", Limits: []ration.Limit{good}},
		"long name":          {Name: strings.Repeat("a", 65), Limits: []ration.Limit{good}},
		"no limits":          {Name: "p"},
		"nine limits":        {Name: "p", Limits: nineLimits()},
		"two of one window":  {Name: "p", Limits: []ration.Limit{good, ration.PerMinute(3)}},
		"negative units":     {Name: "p", Limits: []ration.Limit{ration.PerMinute(-1)}},
		"units above 2^53":   {Name: "p", Limits: []ration.Limit{ration.PerMinute(1<<53 + 1)}},
		"units at MaxInt64":  {Name: "p", Limits: []ration.Limit{ration.PerMinute(math.MaxInt64)}},
		"no window":          {Name: "p", Limits: []ration.Limit{ration.Per(5, 0)}},
		"negative window":    {Name: "p", Limits: []ration.Limit{ration.Per(5, -time.Second)}},
		"window below 1ms":   {Name: "p", Limits: []ration.Limit{ration.Per(5, time.Millisecond-1)}},
		"window of an age":   {Name: "p", Limits: []ration.Limit{ration.Per(5, math.MaxInt64)}},
		"negative slots":     {Name: "p", Slots: -1, Limits: []ration.Limit{good}},
		"more slots than µs": {Name: "p", Slots: 1_000_000, Limits: []ration.Limit{ration.Per(5, time.Millisecond)}},
	}
	for name, p := range bad {
		if l, err := x.New(p); !errors.Is(err, ration.ErrInvalidPolicy) || l != nil {
			x.Errorf("%s: limiter %v, error %v", name, l, err)
		}
	}
	x.noKeys()
}

func nineLimits() []ration.Limit {
	var limits []ration.Limit
	for i := range 9 {
		limits = append(limits, ration.Per(5, time.Duration(i+1)*time.Second))
	}
	return limits
}

func endedContext(x *exercise) {
	l := x.limiter(ration.Per(1, time.Minute))
	x.align(time.Minute)
	cancelled, cancel := context.WithCancel(x.ctx)
	cancel()
	expired, cancel := context.WithDeadline(x.ctx, time.Unix(0, 0))
	defer cancel()
	for want, ctx := range map[error]context.Context{context.Canceled: cancelled, context.DeadlineExceeded: expired} {
		for _, op := range []ration.Op{ration.OpAllow, ration.OpAllowUpTo, ration.OpPeek, ration.OpRefund, ration.OpReset} {
			d, err := ration.Request{Op: op, Key: "u", N: 1}.Do(ctx, l)
			if !errors.Is(err, want) || errors.Is(err, ration.ErrUnavailable) || d.Allowed || d.Degraded {
				x.Fatalf("%v: %v (allowed %v), not %v", op, err, d.Allowed, want)
			}
		}
	}
	x.noKeys()
	x.admitted(l.Allow(x.ctx, "u"))
}

func tinyAndOddWindows(x *exercise) {
	windows := []time.Duration{
		time.Millisecond, 1500 * time.Microsecond, 3333333 * time.Nanosecond,
		7 * time.Second, 600*time.Second + time.Millisecond, 100_000 * time.Second, ration.MaxWindow,
	}
	for _, window := range windows {
		p := x.policy(ration.Per(2, window))
		p.Slots = 7
		l := x.of(p)
		x.align((window + time.Microsecond - 1).Truncate(time.Microsecond))
		x.admitted(l.Allow(x.ctx, "u"))
		x.admitted(l.Allow(x.ctx, "u"))
		d := x.refused(l.Allow(x.ctx, "u"))
		equal(x, "Limit.Window", d.Limit.Window, window)
		if longest := window + time.Microsecond + x.hold(p, window); d.RetryAfter > longest {
			x.Fatalf("window %v: RetryAfter %v is above %v", window, d.RetryAfter, longest)
		}
		if window < ration.MaxWindow {
			x.Advance(d.RetryAfter)
			x.admitted(l.Allow(x.ctx, "u"))
		}
	}
}
