package ration_test

import (
	"context"
	"math/big"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// muldivTriples makes triples a, b, c: at the edges of what a Lua number holds, of all sizes,
// and with products around 2^53 and quotients around it.
func muldivTriples(rng *rand.Rand, n int) [][3]int64 {
	edges := []int64{0, 1, 2, 3, 1<<26 - 1, 1 << 26, 1<<26 + 1, 1 << 27, 94906265, 94906266, 94906267,
		1_000_000, 86_400_000_000, 1_576_800_000_000_000, 1 << 52, 1<<52 + 1, 1<<53 - 2, 1<<53 - 1, 1 << 53}
	var triples [][3]int64
	for _, a := range edges {
		for _, b := range edges {
			for _, c := range edges[1:] {
				triples = append(triples, [3]int64{a, b, c})
			}
		}
	}
	any := func() int64 { return 1 + rng.Int64N(1<<rng.IntN(54)) }
	for range n {
		a, b, c := any(), any(), any()
		switch rng.IntN(4) {
		case 0: // a product near 2^53, so that either road is taken
			b = min(1<<53, max(0, 1<<53/a+rng.Int64N(3)-1))
		case 1: // a divisor near the larger factor: the sum of a rest and a part is near 2^54
			c = max(1, 1<<53-rng.Int64N(1<<rng.IntN(54)))
		}
		triples = append(triples, [3]int64{a, b, c})
	}
	return triples
}

func TestMulDiv(t *testing.T) {
	const batch = 2000
	seed := rand.Uint64()
	t.Logf("seed: %d", seed)
	script := ration.ScriptPart("muldiv") + `
		local reply = {}
		for i = 1, #ARGV, 3 do
			local q, r = muldiv(ARGV[i] + 0, ARGV[i + 1] + 0, ARGV[i + 2] + 0)
			reply[#reply + 1] = string.format('%d', q)
			reply[#reply + 1] = string.format('%d', r)
		end
		return reply`
	for server, start := range backends {
		if server == "miniredis-without-lifetimes" {
			continue
		}
		t.Run(server, func(t *testing.T) {
			rdb := start(t).rdb
			triples := muldivTriples(rand.New(rand.NewPCG(seed, 1)), 40_000)
			for len(triples) > 0 {
				now := triples[:min(batch, len(triples))]
				triples = triples[len(now):]
				var args []any
				for _, triple := range now {
					args = append(args, triple[0], triple[1], triple[2])
				}
				reply, err := rdb.Eval(context.Background(), script, nil, args...).StringSlice()
				require.NoError(t, err)
				require.Len(t, reply, 2*len(now))
				for i, triple := range now {
					q, r := bigMulDiv(triple)
					if got := [2]string{reply[2*i], reply[2*i+1]}; got != [2]string{q, r} {
						t.Fatalf("muldiv%v is %v, not %s and %s", triple, got, q, r)
					}
				}
			}
		})
	}
}

// bigMulDiv is muldiv by math/big.
func bigMulDiv(triple [3]int64) (quotient, rest string) {
	product := new(big.Int).Mul(big.NewInt(triple[0]), big.NewInt(triple[1]))
	q, r := new(big.Int).QuoRem(product, big.NewInt(triple[2]), new(big.Int))
	if q.Cmp(big.NewInt(ration.MaxUnits)) > 0 {
		return strconv.FormatInt(ration.MaxUnits, 10), r.String()
	}
	return q.String(), r.String()
}
