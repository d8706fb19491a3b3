package reqlog

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// lastMicros is the end of the year 2199. The scripts count microseconds
// below 2^53, which is the year 2255, and a window may reach 50 years ahead.
const lastMicros = 7258118400_000000 - 1

var errRange = errors.New("the time isn't in 1970 to 2199")

func inRange(micros int64) (int64, error) {
	if micros < 0 || micros > lastMicros {
		return 0, errRange
	}
	return micros, nil
}

// clfTime reads the time of an access log.
func clfTime(text string) (int64, error) {
	t, err := time.Parse("02/Jan/2006:15:04:05 -0700", text)
	if err != nil {
		return 0, err
	}
	return inRange(t.UnixMicro())
}

func rfc3339(text string) (int64, error) {
	var t time.Time
	// Unlike time.Parse it's strict. The T and the Z may be small by RFC 3339.
	if err := t.UnmarshalText([]byte(strings.ToUpper(text))); err != nil {
		return 0, errTime
	}
	return inRange(t.UnixMicro())
}

// unixSeconds reads a decimal number of seconds, with a fraction and an
// exponent or without. It goes by the digits: as a float64, times of today
// would be off by some tenth of a microsecond and then cut to the wrong one.
func unixSeconds(text string) (int64, error) {
	number, exponent := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		var err error
		number = text[:i]
		exponent, err = strconv.Atoi(text[i+1:])
		if err != nil || exponent < -1000 || exponent > 1000 {
			return 0, errTime
		}
	}
	number, negative := strings.CutPrefix(number, "-")
	whole, fraction, point := strings.Cut(number, ".")
	if !isDigits(whole) || point && !isDigits(fraction) {
		return 0, errTime
	}
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return 0, nil
	}
	// The digits before the point, once it's moved from seconds to microseconds.
	const micro = 6
	size := len(digits) - len(fraction) + exponent + micro
	switch {
	case negative || size > len("7258118399")+micro:
		return 0, errRange
	case size <= 0:
		return 0, nil
	case size > len(digits):
		digits += strings.Repeat("0", size-len(digits))
	}
	micros, err := strconv.ParseInt(digits[:size], 10, 64)
	if err != nil {
		return 0, errTime
	}
	return inRange(micros)
}
