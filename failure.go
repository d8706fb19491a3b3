package ration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// FailureClass says in what way Redis failed.
type FailureClass string

// The classes of failures.
const (
	ClassTimeout       FailureClass = "timeout"       // no answer within the budget
	ClassConnection    FailureClass = "connection"    // refused, cut, no free one in the client's pool
	ClassLoading       FailureClass = "loading"       // the server reads its data, or is busy with a script
	ClassReadOnly      FailureClass = "readonly"      // a replica, or a primary without enough replicas
	ClassMasterDown    FailureClass = "masterdown"    // a replica without its primary
	ClassCluster       FailureClass = "cluster"       // CLUSTERDOWN, a slot that moves, keys of different slots
	ClassMemory        FailureClass = "memory"        // OOM
	ClassMisconfigured FailureClass = "misconfigured" // ErrMisconfigured
	ClassReply         FailureClass = "reply"         // another error or a reply that makes no sense
	ClassClient        FailureClass = "client"        // a panic in the Redis client or its hooks
)

// ClassOf gives the class of an error that is ErrUnavailable, or of a degraded Decision's
// Cause; "" for any other error.
func ClassOf(err error) FailureClass {
	var failed *backendError
	if errors.As(err, &failed) {
		return failed.class
	}
	return ""
}

// backendError is ErrUnavailable with its cause, and ErrMisconfigured where
// waiting won't help.
type backendError struct {
	cause         error
	class         FailureClass
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
	return &backendError{class: ClassTimeout, cause: fmt.Errorf("%w: no answer within %v", errTimedOut, d)}
}

// unavailable wraps a failed run's error. The run's own context ending is the
// budget's end, not the caller's deadline. Some servers name the key in
// their refusal; a subject must not get into an error that way.
func (s *Store) unavailable(err error, items []*item) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errBudget(s.opts.timeout)
	}
	misconfigured, class := isMisconfigured(err), classify(err)
	if text := withoutKeys(err.Error(), items); text != err.Error() {
		err = errors.New(text)
	}
	return &backendError{cause: err, class: class, misconfigured: misconfigured}
}

// withoutKeys replaces keys in a text. Of an unknown command's arguments Redis quotes the first 128 bytes, which may end
// within a key: the rest of the text is cut off there.
func withoutKeys(text string, items []*item) string {
	for _, it := range items {
		for _, key := range it.keys {
			text = strings.ReplaceAll(text, key, "<key>")
		}
	}
	for _, it := range items {
		for _, key := range it.keys {
			base, _, tagged := strings.Cut(key, "{")
			if at := strings.Index(text, base+"{"); tagged && at >= 0 {
				text = text[:at] + "<key>"
			}
		}
	}
	return text
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
	for _, sign := range []string{"unknown command", "Unknown Redis command", "can't run this command", "can't access at least one of the keys",
		"Protocol error: unauthenticated"} { // what comes instead of NOAUTH where a command has many arguments
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}

// errPanic is a panic in the Redis client.
var errPanic = errors.New("panic in the Redis client")

// errReply is a reply that isn't the script's.
var errReply = errors.New("not the script's reply")

func classify(err error) FailureClass {
	var reply redis.Error
	var timeout interface{ Timeout() bool }
	switch {
	case isMisconfigured(err):
		return ClassMisconfigured
	case errors.Is(err, errPanic):
		return ClassClient
	case errors.Is(err, errReply):
		return ClassReply
	case errors.As(err, &reply):
		return classifyReply(reply.Error())
	case errors.As(err, &timeout) && timeout.Timeout():
		return ClassTimeout
	case strings.Contains(err.Error(), "redis: can't parse"), strings.Contains(err.Error(), "redis: invalid reply"):
		return ClassReply // go-redis has no type for it
	}
	return ClassConnection
}

// classifyReply goes by the error's code. Before Redis 7 that of a command inside the script
// comes after the script's own error.
func classifyReply(text string) FailureClass {
	code, rest, _ := strings.Cut(text, " ")
	if _, inner, ok := strings.Cut(rest, ": -"); ok && code == "ERR" {
		code, _, _ = strings.Cut(inner, " ")
	}
	switch code {
	case "LOADING", "BUSY":
		return ClassLoading
	case "READONLY", "NOREPLICAS", "MISCONF":
		return ClassReadOnly
	case "MASTERDOWN":
		return ClassMasterDown
	case "CLUSTERDOWN", "CROSSSLOT", "MOVED", "ASK", "TRYAGAIN":
		return ClassCluster
	case "OOM":
		return ClassMemory
	}
	return ClassReply
}
