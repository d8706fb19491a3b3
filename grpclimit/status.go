package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/middleware"
)

// The texts clients read: nothing of the service's insides.
const (
	textExceeded    = "rate limit exceeded"
	textUnavailable = "the rate limit can't be checked now"
	textNoKey       = "the caller isn't known to the rate limit"
	textInternal    = "the rate limit can't be checked"
)

// failed is a status for the client, whose cause is for the interceptors around us.
type failed struct {
	status *status.Status
	cause  error
}

// Error is the status's text without the cause, since some send an error's text to the client.
func (e *failed) Error() string { return e.status.Err().Error() }

// GRPCStatus is what the client gets.
func (e *failed) GRPCStatus() *status.Status { return e.status }

func (e *failed) Unwrap() error { return e.cause }

// refusal answers a call that the limits don't let in.
func refusal(d *ration.Decision) error {
	quota := &errdetails.QuotaFailure{}
	for _, s := range middleware.Refusing(d) {
		quota.Violations = append(quota.Violations, violation(&s))
	}
	return withDetails(codes.ResourceExhausted, textExceeded, append(retryInfo(d), quota)...).Err()
}

// violation names a limit. A name that isn't UTF-8 would make the whole status unsendable.
func violation(s *ration.LimitState) *errdetails.QuotaFailure_Violation {
	value, text := s.Limit.Units, fmt.Sprintf("at most %d units in %v", s.Limit.Units, s.Limit.Window)
	if s.Limit.Burst > 0 && s.Limit.Units > 0 { // a token bucket: no call may cost more than it holds
		value, text = s.Limit.Burst, fmt.Sprintf("at most %d units at once, %d in %v", s.Limit.Burst, s.Limit.Units, s.Limit.Window)
	}
	if s.RetryAfter == ration.Never {
		text += "; the call costs more and can't succeed however long it waits"
	}
	return &errdetails.QuotaFailure_Violation{
		Description: text,
		QuotaId:     strings.ToValidUTF8(s.Limit.String(), "\uFFFD"),
		QuotaValue:  value,
	}
}

// retryInfo leaves the detail out where waiting doesn't help.
func retryInfo(d *ration.Decision) []protoadapt.MessageV1 {
	if d.RetryAfter == ration.Never {
		return nil
	}
	delay := durationpb.New(max(d.RetryAfter, shortest))
	return []protoadapt.MessageV1{&errdetails.RetryInfo{RetryDelay: delay}}
}

func withDetails(code codes.Code, text string, details ...protoadapt.MessageV1) *status.Status {
	plain := status.New(code, text)
	whole, err := plain.WithDetails(details...)
	if err != nil { // can't be: they are sound messages, and the code isn't OK
		return plain
	}
	return whole
}

// failedClosed answers a call that is refused because there is no answer from Redis. That
// is a failure, not somebody's exceeded limit.
func failedClosed(d *ration.Decision) error {
	cause := d.Cause
	if cause == nil {
		cause = ration.ErrUnavailable
	}
	return &failed{withDetails(codes.Unavailable, textUnavailable, retryInfo(d)...), cause}
}

// failure answers a call about which there is no decision.
func failure(ctx context.Context, err error) error {
	return &failed{statusOf(ctx, err), err}
}

func statusOf(ctx context.Context, err error) *status.Status {
	chosen, isChosen := chosenStatus(err)
	unavailable := errors.Is(err, ration.ErrUnavailable) || errors.Is(err, ration.ErrMisconfigured) || errors.Is(err, ration.ErrClosed)
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	isKey := errors.Is(err, ErrKey)
	switch {
	case isKey && isChosen:
		return chosen
	case unavailable && !isKey:
		return status.New(codes.Unavailable, textUnavailable)
	case ended && ctx.Err() != nil:
		return status.FromContextError(ctx.Err())
	case isKey:
		return status.New(codes.Internal, textNoKey)
	case ended: // a time-out of a limiter that isn't ours, not of the call
		return status.New(codes.Unavailable, textUnavailable)
	}
	return status.New(codes.Internal, textInternal)
}

// chosenStatus is the status in a key function's error, as it is: what was wrapped around it isn't
// for the client. status.FromError would add that to the text.
func chosenStatus(err error) (*status.Status, bool) {
	var has interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &has) {
		return nil, false
	}
	s := has.GRPCStatus()
	return s, s.Code() != codes.OK
}
