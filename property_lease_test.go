package ration_test

import (
	"context"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/fakeredis"
	"github.com/rationgo/ration/internal/model"
)

// loan is a lease that a history remembers, to give it back.
type loan struct {
	key        string
	units, end int64
}

// lease takes a block of units.
func (h *history) lease(t *rapid.T) {
	key := h.key(t)
	left, most := h.peek(key).Remaining, h.smallest()
	want := rapid.OneOf(
		rapid.Int64Range(0, 10),
		rapid.SampledFrom([]int64{left, left + 1, left / 2, most, ration.MaxUnits}),
	).Draw(t, "want")
	share := rapid.OneOf(
		rapid.Just[int64](1),
		rapid.Int64Range(1, 5),
		rapid.SampledFrom([]int64{max(1, left), min(left+1, ration.MaxUnits), ration.MaxUnits}),
	).Draw(t, "share")
	hold := h.genHold(t)
	at := h.at()
	lent, answer := h.model.Lease(at, key, want, share, hold, h.limits, int64(h.slots))
	answer.Source = ration.Redis
	got, term, end, err := ration.LeaseReply(context.Background(), h.limiter, key, want, share, hold)
	if err != nil {
		t.Fatalf("lease of %d, a part in %d, for %d: %v", want, share, hold, err)
	}
	if !reflect.DeepEqual(got, answer) || term != lent.Term || end != lent.End {
		t.Fatalf("lease of %d, a part in %d, for %d, from %q at %d under %v:\n got %+v, term %d to %d\nwant %+v, %+v",
			want, share, hold, key, at, h.limits, got, term, end, answer, lent)
	}
	t.Logf("lease of %d, a part in %d, for %d, from %q: %+v, term %d to %d", want, share, hold, key, got, term, end)
	if got.Granted == 0 {
		return
	}
	h.loans = append(h.loans, loan{key, got.Granted, end})
	if !h.untold() {
		if err := h.oracles[key].Grant(end, got.Granted, h.limits); err != nil {
			t.Fatalf("a lease breaks the promise for %q: %v", key, err)
		}
	}
}

// genHold gives a time to hold a lease for: any, or one that ends just where something else does.
func (h *history) genHold(t *rapid.T) int64 {
	l := rapid.SampledFrom(h.limits).Draw(t, "limit")
	window := micros(l.Window)
	slots := int64(h.slots)
	if slots == 0 {
		slots = model.DefaultSlots
	}
	slot := (window + slots - 1) / slots
	return rapid.OneOf(
		rapid.SampledFrom([]int64{0, 1, 2, window - 1, window, window + 1, window - 1 - h.at()%window, slot - h.at()%slot}),
		rapid.Int64Range(0, slot),
		rapid.Int64Range(0, 2*window),
		rapid.Just(micros(ration.MaxWindow)),
	).Draw(t, "hold")
}

// giveBack gives back what is left of a lease, a part, too much, or what nobody leased.
func (h *history) giveBack(t *rapid.T) {
	one := loan{key: h.key(t), units: 3, end: h.at()}
	if len(h.loans) > 0 {
		// The latest are likely to be counted still.
		i := max(0, len(h.loans)-1-rapid.IntRange(0, 5).Draw(t, "ago"))
		one = h.loans[i]
		if rapid.Bool().Draw(t, "once") {
			h.loans = slices.Delete(h.loans, i, i+1)
		}
	}
	switch rapid.SampledFrom([]string{"", "", "", "", "key", "end", "far"}).Draw(t, "mistake") {
	case "key":
		one.key = h.key(t)
	case "end":
		one.end += rapid.Int64Range(-2, 2).Draw(t, "beside")
	case "far":
		one.end = rapid.SampledFrom([]int64{0, 1, 2 * h.at(), ration.MaxUnits}).Draw(t, "end")
	}
	n := rapid.OneOf(
		rapid.Int64Range(0, 5), rapid.Int64Range(0, one.units),
		rapid.SampledFrom([]int64{one.units, one.units, one.units + 1, ration.MaxUnits}),
	).Draw(t, "n")
	at := h.at()
	want := h.model.GiveBack(at, one.key, n, one.end, h.limits, int64(h.slots))
	want.Source = ration.Redis
	got, err := ration.GiveBackReply(context.Background(), h.limiter, one.key, n, one.end)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%d of %d given back to %q at %d under %v: %v\n got %+v\nwant %+v",
			n, one.end, one.key, at, h.limits, err, got, want)
	}
	t.Logf("%d of %d given back to %q: %+v", n, one.end, one.key, got)
	if !h.untold() {
		h.oracles[one.key].GiveBack(at, one.end, got.Granted, h.limits)
	}
}

// shed refunds the oldest.
func (h *history) shed(t *rapid.T) {
	key := h.key(t)
	n := rapid.OneOf(
		rapid.Int64Range(0, 35), rapid.Int64Range(0, h.smallest()), rapid.SampledFrom([]int64{ration.MaxUnits, math.MaxInt64}),
	).Draw(t, "n")
	at := h.at()
	want := h.model.Shed(at, key, n, h.limits, int64(h.slots))
	want.Source = ration.Redis
	got, err := ration.ShedUnits(context.Background(), h.limiter, key, n)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%d shed by %q at %d under %v: %v\n got %+v\nwant %+v", n, key, at, h.limits, err, got, want)
	}
	t.Logf("%d shed by %q: %+v", n, key, got)
	if !h.untold() {
		h.oracles[key].Shed(at, got.Granted, h.limits)
	}
}

// TestPropertySpending has instances spend leases at any times in their terms and give back
// the rest: what is really used, when it's used, must never break the promise.
func TestPropertySpending(t *testing.T) {
	srv, err := fakeredis.Start(time.Unix(1e9, 0))
	require.NoError(t, err)
	t.Cleanup(srv.Close)
	rdb := srv.Client()
	t.Cleanup(func() { rdb.Close() })
	store, err := ration.Open(rdb, ration.WithTimeout(time.Minute))
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	for name, st := range playStrategies {
		if !st.leases() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, oneIn(2)(func(t *rapid.T) {
				defer rdb.FlushAll(context.Background())
				limits := genLimits().Draw(t, "limits")
				l, err := st.limiter(store, ration.Policy{Name: "p", Limits: limits, Slots: rapid.IntRange(1, 20).Draw(t, "slots")})
				require.NoError(t, err)
				s := &spender{limiter: l, limits: limits, oracle: model.NewOracle(st.model), setTime: srv.SetTime}
				s.move(t, rapid.Int64Range(1e15, 2e15).Draw(t, "start"))
				t.Repeat(map[string]func(*rapid.T){
					"lease": s.lease, "spend": s.spend, "spend again": s.spend, "give back": s.giveBack,
					"call": s.call, "move": s.moveAny, "term": s.moveToEnd,
				})
			}))
		})
	}
}

// spender is some instances with leases of one subject.
type spender struct {
	limiter ration.Limiter
	limits  []ration.Limit
	oracle  *model.Oracle
	setTime func(time.Time)
	now     int64
	loans   []loan
}

func (s *spender) used(t *rapid.T, n int64) {
	t.Logf("%d used at %d", n, s.now)
	if n == 0 {
		return
	}
	if err := s.oracle.Grant(s.now, n, s.limits); err != nil {
		t.Fatal(err)
	}
}

func (s *spender) lease(t *rapid.T) {
	window := s.limits[0].Window
	hold := time.Duration(rapid.Int64Range(0, int64(window)).Draw(t, "hold"))
	want, share := rapid.Int64Range(1, 20).Draw(t, "want"), rapid.Int64Range(1, 3).Draw(t, "share")
	n, term, end, err := ration.LeaseUnits(context.Background(), s.limiter, "u", want, share, hold)
	if err != nil || n > 0 && end != s.now+micros(term) {
		t.Fatalf("%d leased at %d for %v, to %d: %v", n, s.now, term, end, err)
	}
	if n > 0 {
		s.loans = append(s.loans, loan{"u", n, end})
	}
}

// some picks a lease.
func (s *spender) some(t *rapid.T) *loan {
	if len(s.loans) == 0 {
		t.Skip("no lease")
	}
	return &s.loans[len(s.loans)-1-rapid.IntRange(0, min(3, len(s.loans)-1)).Draw(t, "lease")]
}

func (s *spender) spend(t *rapid.T) {
	one := s.some(t)
	if s.now > one.end {
		t.Skip("its term is over")
	}
	n := rapid.Int64Range(0, one.units).Draw(t, "n")
	one.units -= n
	s.used(t, n)
}

func (s *spender) giveBack(t *rapid.T) {
	one := s.some(t)
	got, err := ration.GiveBackUnits(context.Background(), s.limiter, "u", one.units, one.end)
	if err != nil || got > one.units || got < one.units && s.now <= one.end {
		t.Fatalf("%d of %+v were given back: %v", got, one, err)
	}
	one.units = 0
}

func (s *spender) call(t *rapid.T) {
	d, err := s.limiter.AllowUpTo(context.Background(), "u", rapid.Int64Range(1, 40).Draw(t, "n"))
	require.NoError(t, err)
	s.used(t, d.Granted)
}

func (s *spender) moveAny(t *rapid.T) {
	window := micros(rapid.SampledFrom(s.limits).Draw(t, "limit").Window)
	s.move(t, rapid.OneOf(rapid.Int64Range(0, 2), rapid.Int64Range(0, window/10), rapid.Int64Range(0, window+1)).Draw(t, "step"))
}

// moveToEnd moves the clock to the last instant of a lease's term.
func (s *spender) moveToEnd(t *rapid.T) { s.move(t, max(0, s.some(t).end-s.now)) }

func (s *spender) move(t *rapid.T, step int64) {
	s.now += step
	t.Logf("clock %d", s.now)
	s.setTime(time.UnixMicro(s.now))
}
