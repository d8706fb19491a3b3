package ration_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/fakeredis"
	"github.com/rationgo/ration/internal/model"
	"github.com/rationgo/ration/internal/redistest"
)

// TestPropertyConcurrencyFakeRedis plays random histories of permits on a Redis in memory.
func TestPropertyConcurrencyFakeRedis(t *testing.T) {
	for name, start := range map[string]func(time.Time) (*fakeredis.Server, error){
		"keys expire": fakeredis.Start, "keys stay": fakeredis.StartWithoutTTL,
	} {
		t.Run(name, func(t *testing.T) {
			srv, err := start(time.Unix(1e9, 0))
			require.NoError(t, err)
			t.Cleanup(srv.Close)
			rdb := srv.Client()
			t.Cleanup(func() { rdb.Close() })
			playPermits(t, rdb, srv.SetTime, oneIn(2))
		})
	}
}

// TestPropertyConcurrencyRealRedis plays them on a redis-server.
func TestPropertyConcurrencyRealRedis(t *testing.T) {
	srv := redistest.Start(t, redistest.WithClock(time.Unix(1e9, 0)))
	playPermits(t, srv.Client(t), srv.SetTime, func(prop func(*rapid.T)) func(*rapid.T) { return prop })
}

// holders are some instances, two with a TTL each, that hold permits of two subjects.
type holders struct {
	setTime func(time.Time)
	rdb     *redis.Client
	now     int64
	limit   int64
	of      []*ration.Concurrency
	ttls    []time.Duration
	flying  map[string]*model.InFlight
	permits []held
}

// held is a permit that was given.
type held struct {
	p   *ration.Permit
	key string
	ttl int64
}

func playPermits(t *testing.T, rdb *redis.Client, setTime func(time.Time), some func(func(*rapid.T)) func(*rapid.T)) {
	rapid.Check(t, some(func(t *rapid.T) {
		defer rdb.FlushAll(ctx)
		store, err := ration.Open(rdb, ration.WithTimeout(time.Minute))
		require.NoError(t, err)
		defer store.Close()
		h := &holders{setTime: setTime, rdb: rdb, limit: rapid.Int64Range(0, 12).Draw(t, "limit"), flying: map[string]*model.InFlight{}}
		// So long that no renewal is due by the real clock while a history is played.
		h.ttls = []time.Duration{time.Hour, 20 * time.Hour}
		for _, ttl := range h.ttls {
			c, err := ration.NewConcurrency(store, ration.ConcurrencyPolicy{Name: "p", TTL: ttl,
				LimitFor: func(context.Context, string) (int64, error) { return h.limit, nil }})
			require.NoError(t, err)
			h.of = append(h.of, c)
		}
		h.move(t, rapid.SampledFrom([]int64{1e15, 1_700_000_000_000_000, 1_234_567_890_123_456}).Draw(t, "start"))
		t.Repeat(map[string]func(*rapid.T){
			"acquire": h.acquire, "acquire again": h.acquire, "keep": h.keep, "release": h.release, "move": h.moveOn,
			"to an end": h.moveToEnd, "limit": h.changeLimit, "": h.check,
		})
	}))
}

func (h *holders) subject(t *rapid.T) (string, *model.InFlight) {
	key := rapid.SampledFrom([]string{"a", "b{x}:total"}).Draw(t, "key")
	if h.flying[key] == nil {
		h.flying[key] = &model.InFlight{}
	}
	return key, h.flying[key]
}

func (h *holders) acquire(t *rapid.T) {
	key, flying := h.subject(t)
	i := rapid.IntRange(0, 1).Draw(t, "instance")
	n := rapid.OneOf(rapid.Just[int64](1), rapid.Int64Range(1, 5), rapid.SampledFrom([]int64{max(1, h.limit), h.limit + 1, ration.MaxUnits, 1 << 62})).Draw(t, "n")
	want := ration.Decision{Limit: ration.Limit{Name: "in-flight", Units: h.limit}, Source: ration.Redis}
	if retry := flying.RetryAfter(h.now, n, h.limit); retry < 0 {
		want.RetryAfter = ration.Never
	} else {
		want.RetryAfter = time.Duration(retry) * time.Microsecond
	}
	p, d, err := h.of[i].Acquire(ctx, key, n)
	require.NoError(t, err)
	if p != nil {
		require.True(t, flying.Acquire(h.now, ration.PermitID(p), n, h.limit, micros(h.ttls[i])), "it doesn't fit")
		want.Allowed, want.Granted = true, n
		h.permits = append(h.permits, held{p, key, micros(h.ttls[i])})
	}
	want.Remaining = max(0, h.limit-flying.Units(h.now))
	want.ResetAfter = time.Duration(flying.ResetAfter(h.now)) * time.Microsecond
	require.Equal(t, want, d, "%d of %q under %d at %d: %+v", n, key, h.limit, h.now, *flying)
	require.Equal(t, want.RetryAfter == 0, p != nil)
}

func (h *holders) some(t *rapid.T) (int, held) {
	if len(h.permits) == 0 {
		t.Skip("no permit")
	}
	i := rapid.IntRange(0, len(h.permits)-1).Draw(t, "permit")
	return i, h.permits[i]
}

func (h *holders) keep(t *rapid.T) {
	_, one := h.some(t)
	if one.p.Lost() {
		t.Skip("it's known to be lost")
	}
	want := h.flying[one.key].Keep(h.now, ration.PermitID(one.p), one.ttl)
	require.Equal(t, want, ration.RenewNow(one.p), "renewal at %d: %+v", h.now, *h.flying[one.key])
}

func (h *holders) release(t *rapid.T) {
	i, one := h.some(t)
	one.p.Release()
	h.flying[one.key].Release(h.now, ration.PermitID(one.p))
	h.permits = slices.Delete(h.permits, i, i+1)
}

func (h *holders) changeLimit(t *rapid.T) { h.limit = rapid.Int64Range(0, 12).Draw(t, "limit") }

func (h *holders) moveOn(t *rapid.T) {
	h.move(t, rapid.OneOf(rapid.Int64Range(0, 2), rapid.Int64Range(0, micros(time.Hour)), rapid.Int64Range(0, micros(21*time.Hour))).Draw(t, "step"))
}

// moveToEnd moves the clock to a lease's end, or just before it.
func (h *holders) moveToEnd(t *rapid.T) {
	_, one := h.some(t)
	for _, l := range *h.flying[one.key] {
		if l.ID == ration.PermitID(one.p) {
			h.move(t, max(0, l.Ends-h.now-rapid.Int64Range(0, 1).Draw(t, "before")))
		}
	}
}

func (h *holders) move(t *rapid.T, step int64) {
	h.now += step
	t.Logf("clock %d", h.now)
	h.setTime(time.UnixMicro(h.now))
}

// check demands after each step that Redis counts what the model does, and has lifetimes that last.
func (h *holders) check(t *rapid.T) {
	for key, flying := range h.flying {
		units, err := h.of[0].InFlight(ctx, key)
		require.NoError(t, err)
		require.Equal(t, flying.Units(h.now), units, "%q at %d: %+v", key, h.now, *flying)
	}
	for _, key := range h.rdb.Keys(ctx, "*").Val() {
		lifetime := h.rdb.PTTL(ctx, key).Val()
		require.GreaterOrEqual(t, lifetime, time.Duration(0), "without a lifetime: %s", key)
		if strings.HasSuffix(key, "{a}") {
			require.GreaterOrEqual(t, micros(lifetime), h.flying["a"].ResetAfter(h.now), "it goes before its leases do")
		}
	}
}
