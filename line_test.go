package ration_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/fakeredis"
)

// line is a go-redis hook: the road to a server, on which script commands are counted and may be lost.
type line struct {
	fault atomic.Pointer[fault] // nil while the road is free
	dials atomic.Int64

	mu   sync.Mutex
	sent []time.Time // when each script command came by
}

// fault answers a command in the server's place, or has the server answer by next.
type fault func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error

func (ln *line) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ln.dials.Add(1)
		return next(ctx, network, addr)
	}
}

func (ln *line) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" && cmd.Name() != "eval" {
			return next(ctx, cmd)
		}
		if cmd.Name() == "evalsha" {
			ln.mu.Lock()
			ln.sent = append(ln.sent, time.Now())
			ln.mu.Unlock()
		}
		f := ln.fault.Load()
		if f == nil {
			return next(ctx, cmd)
		}
		err := (*f)(ctx, cmd, next)
		if err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}

// ProcessPipelineHook has each command of a pipeline meet the fault; the server gets all or none.
func (ln *line) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if ln.fault.Load() == nil {
			return next(ctx, cmds)
		}
		var errs []error
		for _, cmd := range cmds {
			errs = append(errs, ln.ProcessHook(nil)(ctx, cmd))
		}
		return errors.Join(errs...)
	}
}

// spoil makes commands meet f from now on; nil mends the line.
func (ln *line) spoil(f fault) {
	if f == nil {
		ln.fault.Store(nil)
	} else {
		ln.fault.Store(&f)
	}
}

// take gives the times at which script commands were sent since the last take.
func (ln *line) take() []time.Time {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	defer func() { ln.sent = nil }()
	return ln.sent
}

// says answers with an error.
func says(err error) fault {
	return func(context.Context, redis.Cmder, redis.ProcessHook) error { return err }
}

// replies answers with a value.
func replies(value any) fault {
	return func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
		cmd.(interface{ SetVal(any) }).SetVal(value)
		return nil
	}
}

// silence never answers.
func silence(ctx context.Context, _ redis.Cmder, _ redis.ProcessHook) error {
	<-ctx.Done()
	return ctx.Err()
}

// refused is what the client says where nobody listens.
var refused = says(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})

// outage is a way in which Redis fails.
type outage struct {
	class ration.FailureClass
	fault fault
}

// outages are the ways in which Redis fails.
var outages = map[string]outage{
	"refused":               {ration.ClassConnection, refused},
	"cut":                   {ration.ClassConnection, says(io.EOF)},
	"no free connection":    {ration.ClassConnection, says(redis.ErrPoolTimeout)},
	"client closed":         {ration.ClassConnection, says(redis.ErrClosed)},
	"silence":               {ration.ClassTimeout, silence},
	"read timeout":          {ration.ClassTimeout, says(&net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded})},
	"loading":               {ration.ClassLoading, says(redisError("LOADING Redis is loading the dataset in memory"))},
	"busy":                  {ration.ClassLoading, says(redisError("BUSY Redis is busy running a script."))},
	"replica":               {ration.ClassReadOnly, says(redisError("READONLY You can't write against a read only replica."))},
	"replica, Redis 6":      {ration.ClassReadOnly, says(redisError(redis6 + "-READONLY You can't write against a read only replica."))},
	"too few replicas":      {ration.ClassReadOnly, says(redisError("NOREPLICAS Not enough good replicas to write."))},
	"disk full":             {ration.ClassReadOnly, says(redisError("MISCONF Errors writing to the AOF file"))},
	"disk full, Redis 6":    {ration.ClassReadOnly, says(redisError(redis6 + "-MISCONF Redis is configured to save RDB snapshots"))},
	"master down":           {ration.ClassMasterDown, says(redisError("MASTERDOWN Link with MASTER is down"))},
	"cluster down":          {ration.ClassCluster, says(redisError("CLUSTERDOWN The cluster is down"))},
	"cross slot":            {ration.ClassCluster, says(redisError("CROSSSLOT Keys in request don't hash to the same slot"))},
	"moved":                 {ration.ClassCluster, says(redisError("MOVED 3999 127.0.0.1:6381"))},
	"out of memory":         {ration.ClassMemory, says(redisError("OOM command not allowed when used memory > 'maxmemory'."))},
	"out of memory, script": {ration.ClassMemory, says(redisError(redis6 + "-OOM command not allowed when used memory > 'maxmemory'."))},
	"forbidden":             {ration.ClassMisconfigured, says(redisError("NOPERM this user has no permissions to run the 'evalsha' command"))},
	"forbidden key":         {ration.ClassMisconfigured, sayingKeys(func(keys string) error { return redisError("NOPERM no access to " + keys) })},
	"forbidden in script":   {ration.ClassMisconfigured, says(redisError(redis6 + "The user executing the script can't run this command or subcommand"))},
	"no password":           {ration.ClassMisconfigured, says(redisError("NOAUTH Authentication required."))},
	"no password, Redis 7":  {ration.ClassMisconfigured, says(redisError("ERR Protocol error: unauthenticated multibulk length"))},
	"no such command":       {ration.ClassMisconfigured, says(redisError("ERR unknown command 'evalsha'"))},
	"another error":         {ration.ClassReply, sayingKeys(func(keys string) error { return redisError("ERR odd: " + keys) })},
	"nil":                   {ration.ClassReply, says(redis.Nil)},
	"too short":             {ration.ClassReply, replies([]any{int64(1)})},
	"a status":              {ration.ClassReply, replies("OK")},
	"an integer":            {ration.ClassReply, replies(int64(1))},
	"not Redis":             {ration.ClassReply, says(errors.New(`redis: can't parse "HTTP/1.1 400 Bad Request"`))},
	"not Redis either":      {ration.ClassReply, says(errors.New(`redis: invalid reply: "$x"`))},
	"panic":                 {ration.ClassClient, sayingKeys(func(keys string) error { panic("in a hook, with " + keys) })},
}

const redis6 = "ERR Error running script (call to f_0123): @user_script:17: @user_script: 17: "

// sayingKeys makes a fault of what says something about the keys of a command.
func sayingKeys(say func(keys string) error) fault {
	return func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
		args := cmd.Args()
		return say(fmt.Sprint(args[3 : 3+args[2].(int)]))
	}
}

// noBreaker has every call go to Redis, whatever became of those before.
var noBreaker = ration.WithBreaker(ration.Breaker{Failures: math.MaxInt32})

// world is a Redis in memory at the end of a line.
type world struct {
	*testing.T
	*line
	rdb *redis.Client
}

// inBubble runs a test in a testing/synctest bubble: time passes only while all wait, and calls take none.
func inBubble(t *testing.T, run func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := fakeredis.Synctest()
		w := &world{T: t, line: &line{}, rdb: srv.Client()}
		w.rdb.AddHook(w.line)
		t.Cleanup(func() {
			require.NoError(t, w.rdb.Close())
			srv.Close()
		})
		run(w)
	})
}

// offline is a world whose server is never asked: all commands meet a fault.
func offline(t *testing.T, f fault) *world {
	w := &world{T: t, line: &line{}, rdb: redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})}
	w.rdb.AddHook(w.line)
	w.spoil(f)
	t.Cleanup(func() { require.NoError(t, w.rdb.Close()) })
	return w
}

func (w *world) store(opts ...ration.Option) *ration.Store {
	w.Helper()
	store, err := ration.Open(w.rdb, opts...)
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, store.Close()) })
	return store
}

// limiter makes a fixed window of some limits.
func (w *world) limiter(store *ration.Store, limits ...ration.Limit) ration.Limiter {
	w.Helper()
	return w.of("fixed", store, ration.Policy{Name: "p", Limits: limits})
}

func (w *world) of(strategy string, store *ration.Store, p ration.Policy) ration.Limiter {
	w.Helper()
	l, err := strategies[strategy](store, p)
	require.NoError(w, err)
	return l
}
