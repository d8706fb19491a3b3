package ration

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Redis keys are made here and nowhere else:
//
//	<prefix>:<policy>:<strategy and format version>:<window µs>:{<subject>}[:<slot>]
//
// The prefix is free of braces and the policy of colons, and the subject's own
// braces are escaped: so the hash tag is the subject, whole, and a key can be
// read back in one way only.

// maxSubject is the longest escaped subject kept readable in a key, in bytes.
// With a 32 byte prefix and the longest policy name a key stays below 300.
const maxSubject = 128

// keyBase is all of a key before the subject's text.
func keyBase(prefix, policy, code string, windowMicros int64) string {
	return prefix + ":" + policy + ":" + code + ":" + strconv.FormatInt(windowMicros, 10) + ":{"
}

// appendKeys adds a limit's keys for an escaped subject: one without a slot, or
// one for each of slots 0 to n-1, all of them parts of one string.
func appendKeys(keys []string, base, subject string, slotted bool, n int64) []string {
	if !slotted {
		return append(keys, base+subject+"}")
	}
	all := make([]byte, 0, int(n)*(len(base)+len(subject)+len("}:000")))
	ends := make([]int, n)
	for i := range n {
		all = append(append(append(all, base...), subject...), "}:"...)
		all = strconv.AppendInt(all, i, 10)
		ends[i] = len(all)
	}
	text, start := string(all), 0
	for _, end := range ends {
		keys = append(keys, text[start:end])
		start = end
	}
	return keys
}

// escapeSubject makes a subject fit for a key: percent escapes for what would
// move the hash tag, break a tool's line or not be text; a digest, marked by
// a percent sign that no escape begins with, for what would be too long.
// Different subjects give different texts.
func escapeSubject(subject string) string {
	if len(subject) <= maxSubject {
		if !needsEscape(subject) {
			return subject
		}
		if s := percentEscape(subject); len(s) <= maxSubject {
			return s
		}
	}
	sum := sha256.Sum256([]byte(subject))
	return "%sha256-" + base64.RawURLEncoding.EncodeToString(sum[:])
}

func needsEscape(subject string) bool {
	i := 0
	for i < len(subject) && subject[i] < utf8.RuneSelf { // nearly all subjects are ASCII
		if escaped(rune(subject[i]), 1) {
			return true
		}
		i++
	}
	for i < len(subject) {
		r, size := utf8.DecodeRuneInString(subject[i:])
		if escaped(r, size) {
			return true
		}
		i += size
	}
	return false
}

func percentEscape(subject string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(subject); {
		r, size := utf8.DecodeRuneInString(subject[i:])
		if !escaped(r, size) {
			b.WriteString(subject[i : i+size])
		} else {
			for _, c := range []byte(subject[i : i+size]) {
				b.Write([]byte{'%', hex[c>>4], hex[c&15]})
			}
		}
		i += size
	}
	return b.String()
}

// escaped tells blanks, control characters, braces, the escape itself and what isn't
// UTF-8. The list is spelled out: the tables of package unicode grow, and
// two instances built by different Go versions must agree on every key.
func escaped(r rune, size int) bool {
	switch {
	case r == utf8.RuneError && size == 1:
		return true
	case r <= ' ', r == '%', r == '{', r == '}', r >= 0x7f && r <= 0xa0:
		return true
	case r < 0x1680:
		return false
	}
	return r == 0x1680 || r >= 0x2000 && r <= 0x200f || r >= 0x2028 && r <= 0x202f ||
		r >= 0x205f && r <= 0x206f || r == 0x3000 || r == 0xfeff
}
