package ration

import (
	"context"
	"errors"
)

// DecoratorOption changes how [NewShadow] and [NewCompare] set up their Limiter: [WithObserver]
// and [WithName]. Nil options are passed over.
type DecoratorOption interface{ decorate(*decorator) error }

type decoratorOptionFunc func(*decorator) error

func (f decoratorOptionFunc) decorate(d *decorator) error { return f(d) }

// decorator is what the decorators have in common.
type decorator struct {
	name     string
	observer Observer // nil if nobody hears
}

// WithName sets the name that a decorator has in its events: of the form of a Policy's Name, or else
// it's ErrInvalidOption. "", the default, is the Name of the (first) limiter's policy, if
// that limiter is one of this package and no decorator.
func WithName(name string) DecoratorOption {
	return decoratorOptionFunc(func(d *decorator) error {
		if name != "" {
			if err := validateName(name); err != nil {
				return errors.Join(ErrInvalidOption, err)
			}
		}
		d.name = name
		return nil
	})
}

func newDecorator(of Limiter, opts []DecoratorOption) (decorator, error) {
	var d decorator
	for _, opt := range opts {
		if opt == nil {
			continue
		}
		if err := opt.decorate(&d); err != nil {
			return d, err
		}
	}
	if d.name == "" {
		d.name = policyName(of)
	}
	return d, nil
}

func policyName(l Limiter) string {
	switch l := l.(type) {
	case *redisLimiter:
		return l.policy.Name
	case *twoTier:
		return l.global.policy.Name
	case *localLimiter:
		return l.policy.Name
	}
	return ""
}

// callersOwn says whether a call failed by its caller's mistake or the end of its context.
func callersOwn(ctx context.Context, err error) bool {
	for _, mistake := range []error{ErrInvalidKey, ErrInvalidCost, ErrInvalidPolicy, ErrInvalidRequest} {
		if errors.Is(err, mistake) {
			return true
		}
	}
	return ctx.Err() != nil && errors.Is(err, ctx.Err())
}
