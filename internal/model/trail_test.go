package model

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rationgo/ration"
)

// TestTrailAgreesWithOracle holds the quick check against the slow one: on random uses, about half
// of them too many, with units given back in between, both find a fault or neither does.
func TestTrailAgreesWithOracle(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	broken := 0
	const rounds = 3000
	for round := range rounds {
		strategy := Strategy(1 + rng.IntN(3))
		window := time.Duration(1+rng.IntN(40)) * time.Microsecond
		limits := []ration.Limit{ration.Per(1+rng.Int64N(12), window)}
		oracle, trail := NewOracle(strategy), NewTrail(strategy, window)
		var want error
		for at := int64(1000); at < 1000+8*int64(window/time.Microsecond) && want == nil; at += 1 + rng.Int64N(12) {
			if rng.IntN(5) == 0 {
				n := 1 + rng.Int64N(4)
				oracle.Refund(at, n, limits)
				trail.Refund(at, n)
				continue
			}
			n := 1 + rng.Int64N(4)
			want = oracle.Grant(at, n, limits)
			trail.Use(at, n, limits[0].Units)
		}
		got := trail.Check()
		if (got == nil) != (want == nil) {
			t.Fatalf("round %d, %v, %v: the trail says %v, the oracle %v", round, strategy, limits, got, want)
		}
		if want != nil {
			broken++
		}
	}
	if broken < rounds/10 || broken > rounds*9/10 {
		t.Errorf("%d of %d rounds broke the promise: too few of a kind", broken, rounds)
	}
}
