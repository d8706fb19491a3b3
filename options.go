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
	batch      Batch
	alone      bool
	breaker    Breaker
	onFailure  FailureRule
	observer   Observer
	denied     int // entries of the denied-key cache
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

// Batch bounds the runs that concurrent calls share; see [WithBatch]. A zero
// field means its default.
type Batch struct {
	// Items is the most that one run asks, different calls each; equal calls are one
	// item, however many. The default is 64. A run of so many holds the server for
	// about a sixth of a millisecond with the fixed window, half a one with the log, two thirds with the buckets.
	Items int
	// Bytes is about the most that one run sends, unless a single item is larger.
	// The default is 64 KiB.
	Bytes int
	// Runs is the most that may be under way at once to one server. The default is 3: one is
	// made ready while others are away, so that the server need not wait for us.
	Runs int
}

var defaultBatch = Batch{Items: 64, Bytes: 64 << 10, Runs: 3}

// WithBatch sets the bounds of the runs that concurrent calls share. Negative
// numbers are ErrInvalidOption.
func WithBatch(b Batch) Option {
	return optionFunc(func(o *options) error {
		if b.Items < 0 || b.Bytes < 0 || b.Runs < 0 {
			return fmt.Errorf("%w: WithBatch: %+v has a negative number", ErrInvalidOption, b)
		}
		for _, f := range []struct{ to, from *int }{{&o.batch.Items, &b.Items}, {&o.batch.Bytes, &b.Bytes}, {&o.batch.Runs, &b.Runs}} {
			if *f.from > 0 {
				*f.to = *f.from
			}
		}
		return nil
	})
}

// WithoutBatching sends every call alone, in a command of its own. No answer
// differs; one Redis does a fraction of the work.
func WithoutBatching() Option {
	return optionFunc(func(o *options) error {
		o.alone = true
		return nil
	})
}
