package reqlog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// By names the fields of an access log that make a subject, one or more.
type By []string

// fields are the names a By may have.
var fields = map[string]func(*record) string{
	"address":  func(r *record) string { return r.address },
	"agent":    func(r *record) string { return r.agent },
	"method":   func(r *record) string { return r.method },
	"path":     func(r *record) string { return r.path },
	"protocol": func(r *record) string { return r.protocol },
	"referer":  func(r *record) string { return r.referer },
	"status":   func(r *record) string { return r.status },
	"user":     func(r *record) string { return r.user },
}

// ParseBy reads names of fields with commas between them: "address,path".
func ParseBy(text string) (By, error) {
	var by By
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if fields[name] == nil {
			return nil, fmt.Errorf("unknown field %q: address, user, method, path, protocol, status, referer or agent", name)
		}
		if slices.Contains(by, name) {
			return nil, fmt.Errorf("field %q is there twice", name)
		}
		by = append(by, name)
	}
	return by, nil
}

// String is what ParseBy reads.
func (b By) String() string { return strings.Join(b, ",") }

// key makes the subject. Of several fields each that has a blank or a quote
// stands in quotes, so two different records never make one subject.
func (b By) key(r *record) string {
	switch len(b) {
	case 0:
		return printable(r.address)
	case 1:
		return printable(fields[b[0]](r))
	}
	var key strings.Builder
	for i, name := range b {
		if i > 0 {
			key.WriteByte(' ')
		}
		value := printable(fields[name](r))
		if strings.ContainsAny(value, ` "`) {
			value = strconv.Quote(value)
		}
		key.WriteString(value)
	}
	return key.String()
}

// printable writes bytes that are no text, and control characters, as most
// servers do by themselves: \x16. A missing value is "-", as in the log.
func printable(value string) string {
	if value == "" {
		return "-"
	}
	if utf8.ValidString(value) && !strings.ContainsFunc(value, isControl) {
		return value
	}
	var text strings.Builder
	for i := 0; i < len(value); {
		r, size := utf8.DecodeRuneInString(value[i:])
		if r == utf8.RuneError && size == 1 || isControl(r) {
			for _, b := range []byte(value[i : i+size]) {
				fmt.Fprintf(&text, `\x%02x`, b)
			}
		} else {
			text.WriteString(value[i : i+size])
		}
		i += size
	}
	return text.String()
}

func isControl(r rune) bool { return unicode.IsControl(r) }
