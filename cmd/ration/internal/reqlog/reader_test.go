package reqlog

import (
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// readAll gives the keys by line, and the unreadable lines.
func readAll(t testing.TB, src io.Reader, p Parser) (keys map[int]string, bad []*LineError) {
	keys = map[int]string{}
	r := NewReader(src, p)
	for {
		e, err := r.Next()
		var line *LineError
		switch {
		case err == io.EOF:
			return keys, bad
		case errors.As(err, &line):
			bad = append(bad, line)
		default:
			require.NoError(t, err)
			keys[e.Line] = e.Key
		}
	}
}

func TestReader(t *testing.T) {
	const access = `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5`
	text := "\ufeff" + access + "\r\n\n" + // 1, 2
		`{"time":1,"key":"alice"}` + "\n" + // 3
		" \t \r\n" + // 4
		"what\x1b[2Jever\n" + // 5
		`  {"time":1,"key":"bob"}  ` + "\n" + // 6
		access // 7, without a newline
	for name, src := range map[string]io.Reader{
		"at once":      strings.NewReader(text),
		"byte by byte": iotest.OneByteReader(strings.NewReader(text)),
		"end early":    iotest.DataErrReader(strings.NewReader(text)),
	} {
		t.Run(name, func(t *testing.T) {
			keys, bad := readAll(t, src, Parser{})
			require.Equal(t, map[int]string{1: "192.0.2.1", 3: "alice", 6: "bob", 7: "192.0.2.1"}, keys)
			require.Len(t, bad, 1)
			require.Equal(t, 5, bad[0].Line)
			require.Equal(t, `line 5: `+errNoFields.Error()+`: "what\x1b[2Jever"`, bad[0].Error())
		})
	}
	keys, bad := readAll(t, strings.NewReader(text), Parser{Format: Access})
	require.Len(t, keys, 2)
	require.Len(t, bad, 3)
	keys, bad = readAll(t, strings.NewReader(text), Parser{Format: JSON})
	require.Len(t, keys, 2)
	require.Len(t, bad, 3)
}

func TestReaderWithNothingToRead(t *testing.T) {
	for _, text := range []string{"", "\n", "\r\n \n", "\ufeff"} {
		keys, bad := readAll(t, strings.NewReader(text), Parser{})
		require.Empty(t, keys)
		require.Empty(t, bad)
	}
}

func TestLongLines(t *testing.T) {
	line := func(size int) string {
		const frame = `{"time":1,"key":""}`
		return frame[:len(frame)-2] + strings.Repeat("k", size-len(frame)) + `"}`
	}
	text := line(maxLine-1) + "\n" + line(maxLine) + "\r\n" + line(5*maxLine) + "\n" + line(100) + "\n" + line(maxLine)
	keys, bad := readAll(t, strings.NewReader(text), Parser{})
	require.Len(t, keys, 2)
	require.Contains(t, keys, 1)
	require.Contains(t, keys, 4)
	require.Len(t, bad, 3)
	require.Equal(t, []int{2, 3, 5}, []int{bad[0].Line, bad[1].Line, bad[2].Line})
	require.Less(t, len(bad[1].Error()), 200)
}

func TestReadErrorEndsReading(t *testing.T) {
	broken := errors.New("broken")
	r := NewReader(io.MultiReader(strings.NewReader(`{"time":1,"key":"a"}`+"\n"), iotest.ErrReader(broken)), Parser{})
	_, err := r.Next()
	require.NoError(t, err)
	_, err = r.Next()
	require.ErrorIs(t, err, broken)
}

func TestSampleCutsWholeCharacters(t *testing.T) {
	for range 4 {
		text := strings.Repeat("é", 3*maxSample)
		require.NotContains(t, sample(text), `\x`)
		require.NotContains(t, sample("a"+text), `\x`)
	}
	require.NotPanics(t, func() { sample(strings.Repeat("\xbf", 3*maxSample)) })
}

func FuzzReadLine(f *testing.F) {
	for _, line := range []string{
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 5`,
		`2001:db8::7 - a [b] [17/May/2015:10:05:03 +0200] "GET /a\" HTTP/1.1" 200 - "say \"hi\"" "x\\"`,
		"- - - [17/May/2015:10:05:03 +0000] \"\x16\x03\xff\\\" 400 0 \"-\" \"\x1b[2J\"",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "-" - -`,
		`[17/May/2015:10:05:03 +0000] "`,
		`{"time":"2015-05-17T10:05:03.123456Z","key":"alice","n":3}`,
		`{"time":1431857103.123456,"key":"\ud800"}`,
		`{"time":-1.5e-400,"key":"a","n":9223372036854775808}`,
		"\ufeff{}", "{", "", "\x00", `"`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		for _, p := range []Parser{{}, {Format: Access, By: By{"path", "agent", "user"}}, {Format: JSON}} {
			e, err := p.Line(line)
			if err != nil {
				require.NotContains(t, err.Error(), "\n")
				continue
			}
			require.NotEmpty(t, e.Key)
			require.GreaterOrEqual(t, e.N, int64(1))
			require.True(t, e.Micros >= 0 && e.Micros <= lastMicros)
			roundTrip(t, e)
		}
		_, bad := readAll(t, strings.NewReader(string(line)), Parser{})
		for _, b := range bad {
			require.NotContains(t, b.Error(), "\n")
		}
	})
}

// roundTrip writes an entry as JSON, with each kind of time, and reads it again.
func roundTrip(t *testing.T, e Entry) {
	at := time.UnixMicro(e.Micros).UTC()
	for _, when := range []any{
		at.Format(time.RFC3339Nano),
		json.Number(itoa(e.Micros/1e6) + at.Format(".000000")),
		itoa(e.Micros) + "e-6",
	} {
		line, err := json.Marshal(map[string]any{"time": when, "key": e.Key, "n": e.N})
		require.NoError(t, err)
		again, err := Parser{}.Line(line)
		require.NoError(t, err, string(line))
		require.Equal(t, e, again, string(line))
	}
}
