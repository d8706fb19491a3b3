package rationtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rationgo/ration"
)

// awkward are subjects that have broken other limiters' keys.
var awkward = []string{
	strings.Repeat("a", 1<<16), strings.Repeat("a", 1<<16-1) + "b", strings.Repeat("a", 128), strings.Repeat("a", 129),
	"a\nb", "a\x00b", "a b", "a%20b", "a%", "%", "\xff\xfe", "\ufffd", "*", "[x]", "😀", "{", "}", "{}", "{}x", "a}b", "}{",
	"{x}1", "{x}2", "a:b", "a", "b", ":", "a:", ":a", "127.0.0.1", "::1", "login:u1", "u1", "u1:0", " ", "\u00a0", "\u2028",
}

func subjectsAreApart(x *exercise) {
	l := x.limiter(ration.Per(2, time.Hour))
	x.align(time.Hour)
	for i, key := range awkward {
		if d := x.admitted(l.Allow(x.ctx, key)); d.Remaining != 1 {
			x.Fatalf("subject %d (%.40q) shares its count with an earlier one", i, key)
		}
	}
	for _, key := range awkward {
		x.admitted(l.Allow(x.ctx, key))
		x.refused(l.Allow(x.ctx, key))
	}
}

func policiesAreApart(x *exercise) {
	x.align(time.Hour)
	login, search := x.limiter(ration.Per(5, time.Hour)), x.limiter(ration.Per(5, time.Hour))
	for range 5 {
		x.admitted(login.Allow(x.ctx, "u"))
		x.admitted(search.Allow(x.ctx, "u"))
	}
	x.refused(login.Allow(x.ctx, "u"))
	x.refused(search.Allow(x.ctx, "u"))
}

func secondLimiterShares(x *exercise) {
	if !x.Shared {
		x.Skip("limiters of this harness share nothing")
	}
	p := x.policy(ration.Per(5, time.Hour))
	x.align(time.Hour)
	for range 5 {
		x.admitted(x.of(p).Allow(x.ctx, "u"))
	}
	x.refused(x.of(p).Allow(x.ctx, "u"))
}

func allOrNothing(x *exercise) {
	l := x.limiter(ration.Per(10, time.Second), ration.Per(20, time.Minute))
	x.align(time.Minute)
	admitted := 0
	for range 30 {
		if x.answer(l.Allow(x.ctx, "u")).Allowed {
			admitted++
		}
	}
	equal(x, "admitted", admitted, 10)
	d := x.refused(l.Allow(x.ctx, "u"))
	equal(x, "used of the minute", 20-d.Limits[1].Remaining, 10)
	equal(x, "Limit", d.Limit, ration.PerSecond(10))
	if x.Estimates || x.Refills {
		x.Advance(d.Limits[0].ResetAfter)
	} else {
		x.Advance(d.RetryAfter)
	}
	for range 10 {
		x.admitted(l.Allow(x.ctx, "u"))
	}
	second := x.refused(l.Allow(x.ctx, "u")).Limits[0].ResetAfter
	x.Advance(second)
	d = x.refused(l.Allow(x.ctx, "u"))
	equal(x, "Limit", d.Limit, ration.PerMinute(20))
	equal(x, "left of the second", d.Limits[0].Remaining, 10)
}

func severalLimitsReport(x *exercise) {
	limits := []ration.Limit{
		{Name: "burst", Units: 4, Window: time.Second}, {Name: "minute", Units: 6, Window: time.Minute}, ration.PerHour(1000),
	}
	l := x.limiter(limits...)
	x.align(time.Hour)
	d := x.admitted(l.AllowN(x.ctx, "u", 3))
	equal(x, "len(Limits)", len(d.Limits), 3)
	for i, want := range []int64{1, 3, 997} {
		equal(x, "Limits[].Limit", d.Limits[i].Limit, limits[i])
		equal(x, "Limits[].Remaining", d.Limits[i].Remaining, want)
		equal(x, "Limits[].RetryAfter", d.Limits[i].RetryAfter, 0)
	}
	equal(x, "Remaining", d.Remaining, 1)
	equal(x, "Limit", d.Limit, limits[0])
	// Both of the first refuse 4, the second for longer; 5 never fits the first.
	d = x.refused(l.AllowN(x.ctx, "u", 4))
	equal(x, "Limit", d.Limit, limits[1])
	equal(x, "RetryAfter", d.RetryAfter, d.Limits[1].RetryAfter)
	equal(x, "RetryAfter of the hour", d.Limits[2].RetryAfter, 0)
	d = x.refused(l.AllowN(x.ctx, "u", 5))
	equal(x, "RetryAfter", d.RetryAfter, ration.Never)
	equal(x, "Limit", d.Limit, limits[0])
	// ResetAfter is when the smallest limit's whole units fit again.
	x.Advance(d.ResetAfter - time.Millisecond)
	if got := x.answer(l.Peek(x.ctx, "u")).Remaining; got >= 4 {
		x.Fatalf("Remaining is %d before ResetAfter", got)
	}
	x.Advance(time.Millisecond)
	x.remaining(l, "u", 4)
}

func limitsForActsAtOnce(x *exercise) {
	var units atomic.Int64
	p := x.policy(ration.Per(1, time.Hour))
	p.LimitsFor = func(_ context.Context, key string) ([]ration.Limit, error) {
		if key == "default" {
			return nil, nil
		}
		return []ration.Limit{ration.PerHour(units.Load())}, nil
	}
	l := x.of(p)
	x.align(time.Hour)
	units.Store(100)
	x.admitted(l.AllowN(x.ctx, "u", 2))
	units.Store(10)
	d := x.admitted(l.Allow(x.ctx, "u"))
	equal(x, "Limit", d.Limit, ration.PerHour(10))
	equal(x, "Remaining", d.Remaining, 7)
	x.admitted(l.AllowN(x.ctx, "u", 7))
	for range 50 {
		x.refused(l.Allow(x.ctx, "u"))
	}
	units.Store(3)
	d = x.refused(l.Allow(x.ctx, "u"))
	equal(x, "Remaining", d.Remaining, 0)
	units.Store(20)
	equal(x, "Granted", x.admitted(l.AllowUpTo(x.ctx, "u", 50)).Granted, 10)
	x.refused(l.Allow(x.ctx, "u"))
	equal(x, "Limit of the policy itself", x.admitted(l.Allow(x.ctx, "default")).Limit, ration.PerHour(1))
}

func limitsForMistakes(x *exercise) {
	cause := errors.New("no such plan")
	var give []ration.Limit
	var fail error
	p := x.policy()
	p.LimitsFor = func(context.Context, string) ([]ration.Limit, error) { return give, fail }
	l := x.of(p)
	fail = cause
	if d, err := l.Allow(x.ctx, "u"); !errors.Is(err, cause) || d.Allowed {
		x.Fatalf("LimitsFor's error came as %v", err)
	}
	fail = nil
	for _, limits := range [][]ration.Limit{nil, nineLimits(), {ration.PerMinute(-1)}, {ration.Per(1, 0)}} {
		give = limits
		if d, err := l.Allow(x.ctx, "u"); !errors.Is(err, ration.ErrInvalidPolicy) || d.Allowed {
			x.Fatalf("limits %v gave %v", limits, err)
		}
	}
	x.noKeys()
}

func policyIsCopied(x *exercise) {
	limits := []ration.Limit{ration.PerHour(2)}
	l := x.limiter(limits...)
	limits[0].Units = 100
	x.align(time.Hour)
	x.admitted(l.AllowN(x.ctx, "u", 2))
	x.refused(l.Allow(x.ctx, "u"))
}

// A caller below its limit must never be refused, whatever its rhythm: a slot
// that isn't cleared, or a lifetime renewed by each call, refuses it in the end.
func slowCallerNeverRefused(x *exercise) {
	for k := time.Duration(1); k <= 25; k++ {
		p := x.policy(ration.Per(5, time.Second))
		p.Slots = 10
		l := x.of(p)
		interval := k * 100 * time.Millisecond
		if span := time.Second + x.hold(p, time.Second); 5*interval <= span {
			continue
		}
		for i := range 60 {
			if d := x.answer(l.Allow(x.ctx, "u")); !d.Allowed {
				x.Fatalf("call %d at intervals of %v was refused", i, interval)
			}
			x.Advance(interval)
		}
	}
}

// A caller that never stops asking gets its limit in every window all the same.
func eagerCallerGetsShare(x *exercise) {
	p := x.policy(ration.Per(2, 2*time.Second))
	l := x.of(p)
	x.align(2 * time.Second)
	x.Advance(10 * time.Millisecond)
	admitted, gap := 0, time.Duration(0)
	for range 100 {
		if x.answer(l.Allow(x.ctx, "u")).Allowed {
			admitted, gap = admitted+1, 0
		}
		if gap > 2*time.Second+x.hold(p, 2*time.Second) {
			x.Fatalf("nothing was let through for %v", gap)
		}
		x.Advance(100 * time.Millisecond)
		gap += 100 * time.Millisecond
	}
	least := 8
	if x.Estimates {
		least -= 5 // one in each window
	}
	if admitted < least || admitted > 12 {
		x.Fatalf("%d calls were let through in 10 s at 2 in 2 s", admitted)
	}
}

// use is one admitted call.
type use struct {
	at time.Time
	n  int64
}

// promiseHolds replays random traffic and checks the promise itself on what
// was let through, by the times of use and nothing else.
func promiseHolds(x *exercise) {
	seed := rand.Uint64()
	x.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 8 {
		limit := ration.Per(1+rng.Int64N(8), time.Duration(1+rng.Int64N(5000))*time.Millisecond)
		p := x.policy(limit)
		p.Slots = 1 + rng.IntN(12)
		l := x.of(p)
		var uses []use
		for range 150 {
			d := x.answer(l.AllowUpTo(x.ctx, "u", 1+rng.Int64N(3)))
			if d.Granted > 0 {
				uses = append(uses, use{x.Now(), d.Granted})
			}
			x.Advance(time.Duration(rng.Int64N(int64(limit.Window)/3+1)) / 1000 * 1000)
		}
		if x.Refills {
			x.checkPace(limit, uses)
		} else {
			x.checkPromise(limit, uses)
		}
	}
}

// checkPromise counts, for each use, what was let through in the window that
// ends with it.
func (x *exercise) checkPromise(limit ration.Limit, uses []use) {
	x.Helper()
	window := limit.Window.Microseconds()
	for i, last := range uses {
		sum, end := int64(0), last.at.UnixMicro()
		for _, u := range uses[:i+1] {
			at := u.at.UnixMicro()
			if x.Grid && at/window == end/window || !x.Grid && at > end-window {
				sum += u.n
			}
		}
		if sum > limit.Units {
			x.Fatalf("%d units within one window of %v", sum, limit)
		}
	}
}

// checkPace counts, for each span that begins and ends with a use, what was let through in it.
func (x *exercise) checkPace(limit ration.Limit, uses []use) {
	x.Helper()
	for i, first := range uses {
		sum := int64(0)
		for _, u := range uses[i:] {
			sum += u.n
			// The numbers are small: at most 8 units, windows of 5 s and a few minutes.
			back := u.at.Sub(first.at).Microseconds() * limit.Units / limit.Window.Microseconds()
			if sum > limit.Units+back {
				x.Fatalf("%d units within %v of %v", sum, u.at.Sub(first.at), limit)
			}
		}
	}
}

func remainingIsExact(x *exercise) {
	seed := rand.Uint64()
	x.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		l := x.limiter(ration.Per(1+rng.Int64N(8), time.Second), ration.Per(1+rng.Int64N(20), 7*time.Second))
		var left int64
		for range 12 {
			left = x.answer(l.AllowUpTo(x.ctx, "u", 1+rng.Int64N(3))).Remaining
			if rng.IntN(4) == 0 {
				left = x.answer(l.Refund(x.ctx, "u", 1+rng.Int64N(3))).Remaining
			}
			if rng.IntN(3) == 0 {
				break
			}
			x.Advance(time.Duration(rng.Int64N(900)) * time.Millisecond)
			left = x.answer(l.Peek(x.ctx, "u")).Remaining
		}
		for range left {
			x.admitted(l.Allow(x.ctx, "u"))
		}
		x.refused(l.Allow(x.ctx, "u"))
	}
}

func concurrentCallers(x *exercise) {
	p := x.policy(ration.PerHour(50))
	x.align(time.Hour)
	limiters := []ration.Limiter{x.of(p), nil}
	limiters[1] = limiters[0]
	if x.Shared {
		limiters[1] = x.of(p)
	}
	var admitted, failed atomic.Int64
	var callers sync.WaitGroup
	for i := range 200 {
		callers.Go(func() {
			d, err := limiters[i%2].Allow(x.ctx, "u")
			if err != nil {
				failed.Add(1)
			} else if d.Allowed {
				admitted.Add(1)
			}
		})
	}
	callers.Wait()
	equal(x, "failed calls", failed.Load(), 0)
	equal(x, "admitted", admitted.Load(), 50)
}

func waitWhenFree(x *exercise) {
	l := x.limiter(ration.PerHour(2))
	x.align(time.Hour)
	// The deadline also keeps a wrong RetryAfter from making the suite sleep.
	ctx, cancel := context.WithTimeout(x.ctx, time.Minute)
	defer cancel()
	d, err := ration.Wait(ctx, l, "u", 2)
	x.admitted(d, err)
	d, err = ration.Wait(ctx, l, "u", 3)
	equal(x, "RetryAfter", x.refused(d, err).RetryAfter, ration.Never)
	d, err = ration.Wait(ctx, l, "u", 1)
	x.refused(d, err)
}
