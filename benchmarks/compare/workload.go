package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
)

const (
	subjects = 10_000
	zipfS    = 1.1
	orderLen = 1 << 16
)

// workload is whom the calls are for: the subjects' numbers in an order that is
// drawn beforehand, so that drawing costs the measurement nothing.
type workload struct {
	name  string
	order []uint16
}

// Under hot, even and zipf every call is admitted. Under refused none is: one subject's limit is
// used up. Under outage nothing listens where Redis should be, and the failure rule decides.
var workloadNames = []string{"hot", "even", "zipf", refused, outage}

const (
	refused = "refused"
	outage  = "outage"
)

// newWorkload draws the same order each time.
func newWorkload(name string) (workload, error) {
	w := workload{name: name, order: make([]uint16, orderLen)}
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, zipfS, 1, subjects-1)
	for i := range w.order {
		switch name {
		case "hot", refused, outage:
		case "even":
			w.order[i] = uint16(rng.IntN(subjects))
		case "zipf":
			w.order[i] = uint16(zipf.Uint64())
		default:
			return w, fmt.Errorf("no workload is called %q", name)
		}
	}
	return w, nil
}

// names are the subjects.
func names() []string {
	all := make([]string, subjects)
	for i := range all {
		all[i] = "user-" + strconv.Itoa(i)
	}
	return all
}
