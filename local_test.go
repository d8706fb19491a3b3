package ration

import (
	"context"
	"hash/maphash"
	"maps"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ringTest is a ring on a clock that stands where the test puts it.
type ringTest struct {
	*testing.T
	Limiter
	mu   sync.Mutex
	time time.Time
}

func newRingTest(t *testing.T, p Policy, opts ...LocalOption) *ringTest {
	t.Helper()
	rt := &ringTest{T: t}
	p.Name = "test"
	l, err := NewLocal(p, append(opts, WithClock(func() time.Time {
		rt.mu.Lock()
		defer rt.mu.Unlock()
		return rt.time
	}))...)
	require.NoError(t, err)
	rt.Limiter = l
	return rt
}

func oneLimit(slots int, l Limit) Policy { return Policy{Limits: []Limit{l}, Slots: slots} }

// to sets the clock, in seconds.
func (rt *ringTest) to(sec float64) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.time = time.UnixMicro(int64(math.Round(sec * 1e6)))
}

// ask makes calls of one unit and holds the verdicts against letters such as AAD.
func (rt *ringTest) ask(sec float64, key, want string) (last Decision) {
	rt.Helper()
	rt.to(sec)
	got := ""
	for range want {
		last = rt.must(rt.Allow(rt.Context(), key))
		got += map[bool]string{true: "A", false: "D"}[last.Allowed]
	}
	require.Equal(rt, want, got, "at %v: %+v", sec, last)
	return last
}

func (rt *ringTest) must(d Decision, err error) Decision {
	rt.Helper()
	require.NoError(rt, err)
	require.False(rt, min(d.Remaining, int64(d.RetryAfter), int64(d.ResetAfter)) < 0 || d.Source != Ring, "%+v", d)
	return d
}

func (rt *ringTest) stats() LocalStats {
	s, ok := ReadLocalStats(rt.Limiter)
	require.True(rt, ok)
	return s
}

func (rt *ringTest) entry(key string) *entry {
	t := &rt.Limiter.(*localLimiter).table
	hash := maphash.String(t.seed, key) | 1
	return t.shards[int(hash>>32)&(len(t.shards)-1)].index.Load().find(hash, key)
}

func TestB14RingRecoversUnderPolling(t *testing.T) {
	rt := newRingTest(t, oneLimit(10, Per(2, 2*time.Second)))
	admitted, last := 0, 0.0
	for i := range 100 {
		sec := float64(i) / 10
		rt.to(sec)
		if rt.must(rt.Allow(t.Context(), "u")).Allowed {
			require.Less(t, sec-last, 2.2001)
			admitted, last = admitted+1, sec
		}
	}
	require.GreaterOrEqual(t, admitted, 8)
}

func TestB18RingNegativeCost(t *testing.T) {
	rt := newRingTest(t, oneLimit(0, PerMinute(5)))
	rt.ask(0, "u", "AA")
	for _, n := range []int64{-3, math.MinInt64} {
		for _, key := range []string{"u", "fresh"} {
			for _, call := range []func(context.Context, string, int64) (Decision, error){rt.AllowN, rt.AllowUpTo, rt.Refund} {
				d, err := call(t.Context(), key, n)
				require.ErrorIs(t, err, ErrInvalidCost)
				require.Equal(t, Decision{}, d)
			}
		}
	}
	require.Equal(t, 1, rt.stats().Subjects)
	rt.ask(0, "u", "AAAD")
}

func TestB19RingRefundAtNothingLeft(t *testing.T) {
	rt := newRingTest(t, oneLimit(0, PerMinute(1)))
	rt.ask(0, "u", "AD")
	d := rt.must(rt.Refund(t.Context(), "u", 1))
	require.Equal(t, Decision{Allowed: true, Granted: 1, Remaining: 1, Limit: PerMinute(1), Source: Ring}, d)
	require.Zero(t, rt.stats().Subjects)
	rt.ask(0, "u", "AD")
	require.Zero(t, rt.must(rt.Refund(t.Context(), "nobody", 1)).Granted)
}

func TestB23RingPeekLeavesNoTrace(t *testing.T) {
	rt := newRingTest(t, oneLimit(0, PerMinute(1)))
	for range 100 {
		require.True(t, rt.must(rt.Peek(t.Context(), "u")).Allowed)
	}
	require.Zero(t, rt.stats().Subjects)
	d := rt.ask(0, "u", "AD")
	for range 100 {
		require.Equal(t, d, rt.must(rt.Peek(t.Context(), "u")))
	}
	rt.ask(63, "u", "A")
}

func TestB24RingCountsFirstCall(t *testing.T) {
	rt := newRingTest(t, oneLimit(10, PerSecond(2)))
	for _, sec := range []float64{0, 1.1, 2.2, 3.3} {
		rt.ask(sec, "u", "AAD")
	}
}

func TestB26RingContextEnded(t *testing.T) {
	rt := newRingTest(t, oneLimit(0, PerMinute(1)))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for ctx, want := range map[context.Context]error{cancelled: context.Canceled, late: context.DeadlineExceeded} {
		d, err := rt.Allow(ctx, "u")
		require.ErrorIs(t, err, want)
		require.Equal(t, Decision{}, d)
		require.ErrorIs(t, rt.Reset(ctx, "u"), want)
	}
	require.Zero(t, rt.stats().Subjects)
	rt.ask(0, "u", "AD")

	// LimitsFor may outlive the caller.
	ctx, cancel := context.WithCancel(t.Context())
	rt = newRingTest(t, Policy{LimitsFor: func(context.Context, string) ([]Limit, error) {
		cancel()
		return []Limit{PerMinute(1)}, nil
	}})
	_, err := rt.Allow(ctx, "u")
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, rt.stats().Subjects)
}

func TestB33RingLargeNumbers(t *testing.T) {
	for _, units := range []int64{1 << 31, 1<<32 + 5, MaxUnits} {
		rt := newRingTest(t, oneLimit(0, PerMinute(units)))
		d := rt.ask(0, "u", "A")
		require.Equal(t, [2]int64{units, units - 1}, [2]int64{d.Limit.Units, d.Remaining})
		for _, n := range []int64{units, math.MaxInt64} {
			d := rt.must(rt.AllowN(t.Context(), "u", n))
			require.True(t, !d.Allowed && d.Remaining == units-1 && (d.RetryAfter == Never) == (n > units), "%+v", d)
		}
		require.True(t, rt.must(rt.AllowN(t.Context(), "v", units)).Allowed)
		rt.ask(0, "v", "D")
		require.Equal(t, units-1, rt.must(rt.AllowUpTo(t.Context(), "u", math.MaxInt64)).Granted)
		require.Equal(t, units, rt.must(rt.Refund(t.Context(), "u", math.MaxInt64)).Granted)
		rt.ask(0, "u", "A")
	}
}

func TestB46RingBoundaryBurst(t *testing.T) {
	rt := newRingTest(t, oneLimit(20, PerMinute(10)))
	require.Equal(t, 61*time.Second, rt.ask(-1, "before 1970", "AAAAAAAAAAD").RetryAfter)
	rt.ask(59.9, "u", "AAAAAAAAAA")
	// The units' slot is [57s, 60s); it's counted until 57s + 21 slots.
	d := rt.ask(60, "u", "DDDDDDDDDD")
	require.Equal(t, [2]time.Duration{time.Minute, time.Minute}, [2]time.Duration{d.RetryAfter, d.ResetAfter})
	rt.ask(119.999999, "u", "D")
	rt.ask(120, "u", "AAAAAAAAAAD")
}

func TestB50RingSlotsAreReused(t *testing.T) {
	rt := newRingTest(t, oneLimit(10, PerSecond(3)))
	for sec := range 31 {
		rt.ask(float64(sec), "u", "A")
	}
	rt = newRingTest(t, oneLimit(10, PerSecond(5)))
	rt.ask(0, "u", "AAAAADDDDD")
	for i := 3; i <= 120; i++ {
		rt.ask(float64(i)/2, "u", "A")
	}
	for k := 1; k <= 25; k++ {
		// Eleven slots are counted: so many calls, at most, at one in k slots.
		rt := newRingTest(t, oneLimit(10, PerSecond(int64(11/k+1))))
		for i := 0; i*k < 600; i++ {
			rt.ask(float64(i*k)/10, "u", "A")
		}
	}
}

func TestB56RingOlderTime(t *testing.T) {
	for _, late := range []float64{0.999, 0.95, 0.5} {
		rt := newRingTest(t, oneLimit(20, PerSecond(3)))
		rt.ask(1, "u", "A")
		require.EqualValues(t, 1, rt.ask(late, "u", "A").Remaining)
		rt.ask(1, "u", "AD")
	}
}

func TestB57RingAnySlots(t *testing.T) {
	for _, c := range []struct {
		window time.Duration
		slots  int
		ok     bool
	}{
		{time.Second, 7, true}, {time.Second, 0, true}, {time.Millisecond, 1000, true}, {time.Millisecond + 1, 3, true},
		{MaxWindow, 1, true}, {MaxWindow, 1000, true}, {time.Nanosecond, 10, false}, {time.Second, -1, false},
		{time.Millisecond, 1_000_000, false}, {24 * time.Hour, 100_000, false}, {0, 0, false}, {-time.Second, 0, false},
	} {
		p := Policy{Name: "test", Limits: []Limit{Per(2, c.window)}, Slots: c.slots}
		if !c.ok {
			_, err := NewLocal(p)
			require.ErrorIs(t, err, ErrInvalidPolicy)
			continue
		}
		rt := newRingTest(t, p)
		d := rt.ask(0.3, "u", "AAD")
		slots := time.Duration(p.slots())
		require.GreaterOrEqual(t, d.RetryAfter, c.window)
		require.LessOrEqual(t, d.RetryAfter, c.window+c.window/slots+(slots+1)*time.Microsecond)
		rt.ask(0.3+(d.RetryAfter-time.Microsecond).Seconds(), "u", "D")
		rt.ask(0.3+d.RetryAfter.Seconds(), "u", "AAD")
		rt.ask(-1e6, "before 1970", "AAD")
	}
}

func TestB120RingClockSetBack(t *testing.T) {
	rt := newRingTest(t, oneLimit(0, PerMinute(5)))
	rt.ask(1000, "u", "AAAAAD")
	// The units' slot is [999s, 1002s): they're counted for 62s from 1000s, which is 990s now.
	require.Equal(t, 62*time.Second, rt.ask(990, "u", "D").RetryAfter)
	rt.ask(1051.9, "u", "D")
	rt.ask(1052, "u", "AAAAAD") // 1062s, but for the step

	const days = -2 * 86400
	require.Equal(t, 63*time.Second, rt.ask(days, "u", "D").RetryAfter)
	rt.ask(days, "v", "AAAAAD")
	rt.ask(days+62.9, "u", "D")
	rt.ask(days+63, "u", "AAAAAD")

	// Within a slot units that have run out count again, although the table was swept.
	rt = newRingTest(t, oneLimit(0, PerMinute(5)), WithMaxSubjects(2))
	rt.ask(0, "u", "AAAAAD")
	rt.ask(63, "v", "A")
	require.Equal(t, 100*time.Millisecond, rt.ask(62.9, "u", "D").RetryAfter)

	// To and fro within a slot, however often: no time is won.
	rt = newRingTest(t, oneLimit(0, PerMinute(5)))
	rt.ask(999, "u", "AAAAAD")
	for range 1000 {
		rt.ask(1001.9, "v", "")
		require.Equal(t, 63*time.Second, rt.ask(999, "u", "D").RetryAfter)
	}
	require.Equal(t, 63100*time.Millisecond, rt.ask(998.9, "u", "D").RetryAfter)
}

func TestB125RingLimitZero(t *testing.T) {
	rt := newRingTest(t, oneLimit(0, PerMinute(0)))
	want := Decision{Limit: PerMinute(0), RetryAfter: Never, Source: Ring}
	require.Equal(t, want, rt.ask(0, "u", "D"))
	require.Equal(t, want, rt.must(rt.Peek(t.Context(), "u")))
	require.Equal(t, want, rt.must(rt.AllowUpTo(t.Context(), "u", 3)))
	require.Zero(t, rt.stats().Subjects)
}

func TestRingLimitsOfASubject(t *testing.T) {
	var limits []Limit
	rt := newRingTest(t, Policy{LimitsFor: func(context.Context, string) ([]Limit, error) { return limits, nil }})
	limits = []Limit{PerMinute(2)}
	rt.ask(0, "u", "AAD")
	limits = []Limit{PerMinute(3)}
	rt.ask(0, "u", "AD")
	limits = []Limit{PerMinute(1)}
	require.Zero(t, rt.ask(0, "u", "D").Remaining)
	limits = []Limit{PerHour(1), PerMinute(9)}
	d := rt.ask(1, "u", "AD")
	require.True(t, d.Limit == limits[0] && d.Limits[1].Remaining == 5 && d.ResetAfter == 63*time.Minute-time.Second, "%+v", d)
	for i := range 100 { // windows come and go, rings don't pile up
		limits = []Limit{Per(1, time.Second+time.Duration(i)*time.Microsecond)}
		rt.ask(float64(10*i), "u", "AD")
	}
	require.True(t, rt.entry("u").first.next.next == nil || rt.entry("u").first.next.next.next == nil)
	limits = []Limit{PerHour(1)}
	rt.ask(999, "u", "D")
	require.NoError(t, rt.Reset(t.Context(), "u"))
	rt.ask(999, "u", "AD")
	limits = []Limit{PerMinute(-1)}
	_, err := rt.Allow(t.Context(), "u")
	require.ErrorIs(t, err, ErrInvalidPolicy)
}

// plainRing is what a ring shall answer, found the slow way.
type plainRing struct {
	width, slots int64
	counts       map[int64]int64 // units by slot's number
}

// window has the first and the last slot counted.
func (p *plainRing) window(now int64) (oldest, top int64) {
	top = now / p.width
	for slot := range p.counts {
		top = max(top, slot)
	}
	return top - p.slots, top
}

func (p *plainRing) used(now int64) (used int64) {
	for oldest, slot := p.window(now); slot >= oldest; slot-- {
		used += p.counts[slot]
	}
	return used
}

func (p *plainRing) charge(now, n int64) {
	oldest, top := p.window(now)
	p.counts[top] += n
	maps.DeleteFunc(p.counts, func(slot, _ int64) bool { return slot < oldest })
}

func (p *plainRing) refund(now, n int64) (given int64) {
	for oldest, slot := p.window(now); slot >= oldest; slot-- {
		take := min(n-given, p.counts[slot])
		given += take
		p.counts[slot] -= take
	}
	maps.DeleteFunc(p.counts, func(_, n int64) bool { return n == 0 })
	return given
}

func (p *plainRing) wait(now, n, units int64) int64 {
	slot, _ := p.window(now)
	left, ready := p.used(now), now
	for ; left+n > units; slot++ {
		left, ready = left-p.counts[slot], (slot+p.slots+1)*p.width
	}
	return ready - now
}

// TestRingAgainstPlain steps to and fro as late callers do, and further than any clock would.
func TestRingAgainstPlain(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		width, slots := 1+rng.Int64N(50), 1+rng.Int64N(12)
		plain := &plainRing{width: width, slots: slots, counts: map[int64]int64{}}
		e := &entry{first: ring{newest: noTime}}
		rg := e.add(&ringLimit{window: width * slots, width: width}, slots, 0)
		now := int64(1_000_000)
		for range 300 {
			now += rng.Int64N(width*3) - width/2
			switch rng.IntN(20) {
			case 0:
				now += rng.Int64N(3 * width * slots)
			case 1:
				now -= rng.Int64N(2 * width * slots)
			}
			rg.seek(now)
			n := 1 + rng.Int64N(9)
			switch rng.IntN(3) {
			case 0:
				rg.charge(n)
				plain.charge(now, n)
			case 1:
				require.Equal(t, plain.refund(now, n), rg.refund(n))
				rg.seek(now)
			}
			require.Equal(t, plain.used(now), rg.used)
			units := n + rng.Int64N(60)
			require.Equal(t, plain.wait(now, n, units), rg.wait(n, units, now))
		}
	}
}
