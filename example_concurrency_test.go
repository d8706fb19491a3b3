package ration_test

import (
	"context"
	"fmt"

	"github.com/rationgo/ration"
)

// At most 2 exports of a tenant at once, over all instances.
func ExampleConcurrency_Do() {
	rdb, end := exampleRedis()
	defer end()
	ctx := context.Background()

	store, err := ration.Open(rdb)
	if err != nil {
		panic(err)
	}
	exports, err := ration.NewConcurrency(store, ration.ConcurrencyPolicy{Name: "exports", Limit: 2})
	if err != nil {
		panic(err)
	}
	d, err := exports.Do(ctx, "tenant-7", 1, func(ctx context.Context) error {
		// The export; it stops when ctx ends, because the permit was lost or for any other reason.
		fmt.Println("at work")
		return ctx.Err()
	})
	switch {
	case err != nil:
		fmt.Println("no answer, or the export's own error:", err)
	case !d.Allowed:
		fmt.Println("too many exports, try later")
	}
	// Output:
	// at work
}

// A permit by hand, for work that isn't one function.
func ExampleConcurrency_Acquire() {
	rdb, end := exampleRedis()
	defer end()
	ctx := context.Background()

	store, err := ration.Open(rdb)
	if err != nil {
		panic(err)
	}
	exports, err := ration.NewConcurrency(store, ration.ConcurrencyPolicy{Name: "exports", Limit: 2})
	if err != nil {
		panic(err)
	}
	var permits []*ration.Permit
	for range 3 {
		p, d, err := exports.Acquire(ctx, "tenant-7", 1)
		if err != nil {
			panic(err)
		}
		fmt.Println(d.Allowed, d.Remaining)
		permits = append(permits, p) // nil if refused
	}
	for _, p := range permits {
		if !p.Lost() {
			fmt.Println("a step of the work")
		}
		p.Release()
	}
	// Output:
	// true 1
	// true 0
	// false 0
	// a step of the work
	// a step of the work
}
