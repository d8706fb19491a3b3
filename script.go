package ration

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"strings"
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
	logScript     = joinScript("prelude", "common", "members", "zset", "driver").withName()
	bucketsScript = joinScript("prelude", "common", "buckets", "driver")
	compactScript = joinScript("prelude", "compact_const", "compact_fast", "common", "compact", "driver")
	counterScript = joinScript("prelude", "common", "muldiv", "counter", "driver")
	tokenScript   = joinScript("prelude", "common", "muldiv", "token", "driver").withRate()
	colorScript   = joinScript("prelude", "common", "muldiv", "token", "colors", "driver").withRate()
	combineScript = joinScript("prelude", "common", "muldiv", "members", "compact_const", "kinds:fixed,zset,buckets,token,counter,compact", "combined", "driver").
			withName().withKind()
	beatScript   = joinScript("prelude", "heartbeat")
	permitScript = joinScript("prelude", "common", "members", "concurrency")
)

func (s *script) withName() *script {
	s.named = true
	return s
}

func (s *script) withRate() *script {
	s.fields, s.answers = 4, 4
	return s
}

func (s *script) withKind() *script {
	s.fields, s.answers = 5, 4
	return s
}

// joinScript puts files of scripts/ together. "kinds:" and several strategies become kinds 1, 2, …, each in a
// block of its own.
func joinScript(parts ...string) *script {
	var text []byte
	for _, name := range parts {
		if names, several := strings.CutPrefix(name, "kinds:"); several {
			text = append(text, "local kinds = {}\n"...)
			for i, kind := range strings.Split(names, ",") {
				text = append(append(append(text, "do\n"...), scriptFile(kind)...), fmt.Sprintf(endKind, i+1)...)
			}
			continue
		}
		text = append(text, scriptFile(name)...)
	}
	sum := sha1.Sum(text)
	return &script{text: string(text), sha: hex.EncodeToString(sum[:]), fields: 3, answers: 3}
}

const endKind = "kinds[%d] = {read = read, wait = wait, charge = charge, mend = mend}\nend\n"

func scriptFile(name string) []byte {
	text, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // a file missing at build time: no caller can cause it
	}
	return text
}
