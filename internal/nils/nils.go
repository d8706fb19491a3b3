// Package nils tells a nil inside an interface, which == nil doesn't.
package nils

import "reflect"

// Is reports whether v is nil, or an interface that holds a nil pointer, function or map.
func Is(v any) bool {
	if v == nil {
		return true
	}
	rv := reflect.ValueOf(v)
	switch rv.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Interface:
		return rv.IsNil()
	}
	return false
}
