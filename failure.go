package ration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// backendError is ErrUnavailable with its cause, and ErrMisconfigured where
// waiting won't help.
type backendError struct {
	cause         error
	misconfigured bool
}

func (e *backendError) Error() string {
	head := ErrUnavailable
	if e.misconfigured {
		head = ErrMisconfigured
	}
	return head.Error() + ": " + e.cause.Error()
}

func (e *backendError) Unwrap() []error {
	if e.misconfigured {
		return []error{ErrUnavailable, ErrMisconfigured, e.cause}
	}
	return []error{ErrUnavailable, e.cause}
}

// errTimedOut is deliberately not context.DeadlineExceeded: the caller's own
// deadline may not have passed.
var errTimedOut = errors.New("time is up")

func errBudget(d time.Duration) error {
	return &backendError{cause: fmt.Errorf("%w: no answer within %v", errTimedOut, d)}
}

// unavailable wraps a failed run's error. The run's own context ending is the
// budget's end, not the caller's deadline. Some servers name the key in
// their refusal; a subject must not get into an error that way.
func (s *Store) unavailable(err error, items []*item) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errBudget(s.opts.timeout)
	}
	misconfigured := isMisconfigured(err)
	for _, it := range items {
		for _, key := range it.keys {
			if strings.Contains(err.Error(), key) {
				err = errors.New(strings.ReplaceAll(err.Error(), key, "<key>"))
			}
		}
	}
	return &backendError{cause: err, misconfigured: misconfigured}
}

// isMisconfigured tells refusals that stay until somebody changes the
// server's settings. A command forbidden inside a script comes without the code NOPERM.
func isMisconfigured(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text := reply.Error()
	for _, sign := range []string{"NOPERM", "NOAUTH", "WRONGPASS", "NOTIME", "WRONGTYPE"} {
		if strings.HasPrefix(text, sign+" ") {
			return true
		}
	}
	for _, sign := range []string{"unknown command", "Unknown Redis command", "can't run this command", "can't access at least one of the keys"} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}
