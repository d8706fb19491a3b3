package stats

import (
	"maps"
	"slices"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{7}, 7},
		{[]float64{9, 1}, 5},
		{[]float64{3, 1, 2}, 2},
		{[]float64{100, 1, 3, 2}, 2.5},
	} {
		before := slices.Clone(test.values)
		if got := Median(test.values); got != test.want {
			t.Errorf("Median(%v) is %v, not %v", test.values, got, test.want)
		}
		if !slices.Equal(before, test.values) {
			t.Errorf("Median changed %v to %v", before, test.values)
		}
	}
}

// The second round was slow for both: it must not show.
func TestRatioIsOfTheSameRound(t *testing.T) {
	if got := Ratio([]float64{200, 20, 220}, []float64{100, 10, 100}); got != 2 {
		t.Errorf("the ratio is %v, not 2", got)
	}
	if got := Ratio(nil, nil); got != 0 {
		t.Errorf("the ratio of nothing is %v", got)
	}
}

func TestParse(t *testing.T) {
	got := parse("# Commandstats\r\n" +
		"cmdstat_evalsha:calls=12,usec=345,usec_per_call=28.75,rejected_calls=0,failed_calls=0\r\n" +
		"cmdstat_client|setinfo:calls=2,usec=3,usec_per_call=1.50,rejected_calls=0,failed_calls=0\r\n")
	want := map[string]Command{"evalsha": {12, 345}, "client|setinfo": {2, 3}}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, not %v", got, want)
	}
}
