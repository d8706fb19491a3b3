package main

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/fakeredis"
)

// budget is how long one decision may take: no answer is given without Redis,
// so it's long.
const budget = 10 * time.Second

// replay decides on all requests, one after another, on a fresh Redis inside
// this process whose clock stands at each request's time. It stops at the
// first error. Where another strategy is to be compared, it's told to the observer.
//
// Lifetimes of keys don't run: no decision depends on them, and to let them
// run costs a pass over all keys whenever the clock moves.
func (s *settings) replay(ctx context.Context, st strategy, t *traffic, o ration.Observer, each func(int, ration.Decision) error) error {
	if len(t.requests) == 0 {
		return nil
	}
	server, err := fakeredis.StartWithoutTTL(time.UnixMicro(t.requests[0].micros))
	if err != nil {
		return err
	}
	defer server.Close()
	rdb := server.Client(func(o *redis.Options) { o.ReadTimeout = budget })
	defer rdb.Close()
	limiter, store, err := open(rdb, "ration", st, s.policyOf(st))
	if err != nil {
		return err
	}
	defer store.Close()
	if s.other != nil {
		// Under another prefix: a strategy may be compared with itself.
		other, store, err := open(rdb, "compare", *s.other, s.policyOf(*s.other))
		if err != nil {
			return err
		}
		defer store.Close()
		if limiter, err = ration.NewCompare(limiter, other, ration.WithObserver(o)); err != nil {
			return err
		}
	}
	if s.shadow {
		if limiter, err = ration.NewShadow(limiter, ration.WithObserver(o)); err != nil {
			return err
		}
	}
	for i, r := range t.requests {
		server.SetTime(time.UnixMicro(r.micros))
		d, err := limiter.AllowN(ctx, t.keys[r.key], r.n)
		if err != nil {
			return err
		}
		if err := each(i, d); err != nil {
			return err
		}
	}
	return nil
}

// policyOf is the policy without what only the token bucket has, where it's compared to others.
func (s *settings) policyOf(st strategy) ration.Policy {
	p := s.policy
	token := func(st strategy) bool { return st.name == "token" }
	if !token(st) && (slices.ContainsFunc(s.strategies, token) || s.other != nil && token(*s.other)) {
		p.Limits = slices.Clone(p.Limits)
		for i := range p.Limits {
			p.Limits[i].Burst = 0
		}
	}
	return p
}

// open makes a limiter on a store of its own.
func open(rdb *redis.Client, prefix string, st strategy, p ration.Policy) (ration.Limiter, *ration.Store, error) {
	store, err := ration.Open(rdb, ration.WithTimeout(budget), ration.WithPrefix(prefix))
	if err != nil {
		return nil, nil, err
	}
	limiter, err := st.open(store, p)
	if err != nil {
		store.Close()
		return nil, nil, err
	}
	return limiter, store, nil
}
