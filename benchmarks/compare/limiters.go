package main

import (
	"context"
	"fmt"
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
	buckets   = "ration buckets"
	alone     = "ration alone"
)

// entry is one way to decide.
type entry struct {
	name   string
	decide func(subject string) (admitted bool, err error)
	// sends are the commands it sends, as INFO calls them. Scripts call
	// commands as well, which INFO counts likewise: those of inner are called once
	// by each script run, too.
	sends, inner []string
}

var script = []string{"evalsha", "eval"}

// entries are the rivals and ration, the one that all are compared to first.
func entries(rdb *redis.Client) ([]*entry, error) {
	rivals, err := rivals(rdb)
	if err != nil {
		return nil, err
	}
	// The budget is not to end a call when the machine is busy.
	shared, err := ration.Open(rdb, ration.WithTimeout(10*time.Second))
	if err != nil {
		return nil, err
	}
	single, err := ration.Open(rdb, ration.WithTimeout(10*time.Second), ration.WithPrefix("alone"), ration.WithoutBatching())
	if err != nil {
		return nil, err
	}
	type newLimiter func(*ration.Store, ration.Policy) (ration.Limiter, error)
	for _, r := range []struct {
		name   string
		store  *ration.Store
		make   newLimiter
		window time.Duration
	}{
		{fixed, shared, ration.NewFixedWindow, time.Minute},
		{log, shared, ration.NewSlidingLog, time.Second},
		{buckets, shared, ration.NewSlidingBuckets, time.Minute},
		{alone, single, ration.NewFixedWindow, time.Minute},
	} {
		l, err := r.make(r.store, ration.Policy{Name: "api", Limits: []ration.Limit{ration.Per(units, r.window)}})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		rivals = append(rivals, &entry{name: r.name, sends: script, decide: func(subject string) (bool, error) {
			d, err := l.Allow(context.Background(), subject)
			return d.Allowed, err
		}})
	}
	return rivals, nil
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
		}},
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
