package rationtest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

// A token bucket's limit is a limit, also while Redis is away.
func TestFakeOfABucket(t *testing.T) {
	l := ration.PerMinute(100)
	l.Burst = 10
	f := rationtest.NewFake(t, rationtest.Unavailable(), rationtest.Failed(ration.FailOpen), rationtest.Allowed(50), rationtest.Refused(time.Second)).WithLimit(l)
	_, err := f.Allow(t.Context(), "u")
	t.Log(err)
	if err != nil {
		require.NotErrorIs(t, err, ration.ErrInvalidPolicy)
	}
	d, err := f.Allow(t.Context(), "u")
	t.Log(d, err)
	d, _ = f.Allow(t.Context(), "u")
	t.Log(d)
	require.LessOrEqual(t, d.Remaining, max(d.Limit.Burst, 50))
	require.GreaterOrEqual(t, d.Limit.Burst, d.Remaining, "more remain than a bucket of %d holds", d.Limit.Burst)
	d, _ = f.AllowN(t.Context(), "u", 30)
	t.Log(d)
}
