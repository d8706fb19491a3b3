// Package otellimit gives OpenTelemetry metrics of a [ration.Store] and its limiters, and spans of
// decisions. It needs the OpenTelemetry API alone; without an SDK it does nothing.
//
//	observer, err := otellimit.NewObserver()
//	…
//	store, err := ration.Open(rdb, ration.WithObserver(observer))
//	login, err := ration.NewSlidingLog(store, policy)
//	login, err = otellimit.Trace(login, otellimit.WithPolicy(policy.Name)) // if spans are wanted
//
// # Metrics
//
//	ration.decisions            counter        {decision}  policy, operation, verdict, source, degraded, error.type
//	ration.decision.duration    histogram      s           policy, operation, source, error.type
//	ration.units.granted        counter        {unit}      policy, source, degraded
//	ration.units.refunded       counter        {unit}      policy, source, degraded
//	ration.redis.failures       counter        {failure}   error.type
//	ration.redis.failed_calls   counter        {call}      error.type
//	ration.breaker.changes      counter        {change}    breaker.state: what it became
//	ration.breaker.count        updowncounter  {breaker}   breaker.state: open or probing
//	ration.lease.count          counter        {lease}     policy
//	ration.lease.taken          counter        {unit}      policy
//	ration.lease.unused         counter        {unit}      policy
//	ration.lease.lost           counter        {unit}      policy
//	ration.denycache.entries    updowncounter  {entry}     policy
//	ration.denycache.stored     counter        {refusal}   policy
//	ration.denycache.evicted    counter        {refusal}   policy
//	ration.shadow.let_through   counter        {decision}  policy, operation, error.type
//	ration.compare.decisions    counter        {decision}  policy, operation, compare.kind: both_allowed, both_refused, only_first or only_second
//
// Units granted are those let through, also where a failure rule did and nothing was counted. Entries of the
// cache are what it holds, those that have run out included. The two updowncounters go by changes: a store that is closed
// while a breaker is open, or with entries in its cache, leaves them counted. [ration.NewLocal] has
// no store, so there are no metrics of it.
//
// In Prometheus' words, refusals a second are
// rate(ration_decisions_total{ration_verdict="refused",ration_operation=~"allow.*"}[1m]), and Redis is away, for some
// subjects at least, while ration_breaker_count is above 0.
//
// # Attributes
//
// Each is called ration. and the above, but for error.type, which is that of the semantic
// conventions. ration.operation is allow (Allow and AllowN), allow_up_to, peek, refund or reset.
//
// The policy of a shadow or a comparison is its name ([ration.WithName]).
//
// ration.verdict is allowed, refused, done or error. That of a peek says what an Allow would
// have got; a refund or a reset that was made is done. ration.source is [ration.Source], and there is none with
// an error nor for a reset. ration.degraded is true where a failure rule decided.
//
// error.type is there with an error only: the [ration.FailureClass] of a failure of Redis, such as
// timeout; unavailable, if it has none; canceled or deadline_exceeded for the caller's context;
// invalid_key, invalid_cost, invalid_policy or invalid_request for its mistakes; closed; else _OTHER, such as an error of
// LimitsFor.
//
// The subject is in no attribute, nor is a limit's numbers. So a policy makes some ten series of ration.decisions, and
// about as many histograms. Those are kept for the life of the process (and the SDK stops at 2000 a
// metric), so policies must not be named after tenants or users: that's what the subject is for.
package otellimit

// ScopeName is the name of the instrumentation scope of all metrics and spans.
const ScopeName = "github.com/rationgo/ration/otellimit"

// Version is the version of the instrumentation scope.
const Version = "0.1.0"
