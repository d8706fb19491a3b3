package grpclimit

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/rationgo/ration"
)

// perMessages runs a stream whose messages are charged one by one. Who is charged is asked for once.
func (c *config) perMessages(srv any, stream grpc.ServerStream, call Call, next grpc.StreamHandler) error {
	who, err := c.subjectOf(stream.Context(), call)
	if err != nil {
		if err := c.settle(stream.Context(), call, ration.Decision{}, err); err != nil {
			return err
		}
		return next(srv, stream) // shadow: there is nobody to charge
	}
	m := &messages{ServerStream: stream, config: c, call: call, who: who}
	err = next(srv, m)
	if end := m.end.Load(); end != nil {
		return *end // whatever the handler made of it
	}
	return err
}

// messages is a stream that charges for each message received.
type messages struct {
	grpc.ServerStream
	config *config
	call   Call
	who    subject
	end    atomic.Pointer[error] // why no more messages are received; nil until then
}

// RecvMsg gives a message when it's paid for. After a refusal it gives the same again: a message is lost, and
// a handler must not go on as if it had never been sent.
func (m *messages) RecvMsg(msg any) error {
	if end := m.end.Load(); end != nil {
		return plain(*end)
	}
	if err := m.ServerStream.RecvMsg(msg); err != nil {
		return err
	}
	call := m.call
	call.Message = msg
	if err := m.charge(m.Context(), call); err != nil {
		m.end.Store(&err)
		return plain(err)
	}
	return nil
}

func (m *messages) charge(ctx context.Context, call Call) error {
	cost := m.config.units(ctx, call)
	if cost == 0 {
		return nil
	}
	return m.config.charge(ctx, call, m.who, cost)
}

// plain is the error without its cause. That of a failing Redis may be io.EOF, which a handler would
// take for the end of a complete stream.
func plain(err error) error { return status.Convert(err).Err() }
