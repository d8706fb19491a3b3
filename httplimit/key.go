package httplimit

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/rationgo/ration/internal/middleware"
)

// KeyFunc gives the subject of a request: whose budget it is charged to. An error or an empty key
// means that the subject isn't known, and the request isn't let in; see [WithErrorHandler]. It's
// called concurrently.
//
// A key that the client can choose freely, such as the raw path or a header that nobody has
// checked, limits nothing: each guess would have its own budget.
type KeyFunc func(*http.Request) (string, error)

// call gives a key that is never empty, or ErrKey.
func call(key KeyFunc, r *http.Request) (string, error) {
	k, err := key(r)
	return middleware.CheckKey(k, err, ErrKey)
}

// Header is the value of a header field, such as an API key. It's an error if the field is
// missing, empty, or there several times, since it isn't known then which of them others go by.
// Use it inside whatever checks the value: an unchecked one is the client's choice.
func Header(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) (string, error) {
		values := r.Header[name]
		if len(values) != 1 {
			return "", fmt.Errorf("%w: the request has %d header fields %s, not one", ErrKey, len(values), name)
		}
		return values[0], nil
	}
}

// PathValue is the part of the path that a wildcard of the pattern matched, by
// http.Request.PathValue. It's an error where there is none, as around the mux instead of inside.
func PathValue(name string) KeyFunc {
	return func(r *http.Request) (string, error) {
		v := r.PathValue(name)
		if v == "" {
			return "", fmt.Errorf("%w: the path has no value %s", ErrKey, name)
		}
		return v, nil
	}
}

// Route is the pattern that the request matched, such as "POST /verify/{code}", so that all
// paths of a route share a budget, whatever the client writes in them. A trailing slash of
// the pattern makes no difference. It's an error where no mux has set http.Request.Pattern, as around the mux
// instead of inside.
func Route() KeyFunc {
	return func(r *http.Request) (string, error) {
		if r.Pattern == "" {
			return "", fmt.Errorf("%w: the request has no pattern", ErrKey)
		}
		if p := strings.TrimSuffix(strings.TrimSuffix(r.Pattern, "{$}"), "/"); p != "" {
			return p, nil
		}
		return "/", nil
	}
}

// Join is a key of several, such as the route and the client's address. Different parts never make
// the same key: "a", "bc" isn't "ab", "c". It's an error if any part is; no parts at all are one too.
func Join(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, error) {
		var joined []byte
		for _, key := range keys {
			part, err := call(key, r)
			if err != nil {
				return "", err
			}
			joined = middleware.AppendPart(joined, part)
		}
		return string(joined), nil
	}
}
