package ration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rationgo/ration/internal/fakeredis"
	"github.com/rationgo/ration/internal/redistest"
)

func TestDecodeRejectsOddLeases(t *testing.T) {
	lease := &item{script: fixedScript, op: opLease, n: 5, count: 1, limits: make([]boundLimit, 1), lending: &lending{hold: 100, share: 1}}
	two := &item{script: fixedScript, op: opLease, n: 5, count: 1, limits: make([]boundLimit, 2), lending: &lending{hold: 100, share: 1}}
	back := &item{script: fixedScript, op: opGiveBack, n: 5, count: 1, limits: make([]boundLimit, 1), lending: &lending{end: 9}}
	shed := &item{script: fixedScript, op: opShed, n: 5, count: 1, limits: make([]boundLimit, 1)}
	for _, c := range []struct {
		name  string
		it    *item
		reply []any
		ok    bool
	}{
		{"lease", lease, []any{int64(5), int64(5), int64(0), int64(9), int64(100), int64(1e15)}, true},
		{"refused lease", lease, []any{int64(0), int64(5), int64(0), int64(9), int64(0), int64(0)}, true},
		{"lease under two limits", two, []any{int64(1), int64(5), int64(0), int64(9), int64(5), int64(0), int64(9), int64(9), int64(1), int64(1e15)}, true},
		{"lease without its tail", lease, []any{int64(5), int64(5), int64(0), int64(9)}, false},
		{"lease without its end", lease, []any{int64(5), int64(5), int64(0), int64(9), int64(100)}, false},
		{"more than wanted", lease, []any{int64(6), int64(6), int64(0), int64(9), int64(100), int64(1e15)}, false},
		{"longer than wanted", lease, []any{int64(5), int64(5), int64(0), int64(9), int64(101), int64(1e15)}, false},
		{"no term", lease, []any{int64(5), int64(5), int64(0), int64(9), int64(0), int64(1e15)}, false},
		{"a term below 0", lease, []any{int64(5), int64(5), int64(0), int64(9), int64(-1), int64(1e15)}, false},
		{"no end", lease, []any{int64(5), int64(5), int64(0), int64(9), int64(100), int64(0)}, false},
		{"an end before the clock began", lease, []any{int64(5), int64(5), int64(0), int64(9), int64(100), int64(100)}, false},
		{"an end beyond 2^53", lease, []any{int64(5), int64(5), int64(0), int64(9), int64(100), MaxUnits + 1}, false},
		{"a term of nothing", lease, []any{int64(0), int64(5), int64(0), int64(9), int64(1), int64(0)}, false},
		{"an end of nothing", lease, []any{int64(0), int64(5), int64(0), int64(9), int64(0), int64(1e15)}, false},
		{"a text for an end", lease, []any{int64(5), int64(5), int64(0), int64(9), int64(100), "1e15"}, false},
		{"given back", back, []any{int64(5), int64(0), int64(0), int64(0)}, true},
		{"more given back than wanted", back, []any{int64(6), int64(0), int64(0), int64(0)}, false},
		{"a tail of a lease's", back, []any{int64(5), int64(0), int64(0), int64(0), int64(0), int64(0)}, false},
		{"shed", shed, []any{int64(5), int64(0), int64(0), int64(0)}, true},
		{"more shed than wanted", shed, []any{int64(6), int64(0), int64(0), int64(0)}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.it.reply = nil
			require.Equal(t, c.ok, decode(c.reply, []*item{c.it}) == nil)
			require.Equal(t, c.ok, c.it.reply != nil)
		})
	}
}

// A run of any items answers them as if they had come one after another.
func TestPropertyMixedRuns(t *testing.T) {
	srv, err := fakeredis.Start(time.Unix(1e9, 0))
	require.NoError(t, err)
	t.Cleanup(srv.Close)
	rdb := srv.Client()
	t.Cleanup(func() { rdb.Close() })
	t.Run("miniredis", func(t *testing.T) { mixedRuns(t, rdb, srv.SetTime) })
	t.Run("redis", func(t *testing.T) {
		srv := redistest.Start(t, redistest.WithClock(time.Unix(1e9, 0)))
		mixedRuns(t, srv.Client(t), srv.SetTime)
	})
}

func mixedRuns(t *testing.T, rdb *redis.Client, setTime func(time.Time)) {
	store, err := Open(rdb, WithTimeout(time.Minute))
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	for name, newLimiter := range map[string]func(*Store, Policy) (Limiter, error){
		"fixed": NewFixedWindow, "log": NewSlidingLog, "buckets": NewSlidingBuckets, "compact": NewCompactLog,
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				defer rdb.FlushAll(context.Background())
				m := &mixer{store: store}
				limits := []Limit{Per(rapid.Int64Range(0, 50).Draw(t, "units"), 10*time.Second), Per(60, 17*time.Second)}
				for i, name := range []string{"alone", "together"} {
					l, err := newLimiter(store, Policy{Name: name, Slots: 5, Limits: limits})
					require.NoError(t, err)
					m.limiters[i] = l.(*redisLimiter)
				}
				now := int64(1e15)
				for range rapid.IntRange(1, 6).Draw(t, "runs") {
					now += rapid.Int64Range(0, 4e6).Draw(t, "step")
					setTime(time.UnixMicro(now))
					m.run(t)
				}
			})
		})
	}
}

// mixer makes the same items one by one under one policy, in one run under another.
type mixer struct {
	store    *Store
	limiters [2]*redisLimiter
	ends     []int64
}

func (m *mixer) run(t *rapid.T) {
	var together run
	var want [][]int64
	for range rapid.IntRange(1, 12).Draw(t, "items") {
		ops := []byte{opAllow, opAllow, opUpTo, opPeek, opRefund, opReset}
		if m.limiters[0].strategy.leases {
			ops = append(ops, opLease, opLease, opGiveBack, opGiveBack, opShed)
		}
		op := rapid.SampledFrom(ops).Draw(t, "op")
		n, count := int64(0), int64(1)
		if op != opPeek && op != opReset {
			n = rapid.Int64Range(1, 12).Draw(t, "n")
		}
		// Only of a single limit equal calls are one item.
		limits := rapid.IntRange(1, 2).Draw(t, "limits")
		if limits == 1 && (op == opAllow || op == opUpTo) {
			count = rapid.Int64Range(1, 4).Draw(t, "calls")
		}
		more := &lending{
			hold:  rapid.Int64Range(0, 3e6).Draw(t, "hold"),
			share: rapid.Int64Range(1, 3).Draw(t, "share"),
			end:   rapid.SampledFrom(append(m.ends, 1)).Draw(t, "end"),
		}
		key := fmt.Sprint("u", rapid.IntRange(0, 1).Draw(t, "key"))
		var items [2]*item
		for i, l := range m.limiters {
			items[i] = l.item(op, n, key, l.fixed[:limits])
			items[i].count, items[i].lending = count, more
		}
		m.store.execute(&run{items: items[:1]})
		require.NoError(t, items[0].err)
		reply := items[0].reply
		if op == opLease && reply[0] > 0 {
			m.ends = append(m.ends, reply[len(reply)-1])
		}
		together.items, want = append(together.items, items[1]), append(want, reply)
	}
	m.store.execute(&together)
	for i, it := range together.items {
		require.NoError(t, it.err)
		require.Equal(t, want[i], it.reply, "item %d, %c of %d for %d calls, %+v", i, it.op, it.n, it.count, it.lending)
	}
}
