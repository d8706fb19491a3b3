// Httpserver is a small API service under rate limits that all its instances share: plans told by an
// API key, failed logins by address, metrics, and a page that shows a visitor's budget live.
//
//	go run . -addr 127.0.0.1:8080                          # an embedded miniredis
//	go run . -addr 127.0.0.1:8080 -redis 127.0.0.1:6379    # a real Redis; start as many as you like
//
// When Redis is away each instance lets through its part (Units / -instances) of every limit, counted by
// itself, and takes Redis's counts again when it's back: ration.FailLocal.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration"
)

const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 15 * time.Second
	idleTimeout   = time.Minute
	stopTimeout   = 20 * time.Second // for the requests under way
	maxHeader     = 16 << 10

	deniedSubjects = 10_000 // remembered by the deny cache
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// settings are the flags.
type settings struct {
	addr, redis, config string
	instances           int
	redisTimeout        time.Duration
}

func parse(args []string, errs io.Writer) (settings, error) {
	var s settings
	f := flag.NewFlagSet("httpserver", flag.ContinueOnError)
	f.SetOutput(errs)
	f.StringVar(&s.addr, "addr", "127.0.0.1:8080", "`HOST:PORT` to listen on; port 0 takes any free one, and prints it")
	f.StringVar(&s.redis, "redis", os.Getenv("REDIS_ADDR"), "`HOST:PORT` of Redis, by default $REDIS_ADDR; empty starts an embedded miniredis")
	f.StringVar(&s.config, "config", "", "`FILE` of plans and clients, as config.json, which is the default")
	f.IntVar(&s.instances, "instances", 2, "number of instances of this service; while Redis is away each has such a part of the limits")
	f.DurationVar(&s.redisTimeout, "redis-timeout", 100*time.Millisecond, "longest wait for Redis")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		err := fmt.Errorf("unexpected argument %q", f.Arg(0))
		fmt.Fprintln(errs, err)
		return s, err
	}
	return s, nil
}

// run is main with its surroundings as arguments. It ends with ctx and returns 0, 1 when something
// failed, 2 for a wrong flag.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	set, err := parse(args, errs)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return 2
	}
	log := slog.New(slog.NewTextHandler(errs, nil))
	if err := start(ctx, set, out, log); err != nil {
		log.Error("httpserver failed", "cause", err)
		return 1
	}
	return 0
}

// start builds everything from the bottom up, serves, and takes it down in the opposite order.
func start(ctx context.Context, set settings, out io.Writer, log *slog.Logger) (err error) {
	closing := func(what io.Closer) { err = cmp.Or(err, what.Close()) }
	if set.redis == "" {
		mini, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer mini.Close()
		set.redis = mini.Addr()
		log.Info("no -redis: counting in an embedded miniredis, for this process alone")
	}
	redis.SetLogger(redisLog{log})
	rdb := redis.NewClient(&redis.Options{Addr: set.redis, ContextTimeoutEnabled: true, DialerRetries: 1})
	defer closing(rdb)
	m, err := newMetrics(log)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, m.provider.Shutdown(context.WithoutCancel(ctx))) }()
	store, err := ration.Open(rdb, ration.WithPrefix("httpserver"), ration.WithTimeout(set.redisTimeout), ration.WithObserver(m.observers...),
		ration.WithDenyCache(deniedSubjects), ration.WithOnFailure(ration.FailLocal(set.instances)))
	if err != nil {
		return err
	}
	defer closing(store) // gives back the units that weren't used
	conf, err := readConfig(set.config)
	if err != nil {
		return err
	}
	dir, err := newDirectory(store, conf, set.instances)
	if err != nil {
		return err
	}
	s, err := newServer(dir, m.page, log)
	if err != nil {
		return err
	}
	return s.serve(ctx, set.addr, out)
}

// serve answers requests until ctx ends, then finishes those under way.
func (s *server) serve(ctx context.Context, addr string, out io.Writer) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	hs := &http.Server{
		Handler: s.handler, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn), MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
	}
	hs.RegisterOnShutdown(s.stop)
	fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())
	failed := make(chan error, 1)
	go func() { failed <- hs.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.log.Info("stopping")
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err = hs.Shutdown(limited)
	<-failed // http.ErrServerClosed
	if err != nil {
		return errors.Join(err, hs.Close())
	}
	s.log.Info("stopped")
	return nil
}
