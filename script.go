package ration

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

//go:embed scripts/*.lua
var scriptFiles embed.FS

// script is one strategy's whole Lua text and the name Redis knows it by.
type script struct {
	text  string
	sha   string
	named bool // it takes the run's name
}

// The scripts, put together before hashing: the prelude, the strategy, the driver.
var (
	fixedScript   = joinScript("fixed", false)
	logScript     = joinScript("zset", true)
	bucketsScript = joinScript("buckets", false)
)

func joinScript(strategy string, named bool) *script {
	var text []byte
	for _, name := range []string{"prelude", strategy, "driver"} {
		part, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
		if err != nil {
			panic(err) // a file missing at build time: no caller can cause it
		}
		text = append(text, part...)
	}
	sum := sha1.Sum(text)
	return &script{text: string(text), sha: hex.EncodeToString(sum[:]), named: named}
}

// onceCmd is a command that go-redis sends at most once. By default it resends
// after EOF and timeouts, EVALSHA too, and a script that had run would
// charge again.
type onceCmd struct{ *redis.Cmd }

// NoRetry tells go-redis not to resend.
func (onceCmd) NoRetry() bool { return true }

// eval runs the script once. Only NOSCRIPT proves that nothing ran, so only
// then it's sent again, with the text.
func (sc *script) eval(ctx context.Context, rdb redis.UniversalClient, keys []string, argv []any) ([]any, error) {
	args := make([]any, 0, 3+len(keys)+len(argv))
	args = append(args, "evalsha", sc.sha, len(keys))
	for _, k := range keys {
		args = append(args, k)
	}
	args = append(args, argv...)
	reply, err := processOnce(ctx, rdb, args)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		again := append([]any{"eval", sc.text}, args[2:]...)
		reply, err = processOnce(ctx, rdb, again)
	}
	return reply, err
}

func processOnce(ctx context.Context, rdb redis.UniversalClient, args []any) ([]any, error) {
	cmd := onceCmd{redis.NewCmd(ctx, args...)}
	if err := rdb.Process(ctx, cmd); err != nil {
		return nil, err
	}
	return cmd.Slice()
}
