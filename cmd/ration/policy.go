package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rationgo/ration"
)

// parseLimit reads UNITS/WINDOW, such as 10/1m, and UNITS/WINDOW+BURST.
func parseLimit(text string) (ration.Limit, error) {
	units, window, found := strings.Cut(text, "/")
	if !found {
		return ration.Limit{}, fmt.Errorf("limit %q isn't UNITS/WINDOW, such as 10/1m", text)
	}
	n, err := strconv.ParseUint(units, 10, 63)
	if err != nil {
		return ration.Limit{}, fmt.Errorf("limit %q: %q is no number of units", text, units)
	}
	l := ration.Limit{Units: int64(n)}
	window, burst, bursts := strings.Cut(window, "+")
	if bursts {
		b, err := strconv.ParseUint(burst, 10, 63)
		if err != nil || b == 0 {
			return ration.Limit{}, fmt.Errorf("limit %q: %q is no burst", text, burst)
		}
		l.Burst = int64(b)
	}
	if l.Window, err = parseWindow(window); err != nil {
		return ration.Limit{}, fmt.Errorf("limit %q: %w", text, err)
	}
	return l, nil
}

// parseWindow reads a duration of Go, with days before it if need be (7d,
// 1d12h), or a unit alone (m is 1m).
func parseWindow(text string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is no window, such as 30s, 1m, 1h30m, 7d or h", text)
	const decimal = "0123456789."
	rest := text
	if text != "" && strings.Trim(text[:1], decimal) != "" {
		rest = "1" + rest
	}
	var window time.Duration
	if days, after, found := strings.Cut(rest, "d"); found {
		// In hours first, since Go knows no days: so fractions work too.
		d, err := time.ParseDuration(days + "h")
		if err != nil || d > ration.MaxWindow/24 || strings.Trim(days, decimal) != "" {
			return 0, wrong
		}
		window, rest = 24*d, after
		if rest == "" {
			return window, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d > ration.MaxWindow || strings.Trim(rest[:1], decimal) != "" {
		return 0, wrong
	}
	return window + d, nil
}

// policyFile is a policy in YAML.
type policyFile struct {
	Name     string      `yaml:"name"`
	Strategy string      `yaml:"strategy"`
	Slots    int         `yaml:"slots"`
	By       fieldList   `yaml:"by"`
	Limits   []limitSpec `yaml:"limits"`
}

func (f policyFile) limits() []ration.Limit {
	limits := make([]ration.Limit, len(f.Limits))
	for i, l := range f.Limits {
		limits[i] = ration.Limit(l)
	}
	return limits
}

func readPolicy(path string) (policyFile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return policyFile{}, err
	}
	f, err := decodePolicy(text)
	if err != nil {
		return f, usagef("policy %s: %w", path, err)
	}
	return f, nil
}

func decodePolicy(text []byte) (policyFile, error) {
	var f policyFile
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	err := decoder.Decode(&f)
	if errors.Is(err, io.EOF) {
		return f, nil // nothing in it: the flags may have all
	}
	var wrong *yaml.TypeError
	if errors.As(err, &wrong) {
		// The first is enough, and the names of Go's types help nobody.
		first, _, _ := strings.Cut(wrong.Errors[0], " in type ")
		first, _, _ = strings.Cut(first, " into ")
		return f, errors.New(first)
	}
	if err != nil {
		return f, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return f, errors.New("more than one document")
	}
	return f, nil
}

// fieldList is written "address,path" or [address, path].
type fieldList string

// UnmarshalYAML reads either way.
func (l *fieldList) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.SequenceNode {
		return node.Decode((*string)(l))
	}
	var names []string
	if err := node.Decode(&names); err != nil {
		return err
	}
	*l = fieldList(strings.Join(names, ","))
	return nil
}

// limitSpec is written 10/1m or {units: 10, window: 1m, name: …}.
type limitSpec ration.Limit

// UnmarshalYAML reads either way.
func (l *limitSpec) UnmarshalYAML(node *yaml.Node) error {
	limit, err := decodeLimit(node)
	if err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	*l = limitSpec(limit)
	return nil
}

func decodeLimit(node *yaml.Node) (ration.Limit, error) {
	switch node.Kind {
	case yaml.ScalarNode:
		return parseLimit(node.Value)
	case yaml.MappingNode:
	default:
		return ration.Limit{}, errors.New("a limit is 10/1m or {units: 10, window: 1m}")
	}
	// KnownFields doesn't reach in here.
	for i := 0; i < len(node.Content); i += 2 {
		switch name := node.Content[i].Value; name {
		case "units", "window", "name", "burst", "<<":
		default:
			return ration.Limit{}, fmt.Errorf("field %s not found", name)
		}
	}
	var spec struct {
		Units  *int64
		Window string
		Name   string
		Burst  int64
	}
	if err := node.Decode(&spec); err != nil {
		return ration.Limit{}, errors.New("units and burst are whole numbers; window and name are texts")
	}
	if spec.Units == nil || spec.Window == "" {
		return ration.Limit{}, errors.New("a limit needs units and a window")
	}
	window, err := parseWindow(spec.Window)
	return ration.Limit{Name: spec.Name, Units: *spec.Units, Window: window, Burst: spec.Burst}, err
}
