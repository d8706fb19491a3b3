package ration_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// simSeed is a new seed, or that of RATION_SEED.
func simSeed(t testing.TB) uint64 {
	seed := rand.Uint64()
	if text := os.Getenv("RATION_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("RATION_SEED: %v", err)
		}
	}
	t.Logf("RATION_SEED=%d", seed)
	return seed
}

// TestSimulation has instances with wrong clocks, pauses, crashes and outages of Redis go through two tiers in
// virtual time, and holds every use against the strategy's promise. RATION_DECISIONS is the least number of decisions.
func TestSimulation(t *testing.T) {
	seed, want := simSeed(t), int64(1_000_000)
	if text := os.Getenv("RATION_DECISIONS"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatalf("RATION_DECISIONS: %v", err)
		}
		want = n
	}
	var decisions, local, commands, errors atomic.Int64
	for i := 0; (decisions.Load() < want || i < 24) && !t.Failed(); i += 2 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			for j := range 2 {
				t.Run(strconv.Itoa(j), func(t *testing.T) {
					t.Parallel()
					p := newSimPlan(seed, i+j, 240_000)
					synctest.Test(t, func(t *testing.T) {
						t.Logf("%v", p)
						w := runSim(t, p)
						sent := int64(0)
						for _, in := range append(w.alive, w.gone...) {
							sent += in.net.commands.Load()
						}
						t.Logf("%v: %d decisions, %d local, %d commands, %d errors", p, w.decisions.Load(), w.local.Load(), sent, w.errors.Load())
						decisions.Add(w.decisions.Load())
						local.Add(w.local.Load())
						commands.Add(sent)
						errors.Add(w.errors.Load())
					})
				})
			}
		})
	}
	t.Logf("%d decisions, %d of them in the process, %d errors, %d commands: %.4f a decision", decisions.Load(), local.Load(),
		errors.Load(), commands.Load(), float64(commands.Load())/float64(decisions.Load()))
}
