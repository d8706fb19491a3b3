package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/rationgo/ration"
)

// units a minute are more than any run can use up: every call is admitted.
const units = 1_000_000_000

const (
	redisRate = "redis_rate"
	ulule     = "ulule/limiter"
	throttle  = "throttled"
	fixed     = "ration fixed"
	log       = "ration log"
	compact   = "ration compact"
	buckets   = "ration buckets"
	alone     = "ration alone"
	leased    = "ration lease"
	shared    = "ration share"
	denied    = "ration denycache"
	open      = "ration open"
	closed    = "ration closed"
	local     = "ration local"
)

// entry is one way to decide.
type entry struct {
	name   string
	decide decide // hot, even and zipf
	refuse decide // refused
	fail   decide // outage
	// sends are the commands it sends, as INFO calls them. Scripts call
	// commands as well, which INFO counts likewise: those of inner are called once
	// by each script run, too.
	sends, inner []string
}

// decide is a call. ok is what its workload expects of it, mostly that it's admitted.
type decide func(subject string) (ok bool, err error)

// under gives the entry's call under a workload, nil if it has none there.
func (e *entry) under(workload string) decide {
	switch workload {
	case refused:
		return e.refuse
	case outage:
		return e.fail
	}
	return e.decide
}

var script = []string{"evalsha", "eval"}

// once is a limit that the first call uses up for longer than any run lasts.
var once = ration.PerDay(1)

// admits and refuses make calls of a limiter.
func admits(l ration.Limiter) decide {
	return func(subject string) (bool, error) {
		d, err := l.Allow(context.Background(), subject)
		return d.Allowed, err
	}
}

func refuses(l ration.Limiter) decide { return refusesWhenUsed(admits(l)) }

func refusesWhenUsed(call decide) decide {
	_, _ = call("user-0")
	return func(subject string) (bool, error) {
		allowed, err := call(subject)
		return !allowed, err
	}
}

type newLimiter func(*ration.Store, ration.Policy) (ration.Limiter, error)

// maker makes ration's limiters; after an error it makes none.
type maker struct {
	rdb *redis.Client
	err error
}

// limiter makes one with a store of its own. Its budget is not to end a call when the machine is busy.
func (m *maker) limiter(prefix string, make newLimiter, lim ration.Limit, opts ...ration.Option) ration.Limiter {
	if m.err != nil {
		return nil
	}
	store, err := ration.Open(m.rdb, append([]ration.Option{ration.WithTimeout(10 * time.Second), ration.WithPrefix(prefix)}, opts...)...)
	if err != nil {
		m.err = err
		return nil
	}
	l, err := make(store, ration.Policy{Name: "api", Limits: []ration.Limit{lim}})
	m.err = err
	return l
}

func (m *maker) twoTier(prefix string, opts ...ration.TierOption) ration.Limiter {
	global := m.limiter(prefix, ration.NewFixedWindow, ration.PerMinute(units))
	if m.err != nil {
		return nil
	}
	l, err := ration.NewTwoTier(global, opts...)
	m.err = err
	return l
}

// entries are the rivals and ration, the one that all are compared to first.
func entries(rdb *redis.Client) ([]*entry, error) {
	all, err := rivals(rdb)
	if err != nil {
		return nil, err
	}
	m := &maker{rdb: rdb}
	for _, r := range []struct {
		name string
		make newLimiter
		lim  ration.Limit
		opts []ration.Option
	}{
		{fixed, ration.NewFixedWindow, ration.PerMinute(units), nil},
		{log, ration.NewSlidingLog, ration.PerSecond(units), nil},
		{compact, ration.NewCompactLog, ration.PerSecond(units), nil},
		{buckets, ration.NewSlidingBuckets, ration.PerMinute(units), nil},
		{alone, ration.NewFixedWindow, ration.PerMinute(units), []ration.Option{ration.WithoutBatching()}},
	} {
		e := &entry{name: r.name, sends: script, decide: admits(m.limiter(strings.ReplaceAll(r.name, " ", "-"), r.make, r.lim, r.opts...))}
		if r.name != alone && m.err == nil {
			e.refuse = refuses(m.limiter("refused-"+strings.ReplaceAll(r.name, " ", "-"), r.make, once))
		}
		all = append(all, e)
	}
	all = append(all,
		&entry{name: leased, sends: script, decide: admits(m.twoTier("lease"))},
		&entry{name: shared, sends: script, decide: admits(m.twoTier("share", ration.WithShare(0.5), ration.WithInstances(1)))})
	if m.err != nil {
		return nil, m.err
	}
	all = append(all, &entry{name: denied, sends: script,
		refuse: refuses(m.limiter("denied", ration.NewFixedWindow, once, ration.WithDenyCache(1000)))})
	return append(all, m.rules()...), m.err
}

// rules are the failure rules, where nothing listens.
func (m *maker) rules() []*entry {
	down := maker{rdb: redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true, DialerRetries: 1})}
	rule := func(f ration.FailureRule) ration.Limiter {
		return down.limiter("down", ration.NewFixedWindow, ration.PerMinute(units), ration.WithOnFailure(f))
	}
	all := []*entry{
		{name: open, sends: script, fail: admits(rule(ration.FailOpen))},
		{name: closed, sends: script, fail: refuses(rule(ration.FailClosed))},
		{name: local, sends: script, fail: admits(rule(ration.FailLocal(1)))},
	}
	m.err = errors.Join(m.err, down.err)
	return all
}

func rivals(rdb *redis.Client) ([]*entry, error) {
	ctx := context.Background()
	rate := redis_rate.NewLimiter(rdb)
	perMinute := redis_rate.PerMinute(units)

	store, err := ululestore.NewStore(rdb)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ulule, err)
	}
	window := limiter.New(store, limiter.Rate{Period: time.Minute, Limit: units})

	cas, err := throttledstore.NewCtx(rdb, "throttled:")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", throttle, err)
	}
	gcra, err := throttled.NewGCRARateLimiterCtx(cas, throttled.RateQuota{MaxRate: throttled.PerMin(units), MaxBurst: units - 1})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", throttle, err)
	}
	return []*entry{
		{name: redisRate, sends: script, decide: func(subject string) (bool, error) {
			r, err := rate.Allow(ctx, subject, perMinute)
			return err == nil && r.Allowed > 0, err
		}, refuse: refusesWhenUsed(func(subject string) (bool, error) {
			r, err := rate.Allow(ctx, "refused-"+subject, redis_rate.Limit{Rate: 1, Burst: 1, Period: 24 * time.Hour})
			return err == nil && r.Allowed > 0, err
		})},
		{name: ulule, sends: script, decide: func(subject string) (bool, error) {
			r, err := window.Get(ctx, subject)
			return !r.Reached, err
		}},
		{name: throttle, sends: []string{"time", "get", "setnx", "expire", "eval"}, inner: []string{"get"},
			decide: func(subject string) (bool, error) {
				limited, _, err := gcra.RateLimitCtx(ctx, subject, 1)
				return !limited, err
			}},
	}, nil
}
