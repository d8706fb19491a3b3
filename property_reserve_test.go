package ration_test

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/fakeredis"
	"github.com/rationgo/ration/internal/model"
	"github.com/rationgo/ration/internal/redistest"
)

// queue is a bucket at which some wait for their turns.
type queue struct {
	*history
	waiting []turn
	uses    []turn
}

type turn struct {
	at, n int64
	res   *ration.Reservation
}

// TestPropertyReservations plays random histories of calls, waiters and such as leave, at one bucket.
func TestPropertyReservations(t *testing.T) {
	t.Parallel()
	play := func(store *ration.Store, setTime func(time.Time), clean func()) func(*rapid.T) {
		w := playWorld{
			strategy: model.TokenBucket, source: ration.Redis, setTime: setTime, clean: clean,
			limiter: func(p ration.Policy) (ration.Limiter, error) { return ration.NewTokenBucket(store, p) },
		}
		return w.playQueue
	}
	t.Run("miniredis", func(t *testing.T) {
		srv, err := fakeredis.StartWithoutTTL(time.Unix(1e9, 0))
		require.NoError(t, err)
		t.Cleanup(srv.Close)
		b := backend{rdb: srv.Client()}
		t.Cleanup(func() { b.rdb.Close() })
		rapid.Check(t, oneIn(3)(play(b.store(t), srv.SetTime, srv.Mini().FlushAll)))
	})
	t.Run("redis", func(t *testing.T) {
		srv := redistest.Start(t, redistest.WithClock(time.Unix(1e9, 0)))
		b := backend{rdb: srv.Client(t)}
		rapid.Check(t, play(b.store(t), srv.SetTime, func() { b.rdb.FlushAll(ctx) }))
	})
}

func (w playWorld) playQueue(t *rapid.T) {
	defer w.clean()
	q := &queue{history: newHistory(t, w)}
	q.limits, q.dynamic = q.limits[:1], false
	if q.limits[0].Units == 0 {
		t.Skip("nothing ever fits")
	}
	p := ration.Policy{Name: "q", Limits: q.limits}
	var err error
	if q.limiter, err = w.limiter(p); err != nil {
		t.Fatal(err)
	}
	q.keys = q.keys[:1]
	t.Repeat(map[string]func(*rapid.T){
		"call":       q.ask,
		"wait":       q.wait,
		"wait again": q.wait,
		"leave":      q.leave,
		"move":       q.move,
	})
	// Whoever has stayed uses its units when its turn has come: the promise holds by the times of use.
	oracle := model.NewOracle(model.TokenBucket)
	oracle.Slack = 1
	for _, u := range append(q.uses, q.waiting...) {
		if err := oracle.Grant(u.at, u.n, q.limits); err != nil {
			t.Fatalf("the promise is broken: %v", err)
		}
	}
}

// settle has those use their units whose turn has come.
func (q *queue) settle() {
	q.waiting = slices.DeleteFunc(q.waiting, func(w turn) bool {
		if w.at <= q.now {
			q.uses = append(q.uses, w)
		}
		return w.at <= q.now
	})
	slices.SortStableFunc(q.uses, func(a, b turn) int { return cmp.Compare(a.at, b.at) })
}

// ask is a call that doesn't wait.
func (q *queue) ask(t *rapid.T) {
	q.settle()
	r := ration.Request{Op: ration.OpAllow, Key: q.keys[0], N: rapid.Int64Range(1, 3).Draw(t, "n")}
	if rapid.Bool().Draw(t, "refund") {
		r.Op = ration.OpRefund
	}
	want := q.expect(r)
	got, err := q.history.ask(r)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v at %d: %v\n got %+v\nwant %+v", r, q.now, err, got, want)
	}
	if r.Op == ration.OpRefund {
		// What was given back was never used: the latest.
		for left := got.Granted; left > 0 && len(q.uses) > 0; {
			u := &q.uses[len(q.uses)-1]
			part := min(left, u.n)
			if left, u.n = left-part, u.n-part; u.n == 0 {
				q.uses = q.uses[:len(q.uses)-1]
			}
		}
	} else if got.Granted > 0 {
		q.uses = append(q.uses, turn{at: q.now, n: got.Granted})
	}
}

func (q *queue) wait(t *rapid.T) {
	size := model.Size(q.limits[0])
	n := rapid.OneOf(rapid.Int64Range(1, 4), rapid.Int64Range(1, size), rapid.Just(size+1)).Draw(t, "n")
	longest := rapid.SampledFrom([]time.Duration{0, time.Millisecond, q.limits[0].Window, 100 * q.limits[0].Window}).Draw(t, "longest")
	longest = min(longest, ration.MaxWindow)
	if n > ration.MaxUnits || size-q.peek(q.keys[0]).Remaining > ration.MaxUnits/2-n/2 {
		t.Skip("Wait asks for no more, and no more than MaxUnits can be out")
	}
	pause, ok := q.model.Reserve(q.now, q.keys[0], n, q.limits[0], longest.Microseconds())
	want := q.peek(q.keys[0])
	res, err := ration.Reserve(context.Background(), q.limiter, q.keys[0], n, longest)
	if err != nil {
		t.Fatal(err)
	}
	d := res.Decision
	if d.Allowed != ok || ok && (micros(res.Pause) != pause || d.Granted != n || d.RetryAfter != 0) ||
		d.Remaining != want.Remaining || d.ResetAfter != want.ResetAfter {
		t.Fatalf("%d within %v at %d: got %v %+v, want %v %v %+v", n, longest, q.now, res.Pause, d, ok, pause, want)
	}
	if !ok && n <= size && d.RetryAfter <= longest || n > size && d.RetryAfter != ration.Never {
		t.Fatalf("%d within %v: %+v", n, longest, d)
	}
	if ok {
		q.waiting = append(q.waiting, turn{q.now + pause, n, res})
	}
}

// leave has somebody give up whose turn has not come.
func (q *queue) leave(t *rapid.T) {
	q.settle()
	if len(q.waiting) == 0 {
		t.Skip("nobody waits")
	}
	i := rapid.IntRange(0, len(q.waiting)-1).Draw(t, "who")
	w := q.waiting[i]
	q.waiting = slices.Delete(q.waiting, i, i+1)
	want := q.model.Cancel(q.now, q.keys[0], w.n, q.limits[0], w.at)
	got, err := w.res.Cancel(context.Background())
	if err != nil || got != want {
		t.Fatalf("of %d units for %d at %d came back %d, not %d: %v", w.n, w.at, q.now, got, want, err)
	}
}
