package ration_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// simNet is an instance's road to Redis: what it sends takes time both ways, stays on the way
// while the instance is stopped, and meets outages.
type simNet struct {
	latency  time.Duration // one way, on average
	gate     *simGate      // shut while the instance is stopped
	outage   func() simOutage
	ran      func(args []any, reply any) // hears of each command at the instant it ran
	commands atomic.Int64
	cut      atomic.Bool // the instance has crashed: nothing of it arrives any more

	mu  sync.Mutex
	rng *rand.Rand
}

// simOutage is how Redis fails.
type simOutage int32

const (
	simUp      simOutage = iota
	simRefuses           // connections
	simSilent            // what is sent is lost
	simMute              // what is sent runs, the answer is lost
)

var (
	errSimRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	errSimCrashed = errors.New("the instance has crashed")
)

func (n *simNet) delay() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.latency/2 + time.Duration(n.rng.Int64N(int64(n.latency)+1))
	if n.rng.IntN(50) == 0 {
		d *= 10 // a packet was lost, say
	}
	return d
}

// carry brings commands to Redis and back.
func (n *simNet) carry(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error) error {
	n.gate.pass()
	n.commands.Add(int64(len(cmds)))
	pass(n.delay())
	how := n.outage()
	switch {
	case n.cut.Load():
		return n.lose(cmds, errSimCrashed)
	case how == simRefuses:
		pass(n.delay())
		return n.lose(cmds, errSimRefused)
	case how == simSilent:
		return n.lose(cmds, patience(ctx))
	}
	// The command is on its way, also if nobody waits for the answer any more.
	err := run(context.WithoutCancel(ctx))
	for _, cmd := range cmds {
		if c, ok := cmd.(interface{ Val() any }); ok && cmd.Err() == nil {
			n.ran(cmd.Args(), c.Val())
		}
	}
	if how == simMute {
		return n.lose(cmds, patience(ctx))
	}
	pass(n.delay())
	n.gate.pass()
	return err
}

// patience waits as long as the client does. The greeting of a new connection has a context
// without an end, since what it's made for is on its way: it fails at once.
func patience(ctx context.Context) error {
	if ctx.Done() == nil {
		return context.DeadlineExceeded
	}
	<-ctx.Done()
	return ctx.Err()
}

func (n *simNet) lose(cmds []redis.Cmder, err error) error {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	n.gate.pass()
	return err
}

func (n *simNet) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *simNet) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return n.carry(ctx, []redis.Cmder{cmd}, func(ctx context.Context) error { return next(ctx, cmd) })
	}
}

func (n *simNet) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return n.carry(ctx, cmds, func(ctx context.Context) error { return next(ctx, cmds) })
	}
}

// simGate lets pass, or holds up.
type simGate struct {
	mu   sync.Mutex
	shut chan struct{} // closed when it opens; nil while open
}

func (g *simGate) pass() {
	for {
		g.mu.Lock()
		shut := g.shut
		g.mu.Unlock()
		if shut == nil {
			return
		}
		<-shut
	}
}

func (g *simGate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

func (g *simGate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = nil
}
