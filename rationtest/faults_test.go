package rationtest_test

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

// faults are limiters with one fault each, as a decorator around a sound one.
var faults = map[string]func(ration.Limiter, ration.Request, ration.Decision) ration.Decision{
	"none": func(_ ration.Limiter, _ ration.Request, d ration.Decision) ration.Decision { return d },
	"refused calls are charged": func(l ration.Limiter, r ration.Request, d ration.Decision) ration.Decision {
		if r.Op == ration.OpAllow && !d.Allowed {
			l.AllowUpTo(ctx, r.Key, r.N)
		}
		return d
	},
	"a peek charges": func(l ration.Limiter, r ration.Request, d ration.Decision) ration.Decision {
		if r.Op == ration.OpPeek {
			l.Allow(ctx, r.Key)
		}
		return d
	},
	"one more is admitted": func(_ ration.Limiter, r ration.Request, d ration.Decision) ration.Decision {
		if r.Op == ration.OpAllow && !d.Allowed && d.RetryAfter < d.Limit.Window/100 {
			d.Allowed, d.Granted, d.RetryAfter = true, r.N, 0
		}
		return d
	},
	"Remaining before the charge": func(_ ration.Limiter, _ ration.Request, d ration.Decision) ration.Decision {
		d.Remaining += d.Granted
		return d
	},
	"RetryAfter a millisecond late": func(_ ration.Limiter, _ ration.Request, d ration.Decision) ration.Decision {
		if d.RetryAfter > 0 && d.RetryAfter != ration.Never {
			d.RetryAfter += time.Millisecond
		}
		return d
	},
	"a wait for what never passes": func(_ ration.Limiter, _ ration.Request, d ration.Decision) ration.Decision {
		d.RetryAfter = min(d.RetryAfter, time.Hour)
		return d
	},
}

// The suite passes a sound limiter and fails each fault: a check that can't
// fail would be none. The suite runs in a process of its own, since it fails its test.
func TestExerciseFindsFaults(t *testing.T) {
	if fault := os.Getenv("RATIONTEST_FAULT"); fault != "" {
		rationtest.Exercise(t, func(t *testing.T) rationtest.Harness { return faulty(t, faults[fault]) })
		return
	}
	for fault := range faults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			suite := exec.Command(os.Args[0], "-test.run=^TestExerciseFindsFaults$")
			suite.Env = append(os.Environ(), "RATIONTEST_FAULT="+fault)
			out, err := suite.CombinedOutput()
			if fault == "none" {
				require.NoError(t, err, "%s", out)
				return
			}
			require.Error(t, err)
			require.Contains(t, string(out), "--- FAIL: TestExerciseFindsFaults/")
		})
	}
}

func faulty(t *testing.T, fault func(ration.Limiter, ration.Request, ration.Decision) ration.Decision) rationtest.Harness {
	r := rationtest.NewRedis(t)
	store := r.Store()
	return rationtest.Harness{
		New: func(p ration.Policy) (ration.Limiter, error) {
			l, err := ration.NewSlidingLog(store, p)
			if err != nil {
				return nil, err
			}
			return ration.LimiterFunc(func(ctx context.Context, r ration.Request) (ration.Decision, error) {
				d, err := r.Do(ctx, l)
				if err == nil {
					d = fault(l, r, d)
				}
				return d, err
			}), nil
		},
		Now: r.Now, Advance: r.Advance, Keys: r.Keys, Shared: true,
	}
}
