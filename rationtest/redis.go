package rationtest

import (
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/fakeredis"
)

// Redis is an in-process Redis (miniredis) with one clock: TIME and the
// lifetimes of keys move together, and only when the test moves them. It's stopped
// by the test's cleanup. Its methods are safe for concurrent use.
type Redis struct {
	t      testing.TB
	server *fakeredis.Server
	client *redis.Client
}

// patience is a budget fit for a busy test machine.
const patience = 30 * time.Second

// neverOpens turns the breaker off.
var neverOpens = ration.WithBreaker(ration.Breaker{Failures: math.MaxInt32})

// Epoch is where the clock of a new [Redis] stands.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// NewRedis starts a Redis whose clock stands at [Epoch].
func NewRedis(t testing.TB) *Redis { return newRedis(t, fakeredis.Start) }

// NewRedisWithoutLifetimes is NewRedis on which no key ever expires, as on a
// plain miniredis and on a busy server that is late: no decision may depend on an
// expiry.
func NewRedisWithoutLifetimes(t testing.TB) *Redis { return newRedis(t, fakeredis.StartWithoutTTL) }

func newRedis(t testing.TB, start func(time.Time) (*fakeredis.Server, error)) *Redis {
	t.Helper()
	server, err := start(Epoch)
	if err != nil {
		t.Fatalf("rationtest: starting miniredis: %v", err)
	}
	r := &Redis{t: t, server: server, client: server.Client()}
	t.Cleanup(func() {
		r.client.Close()
		server.Close()
	})
	return r
}

// Client is a client of this Redis, closed by the test's cleanup.
func (r *Redis) Client() *redis.Client { return r.client }

// Addr is host:port, for clients the test makes itself.
func (r *Redis) Addr() string { return r.server.Addr() }

// Store is a new ration.Store on this Redis with two defaults fit for tests: a timeout of
// 30 s, for busy machines, and a breaker that never opens, since it would go by the
// computer's clock and not by this one. opts come after them. An option that Open refuses
// ends the test.
func (r *Redis) Store(opts ...ration.Option) *ration.Store {
	r.t.Helper()
	opts = append([]ration.Option{ration.WithTimeout(patience), neverOpens}, opts...)
	s, err := ration.Open(r.client, opts...)
	if err != nil {
		r.t.Fatalf("rationtest: %v", err)
	}
	return s
}

// Now is the clock's time.
func (r *Redis) Now() time.Time { return r.server.Now() }

// Advance moves the clock, and all lifetimes with it. Moving back (d < 0)
// revives nothing that has expired.
func (r *Redis) Advance(d time.Duration) { r.server.Advance(d) }

// SetTime moves the clock to t, as Advance does.
func (r *Redis) SetTime(t time.Time) { r.server.SetTime(t) }

// Keys lists the keys stored now, sorted.
func (r *Redis) Keys() []string { return r.server.Mini().Keys() }
