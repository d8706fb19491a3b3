package ration

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
)

//go:embed scripts/*.lua
var scriptFiles embed.FS

// script is one strategy's whole Lua text and the name Redis knows it by.
type script struct {
	text  string
	sha   string
	named bool // it takes the run's name
}

// The scripts, put together before hashing: the clock, what the strategies
// share, the strategy, the driver.
var (
	fixedScript   = joinScript(false, "prelude", "fixed_fast", "common", "fixed", "driver")
	logScript     = joinScript(true, "prelude", "common", "zset", "driver")
	bucketsScript = joinScript(false, "prelude", "common", "buckets", "driver")
	beatScript    = joinScript(false, "prelude", "heartbeat")
)

func joinScript(named bool, parts ...string) *script {
	var text []byte
	for _, name := range parts {
		part, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
		if err != nil {
			panic(err) // a file missing at build time: no caller can cause it
		}
		text = append(text, part...)
	}
	sum := sha1.Sum(text)
	return &script{text: string(text), sha: hex.EncodeToString(sum[:]), named: named}
}
