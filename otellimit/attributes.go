package otellimit

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/rationgo/ration"
)

const (
	policyKey    = attribute.Key("ration.policy")
	operationKey = attribute.Key("ration.operation")
	verdictKey   = attribute.Key("ration.verdict")
	sourceKey    = attribute.Key("ration.source")
	degradedKey  = attribute.Key("ration.degraded")
	breakerKey   = attribute.Key("ration.breaker.state")
	kindKey      = attribute.Key("ration.compare.kind")
	errorTypeKey = attribute.Key("error.type") // of the semantic conventions
)

// operation is the name of an operation in attributes.
func operation(op ration.Op) string {
	switch op {
	case ration.OpAllow:
		return "allow"
	case ration.OpAllowUpTo:
		return "allow_up_to"
	case ration.OpPeek:
		return "peek"
	case ration.OpRefund:
		return "refund"
	case ration.OpReset:
		return "reset"
	}
	return "_OTHER"
}

// verdict is what came of a call. Allowed after a refund is about a call that may follow, and a
// reset has no decision.
func verdict(op ration.Op, allowed, failed bool) string {
	switch {
	case failed:
		return "error"
	case op == ration.OpRefund, op == ration.OpReset:
		return "done"
	case allowed:
		return "allowed"
	}
	return "refused"
}

// mistakes are the errors that are neither of Redis nor of a context.
var mistakes = []struct {
	err  error
	kind string
}{
	{ration.ErrUnavailable, "unavailable"}, {ration.ErrClosed, "closed"}, {ration.ErrInvalidKey, "invalid_key"},
	{ration.ErrInvalidCost, "invalid_cost"}, {ration.ErrInvalidPolicy, "invalid_policy"}, {ration.ErrInvalidRequest, "invalid_request"},
	{context.Canceled, "canceled"}, {context.DeadlineExceeded, "deadline_exceeded"},
}

// errorType is the error.type of a call's error, one of a few; "" if there was none.
func errorType(err error) string {
	if err == nil {
		return ""
	}
	if class := ration.ClassOf(err); class != "" {
		return string(class)
	}
	for _, m := range mistakes {
		if errors.Is(err, m.err) {
			return m.kind
		}
	}
	return "_OTHER"
}

// outcome is what tells the decisions of a policy apart in the metrics.
type outcome struct {
	op        ration.Op
	allowed   bool
	degraded  bool
	source    ration.Source
	errorType string
}

func outcomeOf(e *ration.DecisionEvent) outcome {
	return outcome{op: e.Op, allowed: e.Allowed, degraded: e.Degraded, source: e.Source, errorType: errorType(e.Err)}
}

// attributes are a policy's attribute sets, made once: a set is sorted and hashed when it's made.
type attributes struct {
	policy   attribute.KeyValue
	only     []metric.AddOption // the policy alone
	outcomes table[outcome, *sets]
}

// sets are those of an outcome.
type sets struct {
	decision []metric.AddOption
	duration []metric.RecordOption
	units    []metric.AddOption
}

func newAttributes(policy string) *attributes {
	p := policyKey.String(policy)
	return &attributes{policy: p, only: addOptions(p)}
}

func (a *attributes) of(o outcome) *sets {
	if s := a.outcomes.get(o); s != nil {
		return s
	}
	return a.outcomes.put(o, a.sets(o))
}

func (a *attributes) sets(o outcome) *sets {
	units := []attribute.KeyValue{a.policy, degradedKey.Bool(o.degraded)}
	timed := []attribute.KeyValue{a.policy, operationKey.String(operation(o.op))}
	if o.source != 0 {
		units = append(units, sourceKey.String(o.source.String()))
		timed = append(timed, sourceKey.String(o.source.String()))
	}
	if o.errorType != "" {
		timed = append(timed, errorTypeKey.String(o.errorType))
	}
	counted := append(timed[:len(timed):len(timed)], degradedKey.Bool(o.degraded),
		verdictKey.String(verdict(o.op, o.allowed, o.errorType != "")))
	return &sets{
		decision: addOptions(counted...),
		duration: []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(timed...))},
		units:    addOptions(units...),
	}
}

func addOptions(kv ...attribute.KeyValue) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(kv...))}
}

// table is a map that is copied when something new comes, which is seldom, so that reading takes no
// lock. A sync.Map would allocate for each key it's asked for.
type table[K comparable, V any] struct {
	mu sync.Mutex
	m  atomic.Pointer[map[K]V]
}

// get gives the zero V for a key that isn't there.
func (t *table[K, V]) get(k K) (v V) {
	if m := t.m.Load(); m != nil {
		return (*m)[k]
	}
	return v
}

// put stores v unless there's one already, and gives the one that's there.
func (t *table[K, V]) put(k K, v V) V {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := map[K]V{}
	if m := t.m.Load(); m != nil {
		if old, ok := (*m)[k]; ok {
			return old
		}
		next = maps.Clone(*m)
	}
	next[k] = v
	t.m.Store(&next)
	return v
}
