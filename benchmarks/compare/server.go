package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/rationgo/ration/internal/redistest"
)

// command is the little of a testing.TB that starting a server takes.
type command struct {
	testing.TB // nil: nothing else may be called
	cleanups   []func()
}

// stopped is the panic that ends a command as FailNow ends a test.
type stopped struct{ reason string }

func (c *command) Helper()           {}
func (c *command) Name() string      { return "compare" }
func (c *command) Cleanup(do func()) { c.cleanups = append(c.cleanups, do) }

func (c *command) Fatalf(format string, args ...any) { panic(stopped{fmt.Sprintf(format, args...)}) }
func (c *command) Skipf(format string, args ...any)  { c.Fatalf(format, args...) }

func (c *command) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// do runs f, then what was left to clean up, the last first.
func (c *command) do(f func() error) (err error) {
	defer func() {
		for _, do := range slices.Backward(c.cleanups) {
			do()
		}
		switch p := recover().(type) {
		case nil:
		case stopped:
			err = errors.New(p.reason)
		default:
			panic(p)
		}
	}()
	return f()
}

// client starts a server and gives a client of it.
func client(t testing.TB, pool int) *redis.Client {
	logging.Disable() // under outage the driver would log every attempt
	return redistest.Start(t).Client(t, func(o *redis.Options) { o.PoolSize, o.ContextTimeoutEnabled = pool, true })
}

var (
	redisVersion = regexp.MustCompile(`redis_version:(\S+)`)
	modelName    = regexp.MustCompile(`model name\s*: (.*)`)
)

// machine says what the figures were measured on.
func machine(ctx context.Context, rdb *redis.Client) (string, error) {
	info, err := rdb.Info(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	version := "of unknown version"
	if m := redisVersion.FindStringSubmatch(info); m != nil {
		version = m[1]
	}
	o := rdb.Options()
	return fmt.Sprintf("%s, %d cores, %s, Redis %s on loopback. One go-redis client for all: PoolSize %d, ContextTimeoutEnabled, RESP%d, read timeout %v, otherwise its defaults.",
		cpu(), runtime.NumCPU(), strings.Replace(runtime.Version(), "go", "Go ", 1), version, o.PoolSize, o.Protocol, o.ReadTimeout), nil
}

func cpu() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // on Linux only
	if m := modelName.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return runtime.GOARCH
}
