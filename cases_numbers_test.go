package ration_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
	"github.com/rationgo/ration/rationtest"
)

func TestB30OneInstantManyEntries(t *testing.T) {
	on(t, "log", func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerSecond(5))
		tl.letters("AAAAADDDDD")
		require.EqualValues(t, 5+1, b.rdb.ZCard(ctx, tl.keys()[0]).Val(), "five entries and their total")

		// Two processes: two stores, each with names of its own.
		first := newTimeline(t, b, strategy, ration.PerSecond(5))
		second := first.make
		other, err := second(b.store(t, ration.WithPrefix(first.prefix)), ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerSecond(5)}})
		require.NoError(t, err)
		admitted := 0
		for i := range 20 {
			l := []ration.Limiter{first.l, other}[i%2]
			d, err := l.Allow(ctx, "u")
			require.NoError(t, err)
			admitted += int(d.Granted)
		}
		require.Equal(t, 5, admitted)
	})
}

func TestB32PartsOfTime(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := policyTimeline(t, b, strategy, ration.Policy{Name: "p", Slots: 10, Limits: []ration.Limit{ration.Per(1, 10*time.Millisecond)}})
		tl.start = tl.start.Truncate(time.Second).Add(100 * time.Second)
		tl.at(0.000999)
		tl.letters("A")
		tl.at(0.001000)
		tl.letters("D")
		tl.at(0.009000)
		tl.letters("D")
		tl.at(0.011000)
		if strategy == "counter" {
			tl.letters("D")
			tl.at(0.020000)
		}
		tl.letters("A")
	})
}

func TestB33LargeLimits(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		for _, units := range []int64{1 << 31, 1<<32 + 5, 1 << 53} {
			tl := newTimeline(t, b, strategy, ration.PerMinute(units))
			d := tl.letters("A")
			require.Equal(t, units, d.Limit.Units)
			require.Equal(t, units-1, d.Remaining)
			tl.costs(units, "D")
		}
		tl := newTimeline(t, b, strategy, ration.PerMinute(1<<53))
		require.Zero(t, tl.costs(1<<53, "A").Remaining)
		tl.costs(1<<53, "D")
		tl.letters("D")
		for _, units := range []int64{1<<53 + 1, math.MaxInt64} {
			_, err := tl.make(tl.store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(units)}})
			require.ErrorIs(t, err, ration.ErrInvalidPolicy)
		}
	})
}

// replyHook answers every command with a value of the test's.
type replyHook struct{ value any }

func (replyHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h replyHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		if err, ok := h.value.(error); ok {
			cmd.SetErr(err)
			return err
		}
		cmd.(interface{ SetVal(any) }).SetVal(h.value)
		return nil
	}
}
func (replyHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestB34OddReplies(t *testing.T) {
	odd := map[string]any{
		"nil":                nil,
		"empty":              []any{},
		"one too few":        []any{int64(1), int64(1), int64(0)},
		"one too many":       []any{int64(1), int64(1), int64(0), int64(0), int64(0)},
		"a float":            []any{1.0, int64(1), int64(0), int64(0)},
		"a fraction":         []any{int64(1), 1.9, int64(0), int64(0)},
		"a numeric text":     []any{int64(1), "1", int64(0), int64(0)},
		"a text":             []any{"yes", int64(1), int64(0), int64(0)},
		"a bool":             []any{true, int64(1), int64(0), int64(0)},
		"a map":              map[any]any{"a": int64(1)},
		"an error inside":    []any{int64(1), errors.New("ERR inside"), int64(0), int64(0)},
		"an array inside":    []any{[]any{int64(1)}, int64(1), int64(0), int64(0)},
		"a nil inside":       []any{int64(1), nil, int64(0), int64(0)},
		"a negative number":  []any{int64(1), int64(-1), int64(0), int64(0)},
		"more than asked":    []any{int64(2), int64(2), int64(0), int64(0)},
		"beyond 2^53":        []any{int64(1), int64(math.MaxInt64), int64(0), int64(0)},
		"a status":           "OK",
		"an integer":         int64(1),
		"an error":           errors.New("ERR odd"),
		"a nil error's kind": redis.Nil,
	}
	for name, value := range odd {
		t.Run(name, func(t *testing.T) {
			rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
			defer rdb.Close()
			rdb.AddHook(replyHook{value})
			store, err := ration.Open(rdb)
			require.NoError(t, err)
			for strategy, newLimiter := range strategies {
				if name == "one too many" && strategy == "token" {
					continue // that's what its script answers
				}
				l, err := newLimiter(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(5)}})
				require.NoError(t, err)
				d, err := l.Allow(ctx, "secret-subject")
				require.ErrorIs(t, err, ration.ErrUnavailable)
				require.NotContains(t, err.Error(), "secret-subject")
				require.False(t, d.Allowed)
				require.Zero(t, d)
			}
		})
	}
}

func TestB36NoExponents(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.Per(100_000_000, 100_000*time.Second))
		tl.costs(99_999_999, "A")
		tl.letters("AD")
		_, err := tl.l.Refund(ctx, "u", 50_000_000)
		require.NoError(t, err)
		tl.costs(50_000_000, "AD")
		for _, key := range tl.keys() {
			values := []string{b.rdb.Get(ctx, key).Val()}
			switch strategy {
			case "compact": // its numbers are no text
				values = nil
			case "log":
				values = b.rdb.ZRange(ctx, key, 0, -1).Val()
			}
			for _, value := range values {
				value = value[strings.Index(value, ":")+1:] // an entry's id may have an e
				require.NotRegexp(t, `\de|\.\d*e`, value)
			}
		}
	})
}

func TestB37LargeCosts(t *testing.T) {
	on(t, every, func(t *testing.T, b backend, strategy string) {
		tl := newTimeline(t, b, strategy, ration.PerMinute(50_000))
		tl.costs(10_000, "A")
		require.EqualValues(t, 40_000, tl.costs(40_001, "D").Remaining)
		tl.costs(40_000, "A")
		tl.letters("D")
		d, err := tl.l.AllowN(ctx, "v", 50_000)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	})
}

// Nine thousand entries at once, more than Lua's unpack takes: given back,
// expired, and walked for a waiting time.
func TestB37ManyEntries(t *testing.T) {
	s := redistest.Start(t, redistest.WithClock(rationtest.Epoch))
	tl := newTimeline(t, backend{s, s.Client(t)}, "log", ration.PerMinute(9000))
	fill := func() {
		for i := range 9000 {
			if i == 4500 {
				tl.b.Advance(time.Second)
			}
			d, err := tl.l.Allow(ctx, "u")
			require.NoError(t, err)
			require.True(t, d.Allowed)
		}
	}
	fill()
	require.Equal(t, time.Minute, tl.costs(9000, "D").RetryAfter)
	require.Equal(t, 59*time.Second, tl.costs(4500, "D").RetryAfter)
	d, err := tl.l.Refund(ctx, "u", 8999)
	require.NoError(t, err)
	require.EqualValues(t, 8999, d.Granted)
	require.EqualValues(t, 2, tl.b.rdb.ZCard(ctx, tl.keys()[0]).Val(), "one entry and the total")
	require.NoError(t, tl.l.Reset(ctx, "u"))
	fill()
	tl.b.Advance(59 * time.Second)
	require.EqualValues(t, 4499, tl.letters("A").Remaining)
	require.EqualValues(t, 4502, tl.b.rdb.ZCard(ctx, tl.keys()[0]).Val())
}

func TestB40TimeForbidden(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "timeless", "on", "nopass", "~*", "+@all", "-time").Err())
	rdb := s.Client(t, func(o *redis.Options) { o.Username, o.Password = "timeless", "any" })
	for name, newLimiter := range strategies {
		t.Run(name, func(t *testing.T) {
			p := ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerHour(2)}}
			store, err := ration.Open(rdb, ration.WithTimeout(10*time.Second))
			require.NoError(t, err)
			l, err := newLimiter(store, p)
			require.NoError(t, err)
			d, err := l.Allow(ctx, "u")
			require.ErrorIs(t, err, ration.ErrUnavailable)
			require.ErrorIs(t, err, ration.ErrMisconfigured)
			require.ErrorContains(t, err, "TIME")
			require.False(t, d.Allowed)

			store, err = ration.Open(rdb, ration.WithTimeout(10*time.Second), ration.WithClientTime())
			require.NoError(t, err)
			l, err = newLimiter(store, p)
			require.NoError(t, err)
			letters := ""
			for range 3 {
				d, err := l.Allow(ctx, fmt.Sprint("u", name))
				require.NoError(t, err)
				letters += string(letter(d))
			}
			// The hour may turn between two calls, then three pass the fixed window.
			require.Contains(t, []string{"AAD", "AAA"}, letters)
			if name != "fixed" {
				require.True(t, strings.HasSuffix(letters, "D"))
			}
		})
	}
}
