package reqlog

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ten is 17/May/2015:10:05:03 +0000.
var ten = time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC).UnixMicro()

const at = `[17/May/2015:10:05:03 +0000]` // ten

// want is the record of a plain line but for a change.
func want(change func(*record)) record {
	r := record{
		micros: ten, address: "192.0.2.1", user: "-", method: "GET", path: "/a",
		protocol: "HTTP/1.1", status: "200", referer: "-", agent: "-",
	}
	change(&r)
	return r
}

func TestAccessLine(t *testing.T) {
	for _, c := range []struct {
		name, line string
		want       record
	}{
		{"common", `192.0.2.1 - - ` + at + ` "GET /a HTTP/1.1" 200 512`, want(func(*record) {})},
		{"combined", `192.0.2.1 - bob ` + at + ` "POST /a?x=1&y=/b?c HTTP/1.1" 201 - "http://example.com/" "Mozilla/5.0 (X11)"`,
			want(func(r *record) {
				r.user, r.method, r.status = "bob", "POST", "201"
				r.referer, r.agent = "http://example.com/", "Mozilla/5.0 (X11)"
			})},
		{"fields after the agent", `192.0.2.1 - - ` + at + ` "GET /a HTTP/1.1" 200 5 "r" "a" "10.0.0.1" 0.003`,
			want(func(r *record) { r.referer, r.agent = "r", "a" })},
		{"zone", `192.0.2.1 - - [17/May/2015:12:05:03 +0200] "GET /a HTTP/1.1" 200 512`, want(func(*record) {})},
		{"IPv6", `2001:db8::7 - - ` + at + ` "GET /a HTTP/2.0" 200 512`,
			want(func(r *record) { r.address, r.protocol = "2001:db8::7", "HTTP/2.0" })},
		{"no address", `- - - ` + at + ` "GET /a HTTP/1.1" 200 512`, want(func(r *record) { r.address = "-" })},
		{"user with blanks and brackets", `192.0.2.1 - a b [c] ` + at + ` "GET /a HTTP/1.1" 200 512`,
			want(func(r *record) { r.user = "a b [c]" })},
		{"escaped quotes", `192.0.2.1 - - ` + at + ` "GET /a\" HTTP/1.1" 200 512 "say \"hi\"" "back\\"`,
			want(func(r *record) { r.path, r.referer, r.agent = `/a\"`, `say \"hi\"`, `back\\` })},
		{"bare quotes", `192.0.2.1 - - ` + at + ` "GET /a"b" HTTP/1.1" 200 512`,
			want(func(r *record) { r.path = `/a"b"` })},
		{"blanks in the path", `192.0.2.1 - - ` + at + ` "GET /a b c HTTP/1.1" 200 512`,
			want(func(r *record) { r.path = "/a b c" })},
		{"HTTP/0.9", `192.0.2.1 - - ` + at + ` "GET /a" 200 512`, want(func(r *record) { r.protocol = "-" })},
		{"no size", `192.0.2.1 - - ` + at + ` "GET /a HTTP/1.1" 200`, want(func(*record) {})},
		{"no status", `192.0.2.1 - - ` + at + ` "GET /a HTTP/1.1" - -`, want(func(r *record) { r.status = "-" })},
		{"cut off in the agent", `192.0.2.1 - - ` + at + ` "GET /a HTTP/1.1" 200 5 "r" "Mozil`,
			want(func(r *record) { r.referer = "r" })},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseAccess(c.line)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

// Whatever a client sent, its address and time can be read.
func TestGarbageInTheRequest(t *testing.T) {
	for name, line := range map[string]string{
		"request -":                        `192.0.2.1 - - ` + at + ` "-" 400 0`,
		"empty request":                    `192.0.2.1 - - ` + at + ` "" 400 0`,
		"escaped garbage":                  `192.0.2.1 - - ` + at + ` "\x16\x03\x01\x02\"\\" 400 226 "-" "-"`,
		"raw garbage":                      "192.0.2.1 - - " + at + " \"\x16\x03\xff \"\" \\\x00\" 400 226",
		"garbage that ends in a backslash": `192.0.2.1 - - ` + at + ` "\x00 " \" 400 226`,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseAccess(line)
			require.NoError(t, err)
			require.Equal(t, want(func(r *record) {
				r.method, r.path, r.protocol, r.status = "-", "-", "-", "400"
			}), got)
		})
	}
}

func TestUnreadableAccessLine(t *testing.T) {
	const rest = ` "GET /a HTTP/1.1" 200 512`
	for name, line := range map[string]string{
		"empty":                   "",
		"prose":                   "the server was restarted",
		"only an address":         "192.0.2.1",
		"no time":                 `192.0.2.1 - -` + rest,
		"a time that isn't":       `192.0.2.1 - - [17/Mai/2015:10:05:03 +0000]` + rest,
		"a day that isn't":        `192.0.2.1 - - [31/Feb/2015:10:05:03 +0000]` + rest,
		"a bracket left open":     `192.0.2.1 - - [17/May/2015:10:05:03 +0000` + rest,
		"before 1970":             `192.0.2.1 - - [31/Dec/1969:23:59:59 +0000]` + rest,
		"after 2199":              `192.0.2.1 - - [01/Jan/2200:00:00:00 +0000]` + rest,
		"no user":                 `192.0.2.1 - [17/May/2015:10:05:03 +0000]` + rest,
		"no request":              `192.0.2.1 - - [17/May/2015:10:05:03 +0000]`,
		"cut off in the request":  `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a`,
		"no status":               `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1"`,
		"a status that isn't":     `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 2000 5`,
		"zeros before the line":   "\x00\x00192.0.2.1 - - [17/May/2015:10:05:03 +0000]" + rest,
		"brackets without an end": "192.0.2.1 - -" + strings.Repeat(" [", 300_000),
		"quotes without an end":   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "` + strings.Repeat(`" 20`, 300_000),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parser{}.Line([]byte(line))
			require.Error(t, err)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestJSONLine(t *testing.T) {
	for _, c := range []struct {
		line string
		want Entry
	}{
		{`{"time":"2015-05-17T10:05:03Z","key":"alice","n":3}`, Entry{Micros: ten, Key: "alice", N: 3}},
		{`{"time":"2015-05-17T12:05:03.000001+02:00","key":"alice"}`, Entry{Micros: ten + 1, Key: "alice", N: 1}},
		{`{"time":"2015-05-17t10:05:03.9999999z","key":"a"}`, Entry{Micros: ten + 999_999, Key: "a", N: 1}},
		{` {"n":null,"key":"a","time":1431857103,"more":[{}]}`, Entry{Micros: ten, Key: "a", N: 1}},
		{`{"time":"1431857103.25","key":" "}`, Entry{Micros: ten + 250_000, Key: " ", N: 1}},
		{`{"time":0,"key":"\u0000"}`, Entry{Key: "\x00", N: 1}},
		{`{"time":1,"key":"a","n":9223372036854775807}`, Entry{Micros: 1e6, Key: "a", N: 1<<63 - 1}},
	} {
		got, err := Parser{Format: JSON, By: By{"path"}}.Line([]byte(c.line))
		require.NoError(t, err, c.line)
		require.Equal(t, c.want, got, c.line)
	}
}

func TestUnreadableJSONLine(t *testing.T) {
	for line, reason := range map[string]string{
		`{`:                                         "not JSON: unexpected end of JSON input",
		`{"time":1,"key":"a"} x`:                    "not JSON: invalid character 'x' after top-level value",
		`{"time":1,"key":"a"}{}`:                    "not JSON: invalid character '{' after top-level value",
		`[1]`:                                       "not a JSON object",
		`7`:                                         "not a JSON object",
		`null`:                                      "no time",
		`{"key":"a"}`:                               "no time",
		`{"time":null,"key":"a"}`:                   "no time",
		`{"time":true,"key":"a"}`:                   errTime.Error(),
		`{"time":{},"key":"a"}`:                     errTime.Error(),
		`{"time":"","key":"a"}`:                     errTime.Error(),
		`{"time":"2015-05-17","key":"a"}`:           errTime.Error(),
		`{"time":"10:05","key":"a"}`:                errTime.Error(),
		`{"time":-1,"key":"a"}`:                     errRange.Error(),
		`{"time":1431857103000,"key":"a"}`:          errRange.Error(),
		`{"time":1}`:                                "no key, or an empty one",
		`{"time":1,"key":""}`:                       "no key, or an empty one",
		`{"time":1,"key":7}`:                        "key is no text: number",
		`{"time":1,"key":"a","n":0}`:                "n is 0, not 1 or more",
		`{"time":1,"key":"a","n":-5}`:               "n is -5, not 1 or more",
		`{"time":1,"key":"a","n":1.5}`:              "n is no whole number within 64 bits: number 1.5",
		`{"time":1,"key":"a","n":"1"}`:              "n is no whole number within 64 bits: string",
		"{\"time\":1,\"key\":\"a\xff\"}":            "the line isn't UTF-8",
		strings.Repeat(`{"time":`, 100_000):         "exceeded max depth",
		`{"time":"0000-01-01T00:00:00Z","key":"a"}`: errRange.Error(),
		`{"time":"9999-12-31T23:59:59Z","key":"a"}`: errRange.Error(),
		`{"time":"2015-05-17T10:05:60Z","key":"a"}`: errTime.Error(),
	} {
		_, err := Parser{Format: JSON}.Line([]byte(line))
		require.ErrorContains(t, err, reason, line[:min(len(line), 80)])
	}
}

func TestUnixSeconds(t *testing.T) {
	for text, want := range map[string]int64{
		"0":                           0,
		"-0":                          0,
		"0.0000009":                   0,
		"1431857103":                  1431857103_000000,
		"1431857103.0":                1431857103_000000,
		"1431857103.000001":           1431857103_000001,
		"1431857103.1":                1431857103_100000,
		"1431857103.9999999999999999": 1431857103_999999,
		"1796017361.920977":           1796017361_920977,
		"7258118399.999999":           lastMicros,
		"007":                         7_000000,
		"1.431857103e9":               1431857103_000000,
		"1.431857103000001E+9":        1431857103_000001,
		"15e-1":                       1_500000,
		"1e-400":                      0,
		"0e999":                       0,
	} {
		got, err := unixSeconds(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"7258118400", "-1", "-0.1", "1e300", "1e10", strings.Repeat("9", 400)} {
		_, err := unixSeconds(text)
		require.ErrorIs(t, err, errRange, text)
	}
	for _, text := range []string{"", ".", "1.", ".5", "-", "--1", "+1", "1e", "e1", "1e1.5", "1e9999999999999999999", "1_0", "0x10", "1 ", "٣", "NaN", "1.-5"} {
		_, err := unixSeconds(text)
		require.ErrorIs(t, err, errTime, text)
	}
}

// Every microsecond of a decimal text is kept, wherever it is in time.
func TestUnixSecondsKeepsMicroseconds(t *testing.T) {
	for micros := int64(1); micros < lastMicros; micros = micros*3 + 1 {
		got, err := unixSeconds(itoa(micros/1e6) + time.UnixMicro(micros).UTC().Format(".000000"))
		require.NoError(t, err)
		require.Equal(t, micros, got)
	}
}

func TestBy(t *testing.T) {
	line := `192.0.2.1 - bob [17/May/2015:10:05:03 +0000] "GET /a?q HTTP/1.1" 404 5 "" "curl/8 \"x\""`
	for by, want := range map[string]string{
		"address":        "192.0.2.1",
		"user":           "bob",
		"method":         "GET",
		"path":           "/a",
		"protocol":       "HTTP/1.1",
		"status":         "404",
		"referer":        "-",
		"agent":          `curl/8 \"x\"`,
		"address,path":   "192.0.2.1 /a",
		" path , method": "/a GET",
		"agent,address":  `"curl/8 \\\"x\\\"" 192.0.2.1`,
	} {
		fields, err := ParseBy(by)
		require.NoError(t, err, by)
		e, err := Parser{By: fields}.Line([]byte(line))
		require.NoError(t, err, by)
		require.Equal(t, Entry{Micros: ten, Key: want, N: 1}, e, by)
	}
	for _, by := range []string{"", ",", "address,", "adress", "address,address", "Address"} {
		_, err := ParseBy(by)
		require.Error(t, err, by)
	}
}

// Values of several fields can't be shifted into each other.
func TestByNeverCollides(t *testing.T) {
	values := []string{"a", "b", "a b", `a"`, `"a" b`, `"a b"`, `\`, `a\ b`, `"`, `" "`, "-", " ", "ä ö"}
	by := By{"user", "agent", "path"}
	seen := map[string]record{}
	for _, user := range values {
		for _, agent := range values {
			for _, path := range values {
				r := record{user: user, agent: agent, path: path}
				old, found := seen[by.key(&r)]
				require.False(t, found, "%q and %q", old, r)
				seen[by.key(&r)] = r
			}
		}
	}
}

func TestKeysArePrintable(t *testing.T) {
	require.Equal(t, `a\x16\xff\xc2\x85é\x1b[31m`, printable("a\x16\xff\u0085é\x1b[31m"))
	require.Equal(t, "�", printable("�"), "the replacement character itself is text")
}
