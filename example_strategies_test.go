package ration_test

import (
	"context"
	"fmt"
	"time"

	"github.com/rationgo/ration"
)

func exampleStore() (*ration.Store, func()) {
	rdb, end := exampleRedis()
	store, err := ration.Open(rdb)
	if err != nil {
		panic(err)
	}
	return store, end
}

func ok[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Ten a second, and at most 3 at once.
func ExampleNewTokenBucket() {
	store, end := exampleStore()
	defer end()
	api := ok(ration.NewTokenBucket(store, ration.Policy{
		Name:   "api",
		Limits: []ration.Limit{{Units: 10, Window: time.Second, Burst: 3}},
	}))
	for range 4 {
		d := ok(api.Allow(context.Background(), "user-42"))
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter)
	}
	// Output:
	// true 2 0s
	// true 1 0s
	// true 0 0s
	// false 0 100ms
}

// A leaky bucket: over all instances one call leaves every 20 ms, in the order in which they came.
func ExampleWait() {
	store, end := exampleStore()
	defer end()
	mails := ok(ration.NewTokenBucket(store, ration.Policy{
		Name:   "mails",
		Limits: []ration.Limit{{Units: 50, Window: time.Second, Burst: 1}},
	}))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for i := range 3 {
		if d, err := ration.Wait(ctx, mails, "provider", 1); err != nil || !d.Allowed {
			return // the context has ended, or would before the turn
		}
		fmt.Println("mail", i)
	}
	// Output:
	// mail 0
	// mail 1
	// mail 2
}

// A token bucket for the second and a fixed window for the day, charged together or not at all.
func ExampleCombine() {
	store, end := exampleStore()
	defer end()
	burst := ok(ration.NewTokenBucket(store, ration.Policy{Name: "burst", Limits: []ration.Limit{ration.PerSecond(5)}}))
	quota := ok(ration.NewFixedWindow(store, ration.Policy{Name: "quota", Limits: []ration.Limit{ration.PerDay(1000)}}))
	api := ok(ration.Combine(burst, quota))

	d := ok(api.AllowN(context.Background(), "user-42", 2))
	for _, l := range d.Limits {
		fmt.Println(l.Limit, l.Remaining)
	}
	// Output:
	// 5/1s 3
	// 1000/24h0m0s 998
}

// Beyond 2 at once, and up to 3 more after a quiet time, calls are served in a simpler way.
func ExampleNewThreeColor() {
	store, end := exampleStore()
	defer end()
	search := ok(ration.NewThreeColor(store, ration.ThreeColor{
		Name:      "search",
		Committed: ration.Limit{Units: 10, Window: time.Hour, Burst: 2},
		Excess:    3,
	}))
	for range 6 {
		switch d := ok(search.Allow(context.Background(), "user-42")); d.Color {
		case ration.Green:
			fmt.Println("the whole answer")
		case ration.Yellow:
			fmt.Println("one from the cache")
		default:
			fmt.Println("refused")
		}
	}
	// Output:
	// the whole answer
	// the whole answer
	// one from the cache
	// one from the cache
	// one from the cache
	// refused
}
