package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/middleware"
	"github.com/rationgo/ration/internal/nils"
)

// ErrKey is a call whose subject isn't known: the KeyFunc gave an error, which is wrapped, or an
// empty key.
var ErrKey = errors.New("grpclimit: no key")

// shortest is how long a refused call is told to wait at least, and waits: a limiter that isn't ours may
// name no time, and nobody is told to come back at once.
const shortest = time.Millisecond

// Call is what is known of a call when it is decided about.
type Call struct {
	// Method is the full name of the method, "/package.Service/Method".
	Method string
	// Stream says that the client or the server may send several messages.
	Stream bool
	// Message is the request of a unary call, or the message that is charged ([WithPerMessage]). It's nil
	// at the start of a stream, whose messages aren't read yet. It mustn't be changed or kept.
	Message any
}

// Interceptor asks a limiter before calls. It has no goroutine and nothing to close. Its methods are safe for
// concurrent use, and one Interceptor may serve any number of servers.
type Interceptor struct{ config }

// New makes an Interceptor. key says whose call it is; there is no default, since most services sit
// behind proxies whose addresses all clients would share.
//
// The error is ration.ErrInvalidClient for a nil limiter, [ErrKey] for a nil key, or ration.ErrInvalidOption.
func New(limiter ration.Limiter, key KeyFunc, opts ...Option) (*Interceptor, error) {
	if nils.Is(limiter) {
		return nil, fmt.Errorf("%w: grpclimit.New needs a limiter, not nil", ration.ErrInvalidClient)
	}
	if key == nil {
		return nil, fmt.Errorf("%w function: New needs one, such as PeerIP()", ErrKey)
	}
	i := &Interceptor{config{limiter: limiter, key: key, exempt: map[string]bool{}}}
	for _, o := range opts {
		if o == nil {
			continue
		}
		if err := o.apply(&i.config); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// Unary limits unary calls: each is charged before its handler is called.
func (i *Interceptor) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		call := Call{Method: info.FullMethod, Message: req}
		if !i.isExempt(call.Method) {
			if err := i.begin(ctx, call); err != nil {
				return nil, err
			}
		}
		return next(ctx, req)
	}
}

// Stream limits streaming calls: each is charged before its handler is called, or, with
// [WithPerMessage], for each message that its handler receives.
func (i *Interceptor) Stream() grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		call := Call{Method: info.FullMethod, Stream: true}
		switch {
		case i.isExempt(call.Method):
			return next(srv, stream)
		case i.perMessage:
			return i.perMessages(srv, stream, call, next)
		}
		if err := i.begin(stream.Context(), call); err != nil {
			return err
		}
		return next(srv, stream)
	}
}

// subject is who is charged, and by which limiter.
type subject struct {
	key     string
	limiter ration.Limiter
}

// begin charges a call at its start. What costs nothing needs no subject.
func (c *config) begin(ctx context.Context, call Call) error {
	cost := c.units(ctx, call)
	if cost == 0 {
		return nil
	}
	who, err := c.subjectOf(ctx, call)
	if err != nil {
		return c.settle(ctx, call, ration.Decision{}, err)
	}
	return c.charge(ctx, call, who, cost)
}

func (c *config) units(ctx context.Context, call Call) int64 {
	if c.cost == nil {
		return 1
	}
	return c.cost(ctx, call)
}

func (c *config) subjectOf(ctx context.Context, call Call) (subject, error) {
	who := subject{limiter: c.limiter}
	if c.limiterOf != nil {
		if l := c.limiterOf(ctx, call); l != nil {
			who.limiter = l
		}
	}
	var err error
	who.key, err = keyOf(ctx, c.key, call)
	return who, err
}

// charge gives nil if the call, or the message, may pass, or else the error to answer with.
func (c *config) charge(ctx context.Context, call Call, who subject, cost int64) error {
	d, err := c.ask(ctx, who, cost)
	return c.settle(ctx, call, d, err)
}

// ask decides, by waiting if it is to.
func (c *config) ask(ctx context.Context, who subject, cost int64) (ration.Decision, error) {
	if c.wait == 0 || c.shadow {
		return who.limiter.AllowN(ctx, who.key, cost)
	}
	end := time.Now().Add(c.wait)
	var last ration.Decision
	asking := ration.LimiterFunc(func(_ context.Context, r ration.Request) (ration.Decision, error) {
		var err error
		last, err = r.Do(ctx, who.limiter)
		d := last
		if !d.Allowed && time.Until(end) < max(d.RetryAfter, shortest) {
			d.RetryAfter = ration.Never // Wait gives up at once; our caller gets to know when
		}
		return d, err
	})
	// A deadline would cut a question to Redis off, which looks like the end of the call's own context.
	_, err := ration.Wait(ctx, asking, who.key, cost)
	return last, err
}

// settle gives the error that a decision, or the failure to make one, is answered with.
func (c *config) settle(ctx context.Context, call Call, d ration.Decision, err error) error {
	switch {
	case c.shadow:
		if c.report != nil {
			c.report(ctx, call, d, err)
		}
		return nil
	case err != nil:
		return failure(ctx, err)
	case middleware.Unavailable(&d):
		return failedClosed(&d)
	case !d.Allowed:
		return refusal(&d)
	}
	return nil
}
