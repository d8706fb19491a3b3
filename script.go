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

	fields  int // numbers it takes of a limit
	answers int // and numbers it answers
}

// The scripts, put together before hashing: the clock, what the strategies
// share, the strategy, the driver.
var (
	fixedScript   = joinScript("prelude", "fixed_fast", "common", "fixed", "driver")
	logScript     = joinScript("prelude", "common", "zset", "driver").withName()
	bucketsScript = joinScript("prelude", "common", "buckets", "driver")
	tokenScript   = joinScript("prelude", "common", "muldiv", "token", "driver").withRate()
	beatScript    = joinScript("prelude", "heartbeat")
)

func (s *script) withName() *script {
	s.named = true
	return s
}

func (s *script) withRate() *script {
	s.fields, s.answers = 4, 4
	return s
}

func joinScript(parts ...string) *script {
	var text []byte
	for _, name := range parts {
		part, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
		if err != nil {
			panic(err) // a file missing at build time: no caller can cause it
		}
		text = append(text, part...)
	}
	sum := sha1.Sum(text)
	return &script{text: string(text), sha: hex.EncodeToString(sum[:]), fields: 3, answers: 3}
}
