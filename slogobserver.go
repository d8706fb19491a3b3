package ration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/rationgo/ration/internal/nils"
)

// NewSlogObserver gives an [Observer] that logs, for [WithObserver]:
//
//   - Warn: a run that got no answer from Redis; a breaker that opened, also again after a probe.
//     An outage makes a few of these a second, and one in some seconds while the breaker is open.
//   - Error: such a run that failed because of settings ([ErrMisconfigured]).
//   - Info: a breaker that closed.
//   - Debug: a breaker that probes; units of blocks that are lost; refusals that had to go from the
//     denied-key cache. Of these an outage or a flood may make thousands.
//
// Decisions are logged only with [WithDecisionLevels]; at the level of those refused also what [NewShadow] let through
// and where the two limiters of [NewCompare] differ, but for peeks. An event whose level is disabled costs a few
// nanoseconds and allocates nothing. Events have no context, so handlers get context.Background().
//
// The attributes are policy, op, units, granted, verdict (allowed, refused, done or error; that of a peek is
// what an Allow would have got), source, limit, degraded, latency, class, calls, err, from and cooldown, as
// far as they are known. The subject is in none; the text of an error that isn't this
// package's own, such as LimitsFor's, may name it and is left out.
//
// A nil logger is ErrInvalidOption, as are bad options; nil options are passed over. For the default logger
// give slog.Default().
func NewSlogObserver(logger *slog.Logger, opts ...SlogOption) (Observer, error) {
	if logger == nil {
		return nil, fmt.Errorf("%w: NewSlogObserver needs a logger, not nil", ErrInvalidOption)
	}
	o := &slogObserver{logger: logger}
	for _, opt := range opts {
		if opt == nil {
			continue
		}
		if err := opt.applySlog(o); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// SlogOption changes what [NewSlogObserver] logs.
type SlogOption interface{ applySlog(*slogObserver) error }

type slogOptionFunc func(*slogObserver) error

func (f slogOptionFunc) applySlog(o *slogObserver) error { return f(o) }

// DecisionLevels are the levels that decisions are logged at; see [WithDecisionLevels]. nil means that
// such decisions aren't logged. A *slog.LevelVar may be changed at any time.
type DecisionLevels struct {
	Allowed slog.Leveler // and peeks, refunds and resets, whatever they found
	Refused slog.Leveler
	Errors  slog.Leveler // the call gave an error, mistakes and ended contexts included
}

// WithDecisionLevels logs decisions too, each at a level. By default none is: a busy service makes
// thousands a second.
//
//	ration.WithDecisionLevels(ration.DecisionLevels{Refused: slog.LevelInfo, Allowed: slog.LevelDebug})
//
// A nil pointer as a level is ErrInvalidOption.
func WithDecisionLevels(l DecisionLevels) SlogOption {
	return slogOptionFunc(func(o *slogObserver) error {
		for _, level := range []slog.Leveler{l.Allowed, l.Refused, l.Errors} {
			if level != nil && nils.Is(level) {
				return fmt.Errorf("%w: WithDecisionLevels: a nil %T", ErrInvalidOption, level)
			}
		}
		o.levels = l
		return nil
	})
}

type slogObserver struct {
	NopObserver
	logger *slog.Logger
	levels DecisionLevels
}

// enabled is asked before anything is made ready.
func (o *slogObserver) enabled(level slog.Level) bool {
	return o.logger.Enabled(context.Background(), level)
}

func (o *slogObserver) log(level slog.Level, text string, attrs ...slog.Attr) {
	o.logger.LogAttrs(context.Background(), level, text, attrs...)
}

func (o *slogObserver) Decided(e DecisionEvent) {
	leveler, verdict := o.verdict(&e)
	if leveler == nil {
		return
	}
	if level := leveler.Level(); o.enabled(level) {
		o.decided(level, verdict, &e)
	}
}

// verdict is what came of a call, and its level.
func (o *slogObserver) verdict(e *DecisionEvent) (slog.Leveler, string) {
	switch {
	case e.Err != nil:
		return o.levels.Errors, "error"
	case e.Op == OpRefund || e.Op == OpReset:
		return o.levels.Allowed, "done"
	case e.Allowed:
		return o.levels.Allowed, "allowed"
	case e.Op == OpPeek:
		return o.levels.Allowed, "refused"
	}
	return o.levels.Refused, "refused"
}

func (o *slogObserver) decided(level slog.Level, verdict string, e *DecisionEvent) {
	attrs := make([]slog.Attr, 0, 10)
	attrs = append(attrs, slog.String("policy", e.Policy), slog.String("op", e.Op.String()), slog.String("verdict", verdict))
	if e.Op != OpPeek && e.Op != OpReset {
		attrs = append(attrs, slog.Int64("units", e.N), slog.Int64("granted", e.Granted))
	}
	if e.Source != 0 {
		attrs = append(attrs, slog.String("source", e.Source.String()))
	}
	if e.Limit != (Limit{}) {
		attrs = append(attrs, slog.String("limit", e.Limit.String()))
	}
	if e.Degraded {
		attrs = append(attrs, slog.Bool("degraded", true))
	}
	attrs = append(attrs, slog.Duration("latency", e.Latency))
	if e.Err != nil {
		attrs = append(attrs, slog.String("err", ownText(e.Err)))
	}
	o.log(level, "ration: decision", attrs...)
}

func (o *slogObserver) Failed(e FailureEvent) {
	level, text := slog.LevelWarn, "ration: no answer from Redis"
	if e.Class == ClassMisconfigured {
		level, text = slog.LevelError, "ration: Redis refuses the commands needed"
	}
	if o.enabled(level) {
		o.log(level, text, slog.String("class", string(e.Class)), slog.Int("calls", e.Calls), slog.String("err", ownText(e.Err)))
	}
}

func (o *slogObserver) BreakerChanged(e BreakerEvent) {
	level, text := slog.LevelDebug, "ration: circuit breaker probes"
	switch e.To {
	case BreakerOpen:
		level, text = slog.LevelWarn, "ration: circuit breaker opened"
	case BreakerClosed:
		level, text = slog.LevelInfo, "ration: circuit breaker closed"
	}
	if !o.enabled(level) {
		return
	}
	attrs := []slog.Attr{slog.String("from", string(e.From)), slog.Duration("cooldown", e.Cooldown)}
	if e.To != BreakerOpen {
		attrs = attrs[:1]
	}
	o.log(level, text, attrs...)
}

func (o *slogObserver) Leased(e LeaseEvent) {
	if e.Lost > 0 && o.enabled(slog.LevelDebug) {
		o.log(slog.LevelDebug, "ration: units lost", slog.String("policy", e.Policy), slog.Int64("units", e.Lost))
	}
}

func (o *slogObserver) Cached(e CacheEvent) {
	if e.Evicted && o.enabled(slog.LevelDebug) {
		o.log(slog.LevelDebug, "ration: denied-key cache is full", slog.String("policy", e.Policy), slog.Int("entries", e.Entries))
	}
}

// Shadowed logs what a shadow let through.
func (o *slogObserver) Shadowed(e ShadowEvent) {
	if o.levels.Refused == nil || e.Op == OpPeek {
		return
	}
	level := o.levels.Refused.Level()
	if !o.enabled(level) {
		return
	}
	attrs := []slog.Attr{slog.String("policy", e.Name), slog.String("op", e.Op.String()), slog.Int64("units", e.N), slog.Int64("granted", e.Granted)}
	if e.Limit != (Limit{}) {
		attrs = append(attrs, slog.String("limit", e.Limit.String()))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("err", ownText(e.Err)))
	}
	o.log(level, "ration: let through by a shadow", attrs...)
}

// Compared logs two verdicts that differ.
func (o *slogObserver) Compared(e CompareEvent) {
	kind := e.Kind()
	if o.levels.Refused == nil || e.Op == OpPeek || kind != OnlyFirst && kind != OnlySecond {
		return
	}
	if level := o.levels.Refused.Level(); o.enabled(level) {
		o.log(level, "ration: two limiters differ", slog.String("policy", e.Name), slog.String("op", e.Op.String()),
			slog.Int64("units", e.N), slog.String("allowed", kind.String()))
	}
}

// ownText is an error's text if it's one of this package or a context's, which have no subject in them.
// One of LimitsFor begins otherwise, also where it wraps one of ours.
func ownText(err error) string {
	text := err.Error()
	own := err == context.Canceled || err == context.DeadlineExceeded
	for _, e := range []error{ErrUnavailable, ErrMisconfigured, ErrClosed, ErrInvalidKey, ErrInvalidCost, ErrInvalidPolicy, ErrInvalidRequest} {
		own = own || errors.Is(err, e) && strings.HasPrefix(text, e.Error())
	}
	if !own {
		return fmt.Sprintf("not told, a %T", innermost(err))
	}
	return text
}

// innermost is the error that all others wrap.
func innermost(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
