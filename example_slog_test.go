package ration_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration"
)

// A service's log has outages and refusals. Here no Redis runs at all.
func ExampleNewSlogObserver() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch a.Key {
		case slog.TimeKey, "latency", "err":
			return slog.Attr{} // differs each time
		}
		return a
	}}))
	logs, err := ration.NewSlogObserver(logger, ration.WithDecisionLevels(ration.DecisionLevels{Refused: slog.LevelInfo}))
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("connection refused")
	}})
	defer rdb.Close()
	store, err := ration.Open(rdb, ration.WithObserver(logs), ration.WithOnFailure(ration.FailClosed))
	if err != nil {
		panic(err)
	}
	login, err := ration.NewSlidingLog(store, ration.Policy{Name: "login", Limits: []ration.Limit{ration.PerMinute(5)}})
	if err != nil {
		panic(err)
	}
	if _, err := login.Allow(context.Background(), "alice"); err != nil {
		panic(err)
	}
	store.Close() // and the observer has heard of all
	// Unordered output:
	// level=WARN msg="ration: no answer from Redis" class=connection calls=1
	// level=INFO msg="ration: decision" policy=login op=AllowN verdict=refused units=1 granted=0 source=failure degraded=true
}
