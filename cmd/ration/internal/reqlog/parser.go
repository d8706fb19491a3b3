package reqlog

import (
	"errors"
	"fmt"
	"strings"
)

// Format says what the lines are.
type Format uint8

// The formats. Access stands for the common and the combined format: combined
// is common with two fields more.
const (
	Auto Format = iota // each line by its first byte: { begins JSON
	Access
	JSON
)

// ParseFormat reads a format's name: auto, access, common, combined or json.
func ParseFormat(name string) (Format, error) {
	switch name {
	case "auto":
		return Auto, nil
	case "access", "common", "combined":
		return Access, nil
	case "json":
		return JSON, nil
	}
	return Auto, fmt.Errorf("unknown format %q: auto, access (common or combined) or json", name)
}

// Parser reads single lines.
type Parser struct {
	Format Format
	By     By // what makes the subject of a line of an access log; none means the address
}

// Line reads one line, without its newline. Entry.Line is left 0.
func (p Parser) Line(line []byte) (Entry, error) {
	if p.Format == JSON || p.Format == Auto && len(line) > 0 && line[0] == '{' {
		return parseJSON(line)
	}
	r, err := parseAccess(string(line))
	if err != nil {
		return Entry{}, err
	}
	return Entry{Micros: r.micros, Key: p.By.key(&r), N: 1}, nil
}

// record is a line of an access log. Texts are as the log spells them; "-" is
// what a server writes for a field it has nothing for.
type record struct {
	micros                 int64
	address, user          string
	method, path, protocol string
	status, referer, agent string
}

var (
	errNoFields  = errors.New("no address, name and user before a time in brackets")
	errNoRequest = errors.New("no request in quotes and status after the time")
	errControl   = errors.New("a control character in the address")
)

// parseAccess reads
//
//	address ident user [17/May/2015:10:05:03 +0000] "GET /path HTTP/1.1" 200 512 "referer" "agent"
//
// Address, time, the quotes around the request and the status must be there;
// what the request says may be anything, and what follows the status may be missing.
func parseAccess(line string) (record, error) {
	r := record{referer: "-", agent: "-"}
	address, rest, _ := strings.Cut(line, " ")
	who, rest, err := r.cutTime(rest)
	if err != nil {
		return r, err
	}
	_, user, found := strings.Cut(who, " ")
	if address == "" || !found {
		return r, errNoFields
	}
	if strings.ContainsFunc(address, isControl) {
		return r, errControl
	}
	r.address, r.user = address, user
	rest, quoted := strings.CutPrefix(rest, ` "`)
	request, rest, found := cutRequest(rest)
	if !quoted || !found {
		return r, errNoRequest
	}
	r.method, r.path, r.protocol = splitRequest(request)
	r.status, rest, _ = strings.Cut(rest[1:], " ")
	_, rest, _ = strings.Cut(rest, " ") // the size
	if referer, rest, found := cutQuoted(rest); found {
		r.referer = referer
		if agent, _, found := cutQuoted(strings.TrimPrefix(rest, " ")); found {
			r.agent = agent
		}
	}
	return r, nil
}

// cutTime cuts s around the first time in brackets and keeps the time. A
// user's name may have blanks and brackets too, so brackets alone don't do.
func (r *record) cutTime(s string) (before, after string, err error) {
	const longest = 48 // bytes of a time; keeps the work linear
	for from := 0; ; {
		i := strings.Index(s[from:], " [")
		if i < 0 {
			return "", "", errNoFields
		}
		from += i + len(" [")
		inside, _, found := strings.Cut(s[from:min(len(s), from+longest)], "]")
		if !found {
			continue
		}
		micros, err := clfTime(inside)
		if errors.Is(err, errRange) {
			return "", "", err
		}
		if err == nil {
			r.micros = micros
			return s[:from-len(" [")], s[from+len(inside)+len("]"):], nil
		}
	}
}

// cutRequest cuts s, which begins after a quote, at the quote that ends the
// request: one that a status follows. One that isn't escaped goes first; but
// a server that escapes nothing may have written a backslash before it.
func cutRequest(s string) (request, rest string, found bool) {
	second := -1
	escaped := false
	for i := range len(s) {
		switch {
		case s[i] == '"' && beginsWithStatus(s[i+1:]):
			if !escaped {
				return s[:i], s[i+1:], true
			}
			if second < 0 {
				second = i
			}
			escaped = false
		case s[i] == '\\':
			escaped = !escaped
		default:
			escaped = false
		}
	}
	if second < 0 {
		return "", "", false
	}
	return s[:second], s[second+1:], true
}

// beginsWithStatus finds a blank and three digits, or a blank and "-", as a
// whole field.
func beginsWithStatus(s string) bool {
	if len(s) < 2 || s[0] != ' ' {
		return false
	}
	size := 2
	if s[1] != '-' {
		size = 4
		if len(s) < size || !isDigits(s[1:size]) {
			return false
		}
	}
	return len(s) == size || s[size] == ' '
}

// cutQuoted cuts a text in quotes from the beginning of s.
func cutQuoted(s string) (inside, rest string, found bool) {
	s, found = strings.CutPrefix(s, `"`)
	if !found {
		return "", "", false
	}
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[:i], s[i+1:], true
		}
	}
	return "", "", false
}

// splitRequest takes a request's first line apart. All parts are "-" if it
// isn't one.
func splitRequest(request string) (method, path, protocol string) {
	method, target, found := strings.Cut(request, " ")
	if !found || !isMethod(method) {
		return "-", "-", "-"
	}
	protocol = "-"
	if i := strings.LastIndexByte(target, ' '); i >= 0 && strings.HasPrefix(target[i+1:], "HTTP/") {
		target, protocol = target[:i], target[i+1:]
	}
	path, _, _ = strings.Cut(target, "?")
	return method, path, protocol
}

func isMethod(s string) bool {
	for i := range len(s) {
		c := s[i] | 0x20
		if (c < 'a' || c > 'z') && s[i] != '-' && s[i] != '_' {
			return false
		}
	}
	return s != "" && s != "-"
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
