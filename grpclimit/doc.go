// Package grpclimit limits gRPC calls by a [ration.Limiter]: interceptors for servers. It's a
// module of its own, so that only those who use it depend on gRPC.
//
//	limit, err := grpclimit.New(limiter, grpclimit.PeerIP())
//	if err != nil {
//		return err
//	}
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(limit.Unary()),
//		grpc.ChainStreamInterceptor(limit.Stream()),
//	)
//
// A call is charged before its handler is called, and the handler isn't called if it is refused. A stream
// is charged once, at its start, or by [WithPerMessage] for each message received.
//
// # Statuses
//
// Whoever is over a limit always gets RESOURCE_EXHAUSTED, be it that the limit is used up, that the wait
// for its turn ([WithWait]) would be too long, or that the call costs more than a limit's Units. The
// details are a RetryInfo, whose delay is after when the same call succeeds if nobody else calls, and a QuotaFailure
// with a violation for each limit that refuses: its name as quota_id and its Units as quota_value; the
// subject is left empty. A call that can't succeed however long it waits (ration.Never) has no
// RetryInfo, and the violation's description says so.
//
// What isn't somebody's exceeded limit has another status:
//
//   - UNAVAILABLE if there is no answer from Redis: ration.ErrUnavailable, ErrMisconfigured,
//     ErrClosed, and a refusal by ration.FailClosed, which has a RetryInfo of when Redis is asked again.
//     ration.FailOpen and ration.FailLocal decide as they do; a refusal by FailLocal's ring is one by a limit.
//   - CANCELLED or DEADLINE_EXCEEDED if the call's own context ended.
//   - INTERNAL if the subject isn't known, unless the key function's error is, or wraps, a status
//     of its own choice, such as UNAUTHENTICATED; and for mistakes, such as a negative cost.
//
// The client doesn't get to read the causes. An error that an interceptor gives unwraps to its cause, for
// interceptors around it that log or count:
//
//	errors.Is(err, ration.ErrUnavailable)
//	errors.Is(err, grpclimit.ErrKey)
package grpclimit
