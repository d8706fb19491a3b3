// Package stats has what the benchmarks do with their figures.
package stats

import (
	"context"
	"regexp"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// Median gives the middle value, of an even number the mean of the middle two,
// of none 0. It leaves values as they are.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// Ratio gives the median of a round's a to the same round's b: what disturbed
// both of them in a round drops out. Both need the same number of rounds.
func Ratio(a, b []float64) float64 {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = a[i] / b[i]
	}
	return Median(ratios)
}

// Command is what a server counted of one command.
type Command struct{ Calls, Micros float64 }

var commandStat = regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+),usec=(\d+)`)

// Commands gives INFO commandstats by name, in small letters. A command that a
// script calls counts, too, and its time is in both.
func Commands(ctx context.Context, rdb *redis.Client) (map[string]Command, error) {
	text, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, err
	}
	return parse(text), nil
}

func parse(text string) map[string]Command {
	all := map[string]Command{}
	for _, m := range commandStat.FindAllStringSubmatch(text, -1) {
		calls, _ := strconv.ParseFloat(m[2], 64) // digits, says the expression
		micros, _ := strconv.ParseFloat(m[3], 64)
		all[m[1]] = Command{calls, micros}
	}
	return all
}
