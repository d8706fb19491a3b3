package otellimit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/nils"
)

// Trace makes a span of each call to limiter, a child of the span in the call's context: "ration allow",
// "ration allow_up_to", "ration peek", "ration refund" or "ration reset". It's for the outermost limiter, which
// the service asks; [ration.NewLocal] and fakes do as well.
//
// The attributes are ration.operation, ration.verdict, ration.source and error.type as in the package
// comment, ration.policy (see [WithPolicy]), ration.units asked for and ration.granted, and with a
// decision ration.limit (the one that decided), ration.remaining, ration.degraded and, unless it was allowed,
// ration.retry_after in seconds, -1 for ration.Never. The subject is in none of them.
//
// A refusal is no error, nor is a decision of a failure rule: its error.type is the cause's. An error
// gives the span the status Error, but for the caller's own cancellation. Its text is recorded where
// it's ration's; others, such as those of LimitsFor, may name the subject.
//
// The error is ration.ErrInvalidClient for a nil limiter, or ration.ErrInvalidOption. A call outside any
// sampled trace costs little more than without.
func Trace(limiter ration.Limiter, opts ...TraceOption) (ration.Limiter, error) {
	if nils.Is(limiter) {
		return nil, fmt.Errorf("%w: otellimit.Trace needs a limiter, not nil", ration.ErrInvalidClient)
	}
	c, err := newTraceConfig(opts)
	if err != nil {
		return nil, err
	}
	t := tracer{
		limiter: limiter,
		tracer:  c.tracers.Tracer(ScopeName, trace.WithInstrumentationVersion(Version)),
		policy:  c.policy,
	}
	return ration.LimiterFunc(t.do), nil
}

type tracer struct {
	limiter ration.Limiter
	tracer  trace.Tracer
	policy  string
}

func (t tracer) do(ctx context.Context, r ration.Request) (ration.Decision, error) {
	ctx, span := t.tracer.Start(ctx, spanName(r.Op))
	defer span.End()
	d, err := r.Do(ctx, t.limiter)
	if span.IsRecording() {
		t.describe(span, r, &d, err)
	}
	return d, err
}

func spanName(op ration.Op) string {
	if op == ration.OpAllow {
		return "ration allow" // most of all, and a constant allocates nothing
	}
	return "ration " + operation(op)
}

func (t tracer) describe(span trace.Span, r ration.Request, d *ration.Decision, err error) {
	kv := make([]attribute.KeyValue, 0, 12)
	kv = append(kv, operationKey.String(operation(r.Op)), verdictKey.String(verdict(r.Op, d.Allowed, err != nil)))
	if t.policy != "" {
		kv = append(kv, policyKey.String(t.policy))
	}
	if r.Op != ration.OpPeek && r.Op != ration.OpReset {
		kv = append(kv, attribute.Int64("ration.units", r.N), attribute.Int64("ration.granted", d.Granted))
	}
	switch {
	case err != nil:
		kv = append(kv, errorTypeKey.String(errorType(err)))
		fail(span, err)
	case r.Op != ration.OpReset:
		kv = append(kv, decisionAttributes(d)...)
	}
	span.SetAttributes(kv...)
}

func decisionAttributes(d *ration.Decision) []attribute.KeyValue {
	kv := make([]attribute.KeyValue, 0, 6)
	kv = append(kv, sourceKey.String(d.Source.String()), degradedKey.Bool(d.Degraded), attribute.Int64("ration.remaining", d.Remaining))
	if d.Limit != (ration.Limit{}) { // FailClosed has none
		kv = append(kv, attribute.String("ration.limit", d.Limit.String()))
	}
	if !d.Allowed {
		kv = append(kv, attribute.Float64("ration.retry_after", retryAfter(d)))
	}
	if d.Cause != nil {
		kv = append(kv, errorTypeKey.String(errorType(d.Cause)))
	}
	return kv
}

func retryAfter(d *ration.Decision) float64 {
	if d.RetryAfter == ration.Never {
		return -1
	}
	return d.RetryAfter.Seconds()
}

// fail marks the span, but not for a caller who has gone.
func fail(span trace.Span, err error) {
	if errors.Is(err, context.Canceled) && !errors.Is(err, ration.ErrUnavailable) {
		return
	}
	if !ours(err) {
		span.SetStatus(codes.Error, errorType(err))
		return
	}
	span.RecordError(err)
	span.SetStatus(codes.Error, err.Error())
}

// ours says whether an error's text is ration's own, which has no subject in it. One of LimitsFor
// begins otherwise, also where it wraps one of ration's.
func ours(err error) bool {
	if err == context.DeadlineExceeded {
		return true
	}
	text := err.Error()
	for _, e := range []error{
		ration.ErrUnavailable, ration.ErrMisconfigured, ration.ErrClosed, ration.ErrInvalidKey,
		ration.ErrInvalidCost, ration.ErrInvalidPolicy, ration.ErrInvalidRequest,
	} {
		if errors.Is(err, e) && strings.HasPrefix(text, e.Error()) {
			return true
		}
	}
	return false
}
