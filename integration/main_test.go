// Package integration proves on real servers and under real faults what the
// library promises: that concurrent calls, which share script runs, get the
// answers a serial order would have given; that the conformance suite holds
// however runs are cut; and what a lost reply, a silent server, a flushed
// script cache or an ended context costs. It's a module of its own, so that
// what it needs for that is no dependency of the library.
package integration

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/model"
	"github.com/rationgo/ration/internal/redistest"
	"github.com/rationgo/ration/rationtest"
)

var ctx = context.Background()

// TestMain makes this process a worker, if a test has started it as one. The proxy forgets goroutines of
// connections that it has cut; all others must be gone.
func TestMain(m *testing.M) {
	if exit, is := asWorker(); is {
		os.Exit(exit)
	}
	if exit, is := asHolder(); is {
		os.Exit(exit)
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).read"))
}

// strategies are the Redis strategies, each with what it has to answer.
var strategies = map[string]strategy{
	"fixed":   {ration.NewFixedWindow, model.FixedWindow, 1, 3, true},
	"log":     {ration.NewSlidingLog, model.SlidingLog, 2, 3, true},
	"buckets": {ration.NewSlidingBuckets, model.SlidingBuckets, 1, 3, true},
	"compact": {ration.NewCompactLog, model.SlidingLog, 1, 3, false},
	"counter": {ration.NewSlidingCounter, model.SlidingCounter, 1, 3, false},
}

// bucket isn't among them: the histories' sequential model lists what counts and until when, and the faults' tests read
// off a wide window what was charged. A bucket has no such list, and fills meanwhile.
var bucket = strategy{ration.NewTokenBucket, model.TokenBucket, 1, 4, false}

// leased are those of them that NewTwoTier takes.
var leased = func() map[string]strategy {
	some := maps.Clone(strategies)
	maps.DeleteFunc(some, func(_ string, st strategy) bool { return !st.leases })
	return some
}()

type strategy struct {
	limiter func(*ration.Store, ration.Policy) (ration.Limiter, error)
	model   model.Strategy
	header  int // arguments of its script before the first item
	fields  int // and for each limit
	leases  bool
}

// each runs a test for every strategy. Tests that are in nobody's way are parallel; those that
// measure time or count goroutines have the process to themselves.
func each(t *testing.T, run func(t *testing.T, st strategy)) {
	eachOf(t, strategies, run)
}

func eachOf(t *testing.T, some map[string]strategy, run func(t *testing.T, st strategy)) {
	for name, st := range some {
		t.Run(name, func(t *testing.T) { run(t, st) })
	}
}

// server is a Redis whose clock only the test moves.
type server interface {
	Now() time.Time
	Advance(time.Duration)
	Addr() string
}

// servers are the kinds of them.
var servers = map[string]func(t testing.TB) server{
	"miniredis": func(t testing.TB) server { return rationtest.NewRedis(t) },
	"redis": func(t testing.TB) server {
		return redistest.Start(t, redistest.WithClock(rationtest.Epoch))
	},
}

// client makes a client that is closed when t ends.
func client(t testing.TB, addr string, opts ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{Addr: addr}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// obedient makes a client end its I/O with the context; then the library carries lone calls
// in another way.
func obedient(yes bool) func(*redis.Options) {
	return func(o *redis.Options) { o.ContextTimeoutEnabled = yes }
}

// eachClient runs a test for every strategy with either kind of client.
func eachClient(t *testing.T, run func(t *testing.T, st strategy, kind func(*redis.Options))) {
	each(t, func(t *testing.T, st strategy) {
		for name, yes := range map[string]bool{"usual client": false, "obedient client": true} {
			t.Run(name, func(t *testing.T) { run(t, st, obedient(yes)) })
		}
	})
}

// open makes a store with a budget that a busy machine keeps and no breaker, unless opts say otherwise.
func open(t testing.TB, rdb redis.UniversalClient, opts ...ration.Option) *ration.Store {
	t.Helper()
	store, err := ration.Open(rdb, append([]ration.Option{ration.WithTimeout(bound), noBreaker}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// noBreaker has every call go to Redis, whatever became of those before.
var noBreaker = ration.WithBreaker(ration.Breaker{Failures: math.MaxInt32})

// bound is how long a test waits for what must happen, far longer than it takes.
const bound = 30 * time.Second

// century is a window that doesn't turn while a test runs on the real clock.
const century = 24 * 365 * 40 * time.Hour

// of makes a limiter of one limit that lasts a century.
func (st strategy) of(t testing.TB, store *ration.Store, units int64) ration.Limiter {
	t.Helper()
	return st.under(t, store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.Per(units, century)}})
}

func (st strategy) under(t testing.TB, store *ration.Store, p ration.Policy) ration.Limiter {
	t.Helper()
	l, err := st.limiter(store, p)
	require.NoError(t, err)
	return l
}

// used is what a subject has used of its units, as a store of its own on a client
// of its own sees it.
func (st strategy) used(t testing.TB, addr, key string, units int64) int64 {
	t.Helper()
	d, err := st.of(t, open(t, client(t, addr)), units).Peek(ctx, key)
	require.NoError(t, err)
	return units - d.Remaining
}

// until polls until ready says so.
func until(t testing.TB, what string, ready func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bound); !ready(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain: %s", bound, what)
		}
	}
}

// stacks gives what all goroutines are doing.
func stacks() string {
	buf := make([]byte, 16<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// goroutines counts the goroutines that are inside a function.
func goroutines(function string) (n int) {
	for stack := range strings.SplitSeq(stacks(), "\n\n") {
		if strings.Contains(stack, function) {
			n++
		}
	}
	return n
}

var asking = regexp.MustCompile(`(?m)^goroutine \d+ \[(select|chan receive)[^\]]*\]:\n(?:.+\n){0,10}?github\.com/rationgo/ration\.\(\*lane\)\.ask\(`)

// awaitCalls polls until so many calls in this process wait for their answers:
// a goroutine that does is parked in the library's lane.ask.
func awaitCalls(t testing.TB, n int) {
	t.Helper()
	until(t, fmt.Sprintf("%d calls under way", n), func() bool {
		return len(asking.FindAllString(stacks(), -1)) >= n
	})
}

// seeded gives a source of chance and prints its seed; RATION_SEED sets it.
func seeded(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	if text := os.Getenv("RATION_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("seed: RATION_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

var prefixes atomic.Int64

// freshName is a key prefix no other test has.
func freshName() string { return fmt.Sprintf("t%d", prefixes.Add(1)) }
