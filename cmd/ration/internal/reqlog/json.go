package reqlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

var (
	errNotUTF8  = errors.New("the line isn't UTF-8")
	errNoObject = errors.New("not a JSON object")
	errNoTime   = errors.New("no time")
	errNoKey    = errors.New("no key, or an empty one")
	errTime     = errors.New("the time is neither RFC 3339 nor Unix seconds")
)

// parseJSON reads {"time": …, "key": "…", "n": 1}. n may be missing and is 1
// then; other members are passed over.
func parseJSON(line []byte) (Entry, error) {
	if !utf8.Valid(line) {
		return Entry{}, errNotUTF8 // else different keys would be made one
	}
	var o struct {
		Time json.RawMessage `json:"time"`
		Key  string          `json:"key"`
		N    *int64          `json:"n"`
	}
	if err := json.Unmarshal(line, &o); err != nil {
		return Entry{}, explain(err)
	}
	micros, err := jsonTime(o.Time)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Micros: micros, Key: o.Key, N: 1}
	if e.Key == "" {
		return Entry{}, errNoKey
	}
	if o.N != nil {
		e.N = *o.N
	}
	if e.N < 1 {
		return Entry{}, fmt.Errorf("n is %d, not 1 or more", e.N)
	}
	return e, nil
}

// explain says what is wrong in words of JSON, not of Go.
func explain(err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case !errors.As(err, &wrong):
		return fmt.Errorf("not JSON: %w", err)
	case wrong.Field == "n":
		return fmt.Errorf("n is no whole number within 64 bits: %s", wrong.Value)
	case wrong.Field != "":
		return fmt.Errorf("%s is no text: %s", wrong.Field, wrong.Value)
	}
	return errNoObject
}

// jsonTime reads a number, or a text, of Unix seconds, or a text in RFC 3339.
func jsonTime(raw json.RawMessage) (int64, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return 0, errNoTime
	}
	text := string(raw)
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &text); err != nil {
			return 0, errTime
		}
		if strings.Contains(text, ":") {
			return rfc3339(text)
		}
	}
	return unixSeconds(text)
}
