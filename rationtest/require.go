package rationtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rationgo/ration"
)

// RequireAllowed ends the test unless the call was let through, with no error. A decision made without
// Redis (Degraded) may let through too.
func RequireAllowed(t testing.TB, d ration.Decision, err error) {
	t.Helper()
	switch {
	case err != nil:
		t.Fatalf("want Allowed, got the error: %v", err)
	case !d.Allowed:
		t.Fatalf("want Allowed, got refused: %s", describe(d))
	}
}

// RequireRefused ends the test unless the call was refused. An error is not a refusal.
func RequireRefused(t testing.TB, d ration.Decision, err error) {
	t.Helper()
	switch {
	case err != nil:
		t.Fatalf("want refused, got the error: %v", err)
	case d.Allowed:
		t.Fatalf("want refused, got Allowed: %s", describe(d))
	}
}

// RequireRemaining ends the test unless so many units remain.
func RequireRemaining(t testing.TB, d ration.Decision, want int64) {
	t.Helper()
	if d.Remaining != want {
		t.Fatalf("want Remaining %d, got %d: %s", want, d.Remaining, describe(d))
	}
}

// RequireRetryAfter ends the test unless RetryAfter is want, exactly: 0 for what is Allowed,
// ration.Never for what can't succeed.
func RequireRetryAfter(t testing.TB, d ration.Decision, want time.Duration) {
	t.Helper()
	if d.RetryAfter != want {
		t.Fatalf("want RetryAfter %s, got %s: %s", wait(want), wait(d.RetryAfter), describe(d))
	}
}

// RequireSequence calls Allow once for each letter of want and ends the test where an answer
// differs: A is Allowed, R is refused. So "AAAR" is three calls that pass and one that doesn't.
func RequireSequence(t testing.TB, l ration.Limiter, key, want string) {
	t.Helper()
	if want == "" || strings.Trim(want, "AR") != "" {
		t.Fatalf("rationtest: RequireSequence takes a text of A and R, not %q", want)
	}
	got := make([]byte, 0, len(want))
	for i := range len(want) {
		d, err := l.Allow(t.Context(), key)
		if err != nil {
			t.Fatalf("want %s, got %s and then the error: %v", want, got, err)
		}
		letter := byte('R')
		if d.Allowed {
			letter = 'A'
		}
		if got = append(got, letter); letter != want[i] {
			t.Fatalf("want %s, got %s: %s", want, got, describe(d))
		}
	}
}

// maxRounds is how often Exhaust asks for more. A two-tier limiter gives its units in several parts.
const maxRounds = 100

// Exhaust takes all units that a subject has left, so that its next call is refused, and gives their
// number, which may be 0. It ends the test if there is no end of them, as with ration.FailOpen.
func Exhaust(t testing.TB, l ration.Limiter, key string) int64 {
	t.Helper()
	taken := int64(0)
	for range maxRounds {
		d, err := l.AllowUpTo(t.Context(), key, ration.MaxUnits)
		if err != nil {
			t.Fatalf("rationtest: Exhaust got %d units and then the error: %v", taken, err)
		}
		if !d.Allowed {
			return taken
		}
		taken += d.Granted
	}
	t.Fatalf("rationtest: Exhaust got %d units in %d calls and no refusal", taken, maxRounds)
	return taken
}

// describe is a decision in a line.
func describe(d ration.Decision) string {
	limit, degraded := "no limit", ""
	if d.Limit != (ration.Limit{}) {
		limit = d.Limit.String()
	}
	if d.Degraded {
		degraded = fmt.Sprintf(", degraded by: %v", d.Cause)
	}
	return fmt.Sprintf("%s, granted %d, remaining %d, retry after %s, decided by %v%s",
		limit, d.Granted, d.Remaining, wait(d.RetryAfter), d.Source, degraded)
}

func wait(d time.Duration) string {
	if d == ration.Never {
		return "never"
	}
	return d.String()
}
