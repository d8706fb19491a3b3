package ration

import (
	"fmt"
	"strings"
	"time"
)

// Option changes how [Open] sets up a [Store].
type Option interface{ apply(*options) error }

type optionFunc func(*options) error

func (f optionFunc) apply(o *options) error { return f(o) }

type options struct {
	prefix     string
	timeout    time.Duration
	clientTime bool
}

const (
	defaultPrefix  = "ration"
	defaultTimeout = 100 * time.Millisecond
	maxPrefix      = 64
)

// WithPrefix sets what every Redis key begins with: 1 to 64 bytes, no braces,
// blanks or control characters. The default is "ration". Stores of one prefix
// share their counts. The prefix is taken literally everywhere.
func WithPrefix(prefix string) Option {
	return optionFunc(func(o *options) error {
		if prefix == "" || len(prefix) > maxPrefix {
			return fmt.Errorf("%w: WithPrefix: %d bytes, not 1 to %d", ErrInvalidOption, len(prefix), maxPrefix)
		}
		if strings.ContainsRune(prefix, '%') || needsEscape(prefix) {
			return fmt.Errorf("%w: WithPrefix: %q has a brace, a blank, a percent sign or a control character", ErrInvalidOption, prefix)
		}
		o.prefix = prefix
		return nil
	})
}

// WithTimeout sets one call's whole budget for Redis, waiting for a connection
// included. The default is 100 ms, the least 1 ms. It's kept even where the
// client ignores contexts; a caller's earlier deadline is kept too. A call whose
// budget is over gives ErrUnavailable and was charged once or not at all.
func WithTimeout(d time.Duration) Option {
	return optionFunc(func(o *options) error {
		if d < time.Millisecond {
			return fmt.Errorf("%w: WithTimeout: %v is below 1ms", ErrInvalidOption, d)
		}
		o.timeout = d
		return nil
	})
}

// WithClientTime takes the time from this process's clock, for servers that
// refuse TIME inside scripts. It costs the promise across instances: where their clocks
// differ by d, a window may let through what falls into d twice, and
// waiting times are off by d. Without it the server's clock decides alone.
func WithClientTime() Option {
	return optionFunc(func(o *options) error {
		o.clientTime = true
		return nil
	})
}
