package ration_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
	"github.com/rationgo/ration/rationtest"
)

func TestB61NewLimitActsAtOnce(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(100))
		tl.letters("AA")
		tl.l = tl.limiter(ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(10)}})
		d := tl.letters("A")
		require.EqualValues(t, 10, d.Limit.Units)
		require.EqualValues(t, 7, d.Remaining)
		tl.letters("AAAAAAAD")
		tl.l = tl.limiter(ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(100)}})
		require.EqualValues(t, 89, tl.letters("A").Remaining)
	})
}

func TestB62RaisedLimitHelps(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerHour(10))
		tl.letters("AAAAAAAAAA" + strings.Repeat("D", 40))
		tl.l = tl.limiter(ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(20)}})
		require.EqualValues(t, 9, tl.letters("A").Remaining)
		tl.letters("AAAAAAAAAD")
	})
}

func TestB66NewLimiterKeepsTheCount(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(5))
		for i := range 6 {
			tl.l = tl.limiter(ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(5)}})
			tl.at(float64(i) / 10)
			tl.letters([]string{"A", "A", "A", "A", "A", "D"}[i])
		}
	})
}

func TestB68PoliciesAndStrategiesAreApart(t *testing.T) {
	for server, start := range backends {
		t.Run(server, func(t *testing.T) {
			store := start(t).store(t)
			for _, name := range []string{"login", "search"} {
				for _, newLimiter := range strategies {
					l, err := newLimiter(store, ration.Policy{Name: name, Limits: []ration.Limit{ration.PerHour(5)}})
					require.NoError(t, err)
					for i := range 6 {
						d, err := l.Allow(ctx, "u1")
						require.NoError(t, err)
						require.Equal(t, i < 5, d.Allowed)
					}
				}
			}
		})
	}
}

func TestB69PartsOfAKeyDontRunTogether(t *testing.T) {
	b := backends["miniredis"](t)
	for strategy, newLimiter := range strategies {
		store := b.store(t, ration.WithPrefix(freshPrefix()))
		for _, use := range [][2]string{
			{"x", "login:u1"}, {"x.login", "u1"}, {"user", "127.0.0.1"}, {"ip", "127.0.0.1"},
			{"p", "a:b"}, {"p", "c"}, {"p", "a"}, {"p", "b:c"}, {"p", ":"}, {"p", "u:0"}, {"p", "u"}, {"p", "u}:0"},
		} {
			l, err := newLimiter(store, ration.Policy{Name: use[0], Slots: 3, Limits: []ration.Limit{ration.PerHour(1)}})
			require.NoError(t, err)
			d, err := l.Allow(ctx, use[1])
			require.NoError(t, err)
			require.True(t, d.Allowed, "%s: policy %s, subject %s", strategy, use[0], use[1])
		}
	}
}

func TestB71EmptySubject(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(5))
		_, err := tl.l.Allow(ctx, "")
		require.ErrorIs(t, err, ration.ErrInvalidKey)
		require.Empty(t, tl.keys())
	})
}

// hostile are subjects made to break keys, logs and hash tags.
var hostile = []string{
	strings.Repeat("a", 1<<20), strings.Repeat("a", 1<<20-1) + "b", "a\nb", "a\x00b", "a b", "\xff\xfe", "*", "[x]", "😀",
	"{", "}", "{}", "{}x", "a}b", "}{", "{x}1", "{x}2", ":", "%", strings.Repeat("{", 100), strings.Repeat("é", 64),
}

func TestB72HostileSubjects(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(1))
		for _, subject := range hostile {
			d, err := tl.l.Allow(ctx, subject)
			require.NoError(t, err)
			require.True(t, d.Allowed, "%.20q shares a count", subject)
		}
		keys := tl.keys()
		require.Len(t, keys, len(hostile))
		for _, key := range keys {
			require.LessOrEqual(t, len(key), 200)
			require.NotRegexp(t, `[\s[:cntrl:]]`, key)
		}
	})
}

// keyHook records the KEYS of every script call, and that nothing else is sent.
type keyHook struct {
	mu    sync.Mutex
	calls [][]string
	other []string
}

func (*keyHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *keyHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.record(cmd)
		return next(ctx, cmd)
	}
}
func (h *keyHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.record(cmd)
		}
		return next(ctx, cmds)
	}
}

func (h *keyHook) record(cmd redis.Cmder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	args := cmd.Args()
	switch name := cmd.Name(); name {
	case "evalsha", "eval":
	case "hello", "client": // go-redis' own greeting on a new connection
		return
	default:
		h.other = append(h.other, name)
		return
	}
	var keys []string
	for _, key := range args[3 : 3+args[2].(int)] {
		keys = append(keys, key.(string))
	}
	h.calls = append(h.calls, keys)
}

// take gives the keys of each script call since the last take.
func (h *keyHook) take() [][]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer func() { h.calls = nil }()
	return h.calls
}

// everyCall makes a call of each kind.
func everyCall(t *testing.T, l ration.Limiter, subject string) {
	t.Helper()
	for _, r := range []ration.Request{
		{Op: ration.OpPeek}, {Op: ration.OpAllow, N: 2}, {Op: ration.OpAllow, N: 1000}, {Op: ration.OpAllowUpTo, N: 1000},
		{Op: ration.OpRefund, N: 2}, {Op: ration.OpAllow, N: 1}, {Op: ration.OpReset}, {Op: ration.OpAllow, N: 1},
	} {
		r.Key = subject
		_, err := r.Do(ctx, l)
		require.NoError(t, err)
	}
	if !ration.Leases(l) {
		return
	}
	_, _, end, err := ration.LeaseUnits(ctx, l, subject, 3, 1, 10*time.Second)
	require.NoError(t, err)
	_, err = ration.GiveBackUnits(ctx, l, subject, 1, end)
	require.NoError(t, err)
	_, err = ration.ShedUnits(ctx, l, subject, 1)
	require.NoError(t, err)
}

// The keys of a call lie in one hash slot, on a real cluster too.
func TestB74OneSlotACall(t *testing.T) {
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client(t)
	hook := &keyHook{}
	rdb.AddHook(hook)
	store, err := ration.Open(rdb, ration.WithTimeout(10*time.Second))
	require.NoError(t, err)
	slots := map[int64]bool{}
	for name, newLimiter := range strategies {
		l, err := newLimiter(store, ration.Policy{
			Name: name, Slots: 5, Limits: []ration.Limit{ration.PerMinute(5), ration.PerHour(7), ration.PerDay(9)},
		})
		require.NoError(t, err)
		for i, subject := range slices.Concat(hostile, []string{"a", "b", "c"}) {
			everyCall(t, l, subject)
			for _, keys := range hook.take() {
				require.NotEmpty(t, keys)
				first := rdb.ClusterKeySlot(ctx, keys[0]).Val()
				slots[first] = true
				for _, key := range keys {
					require.Equal(t, first, rdb.ClusterKeySlot(ctx, key).Val(), "subject %d, %s", i, name)
				}
			}
		}
	}
	require.Greater(t, len(slots), 10, "the subjects are spread over the cluster")
	t.Run("B14", func(t *testing.T) { refusedCallsOnRealTime(t, store) })
}

// refusedCallsOnRealTime is B14 where the clock can't be moved: a caller that
// never stops asking gets its two calls in each window.
func refusedCallsOnRealTime(t *testing.T, store *ration.Store) {
	for name, newLimiter := range strategies {
		l, err := newLimiter(store, ration.Policy{Name: "b14-" + name, Slots: 10, Limits: []ration.Limit{ration.Per(2, 200*time.Millisecond)}})
		require.NoError(t, err)
		var admitted []time.Time
		for began := time.Now(); time.Since(began) < time.Second; {
			d, err := l.Allow(ctx, "u")
			require.NoError(t, err)
			if d.Allowed {
				admitted = append(admitted, time.Now())
			}
		}
		least := 8
		if name == "counter" { // one in each window
			least = 5
		}
		require.GreaterOrEqual(t, len(admitted), least, name)
		require.LessOrEqual(t, len(admitted), 12, name)
	}
}

func TestB76BracesInTheSubject(t *testing.T) {
	b := backends["miniredis"](t)
	hook := &keyHook{}
	b.rdb.AddHook(hook)
	for name, newLimiter := range strategies {
		store := b.store(t, ration.WithPrefix(freshPrefix()))
		l, err := newLimiter(store, ration.Policy{Name: name, Slots: 3, Limits: []ration.Limit{ration.PerMinute(5), ration.PerHour(7)}})
		require.NoError(t, err)
		for _, subject := range hostile {
			everyCall(t, l, subject)
			for _, keys := range hook.take() {
				for _, key := range keys {
					require.Equal(t, hashTag(keys[0]), hashTag(key))
					require.Equal(t, 1, strings.Count(key, "{"))
					require.Equal(t, 1, strings.Count(key, "}"))
				}
			}
		}
	}
}

// hashTag is what Redis Cluster hashes of a key: between the first { and the next }.
func hashTag(key string) string {
	_, rest, found := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !found || !closed || tag == "" {
		return key
	}
	return tag
}

// commandsNeeded is what an ACL user needs; the README names the same.
const commandsNeeded = "+evalsha +eval +time +get +getrange +set +setrange +incrby +mget +del +pttl +pexpire " +
	"+zadd +zrem +zrange +zrevrange +zrangebyscore +zremrangebyscore +zcard +zscore"

func TestB77OnlyDeclaredKeysAndDocumentedCommands(t *testing.T) {
	s := redistest.Start(t, redistest.WithClock(rationtest.Epoch))
	rules := []any{"ACL", "SETUSER", "limited", "on", "nopass", "resetkeys", "~app:*", "nocommands"}
	for _, rule := range strings.Fields(commandsNeeded) {
		rules = append(rules, rule)
	}
	require.NoError(t, s.Client(t).Do(ctx, rules...).Err())
	rdb := s.Client(t, func(o *redis.Options) { o.Username, o.Password = "limited", "any" })
	hook := &keyHook{}
	rdb.AddHook(hook)
	store, err := ration.Open(rdb, ration.WithPrefix("app"), ration.WithTimeout(10*time.Second))
	require.NoError(t, err)
	for name, newLimiter := range strategies {
		l, err := newLimiter(store, ration.Policy{Name: name, Slots: 5, Limits: []ration.Limit{ration.PerMinute(5), ration.PerHour(9)}})
		require.NoError(t, err)
		for i := range 30 {
			everyCall(t, l, fmt.Sprint("subject ", i%3))
			s.Advance(time.Duration(i) * time.Second)
		}
		for _, keys := range hook.take() {
			for _, key := range keys {
				require.True(t, strings.HasPrefix(key, "app:"+name+":"), key)
			}
		}
	}
	global, err := ration.NewFixedWindow(store, ration.Policy{Name: "tiers", Limits: []ration.Limit{ration.PerHour(1000)}})
	require.NoError(t, err)
	tiers, err := ration.NewTwoTier(global)
	require.NoError(t, err)
	for range 30 {
		_, err := tiers.Allow(ctx, "subject")
		require.NoError(t, err)
	}
	require.NoError(t, store.Close()) // its last heartbeat is sent by then
	for _, keys := range hook.take() {
		require.True(t, strings.HasPrefix(keys[0], "app:tiers:"), keys[0])
	}
	require.Empty(t, hook.other, "commands sent beside EVALSHA and EVAL")
}
