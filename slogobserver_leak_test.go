package ration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/fakeredis"
	"github.com/rationgo/ration/rationtest"
)

// Whatever Redis, a hook or LimitsFor says about the subject, no log has it.
func TestSlogHasNoSubject(t *testing.T) {
	const secret = `al"ice\SECRET`
	for name, f := range map[string]func(cmd redis.Cmder) error{
		"quoted":    func(cmd redis.Cmder) error { return fmt.Errorf("odd %q", cmd.String()) },
		"%v":        func(cmd redis.Cmder) error { return fmt.Errorf("odd %v", cmd.Args()) },
		"panic":     func(cmd redis.Cmder) error { panic(fmt.Sprintf("odd %q", cmd.Args())) },
		"truncated": func(cmd redis.Cmder) error { s := cmd.String(); return errors.New(s[:len(s)*6/7]) },
		"key only":  func(cmd redis.Cmder) error { return errors.New("no key " + cmd.Args()[3].(string)) },
	} {
		var buf bytes.Buffer
		o, err := ration.NewSlogObserver(slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: slog.LevelDebug - 10})),
			ration.WithDecisionLevels(ration.DecisionLevels{Allowed: slog.LevelInfo, Refused: slog.LevelInfo, Errors: slog.LevelInfo}))
		require.NoError(t, err)
		ln := &line{}
		ln.spoil(func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error { return f(cmd) })
		srv, err := fakeredis.Start(rationtest.Epoch)
		require.NoError(t, err)
		rdb := srv.Client()
		rdb.AddHook(ln)
		store, err := ration.Open(rdb, ration.WithObserver(o))
		require.NoError(t, err)
		l, err := ration.NewSlidingCounter(store, ration.Policy{Name: "p", Limits: []ration.Limit{ration.PerMinute(5)}})
		require.NoError(t, err)
		_, err = l.Allow(t.Context(), secret)
		t.Log(name, err)
		if bytes.Contains(buf.Bytes(), []byte("SECRET")) {
			t.Errorf("%s: %s", name, buf.String())
		}
		store.Close()
		rdb.Close()
		srv.Close()
	}
}
