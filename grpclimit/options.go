package grpclimit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/rationgo/ration"
)

// Option changes how [New] sets up an Interceptor. Functions given to options are called
// concurrently, from the calls' goroutines; nil means the default.
type Option interface{ apply(*config) error }

type optionFunc func(*config) error

func (f optionFunc) apply(c *config) error { return f(c) }

type config struct {
	limiter ration.Limiter
	key     KeyFunc

	exempt     map[string]bool // services
	cost       func(context.Context, Call) int64
	limiterOf  func(context.Context, Call) ration.Limiter
	wait       time.Duration // 0: don't
	perMessage bool
	shadow     bool
	report     func(context.Context, Call, ration.Decision, error)
}

// The services of [WithExemptHealth] and [WithExemptReflection].
const (
	healthService     = "grpc.health.v1.Health"
	reflectionV1      = "grpc.reflection.v1.ServerReflection"
	reflectionV1Alpha = "grpc.reflection.v1alpha.ServerReflection"
)

// WithExempt exempts all methods of services, given by their full names, such as
// "grpc.health.v1.Health": no key is asked for, nothing is charged. It's looked at before all else. By default
// none is exempt. Where grpc.UnknownServiceHandler takes calls of services that aren't registered, it's the client
// that names the service. An empty name, or one with a slash, is ration.ErrInvalidOption.
func WithExempt(services ...string) Option {
	return optionFunc(func(c *config) error {
		for _, s := range services {
			if s == "" || strings.Contains(s, "/") {
				return fmt.Errorf("%w: WithExempt: %q is not a service's full name", ration.ErrInvalidOption, s)
			}
			c.exempt[s] = true
		}
		return nil
	})
}

// WithExemptHealth is WithExempt of grpc.health.v1.Health.
func WithExemptHealth() Option { return WithExempt(healthService) }

// WithExemptReflection is WithExempt of grpc.reflection.v1.ServerReflection and
// grpc.reflection.v1alpha.ServerReflection.
func WithExemptReflection() Option { return WithExempt(reflectionV1, reflectionV1Alpha) }

// isExempt takes the service from "/package.Service/Method" as grpc.Server does.
func (c *config) isExempt(method string) bool {
	if len(c.exempt) == 0 {
		return false
	}
	method = strings.TrimPrefix(method, "/")
	end := strings.LastIndexByte(method, '/')
	return end > 0 && c.exempt[method[:end]]
}

// WithCost sets the units that a call, or with [WithPerMessage] a message, costs, all or nothing. By
// default each costs 1. With 0 it passes and no key is asked for (a stream under WithPerMessage is asked for
// it in any case, before its handler is called); a negative number is an error (ration.ErrInvalidCost, INTERNAL).
func WithCost(cost func(ctx context.Context, call Call) int64) Option {
	return optionFunc(func(c *config) error {
		c.cost = cost
		return nil
	})
}

// WithLimiterFor chooses the limiter by call, for plans or methods; where it gives
// nil, the limiter of [New] decides.
func WithLimiterFor(limiter func(ctx context.Context, call Call) ration.Limiter) Option {
	return optionFunc(func(c *config) error {
		c.limiterOf = limiter
		return nil
	})
}

// WithPerMessage charges a stream for each message that its handler receives instead of once at the
// start: a client-streaming or bidirectional call of n messages costs n, a server-streaming call 1, for its
// request. One without a message costs nothing. Messages sent by the server are never
// charged, and unary calls are charged as ever. To charge the start too, chain a second Interceptor
// without this option.
//
// The key and the limiter are asked for once, before the handler is called. A message that is refused, or can't be
// decided about, doesn't reach the handler: RecvMsg gives the status then and from then on, and the
// call ends with it whatever the handler returns. With [WithWait] RecvMsg waits, and so in
// time does the client, by gRPC's flow control.
func WithPerMessage() Option {
	return optionFunc(func(c *config) error {
		c.perMessage = true
		return nil
	})
}

// WithWait has a call, or with [WithPerMessage] a message, wait its turn by [ration.Wait], for at most longest and
// never beyond the call's deadline. One that can't have its turn by then is refused at once. Waiting takes
// a goroutine of the server, and waiters are not queued. By default nobody waits; longest below 1 ms is
// ration.ErrInvalidOption.
func WithWait(longest time.Duration) Option {
	return optionFunc(func(c *config) error {
		if longest < shortest {
			return fmt.Errorf("%w: WithWait: %v is below 1ms", ration.ErrInvalidOption, longest)
		}
		c.wait = longest
		return nil
	})
}

// WithShadow lets every call and message pass, without waiting, but decides and charges as it would
// otherwise, and tells report of each decision, or of the error there was instead. It's for trying a limit on real
// traffic. report may be nil: a ration.Observer hears of decisions anyway.
func WithShadow(report func(ctx context.Context, call Call, d ration.Decision, err error)) Option {
	return optionFunc(func(c *config) error {
		c.shadow, c.report = true, report
		return nil
	})
}
