package ration_test

import (
	"context"
	"fmt"

	"github.com/rationgo/ration"
)

// refusals prints what a limit that is tried out would have refused.
type refusals struct{ ration.NopObserver }

func (refusals) Shadowed(e ration.ShadowEvent) {
	fmt.Printf("%s: %v of %d units would be refused by %v\n", e.Name, e.Op, e.N, e.Limit)
}

// A new limit on real traffic that refuses nobody yet.
func ExampleNewShadow() {
	limiter, err := ration.NewLocal(ration.Policy{Name: "export", Limits: []ration.Limit{ration.PerHour(2)}})
	if err != nil {
		panic(err)
	}
	shadow, err := ration.NewShadow(limiter, ration.WithObserver(refusals{}))
	if err != nil {
		panic(err)
	}
	for range 3 {
		d, err := shadow.Allow(context.Background(), "ann")
		fmt.Println(d.Allowed, d.Shadowed, err)
	}
	// Output:
	// true false <nil>
	// true false <nil>
	// export: AllowN of 1 units would be refused by 2/1h0m0s
	// true true <nil>
}

// shares counts how two limiters differ. A service counts in its metrics, and locks.
type shares struct {
	ration.NopObserver
	kinds map[ration.CompareKind]int
}

func (s shares) Compared(e ration.CompareEvent) { s.kinds[e.Kind()]++ }

// Would a tighter limit refuse more of the traffic there is?
func ExampleNewCompare() {
	of := func(name string, units int64) ration.Limiter {
		l, err := ration.NewLocal(ration.Policy{Name: name, Limits: []ration.Limit{ration.PerHour(units)}})
		if err != nil {
			panic(err)
		}
		return l
	}
	seen := shares{kinds: map[ration.CompareKind]int{}}
	limiter, err := ration.NewCompare(of("export", 4), of("export-tight", 3), ration.WithObserver(seen))
	if err != nil {
		panic(err)
	}
	for range 6 {
		if _, err := limiter.Allow(context.Background(), "ann"); err != nil {
			panic(err)
		}
	}
	fmt.Println(seen.kinds)
	// Output: map[both allowed:3 both refused:2 only first:1]
}
