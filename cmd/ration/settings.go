package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/cmd/ration/internal/reqlog"
)

// usageError is a mistake in the flags or the policy.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// strategy is a way to count, by the name it has on the command line.
type strategy struct {
	name string
	open func(*ration.Store, ration.Policy) (ration.Limiter, error)
}

var strategies = []strategy{
	{"fixed", ration.NewFixedWindow},
	{"log", ration.NewSlidingLog},
	{"buckets", ration.NewSlidingBuckets},
	{"compact", ration.NewCompactLog},
	{"counter", ration.NewSlidingCounter},
	{"token", ration.NewTokenBucket},
}

func strategiesOf(name string) ([]strategy, error) {
	if name == "all" {
		return strategies, nil
	}
	for _, st := range strategies {
		if st.name == name {
			return []strategy{st}, nil
		}
	}
	return nil, usagef("unknown strategy %q: fixed, log, buckets, compact, counter, token or all", name)
}

// settings are what the flags and the policy file say.
type settings struct {
	policy     ration.Policy
	strategies []strategy
	other      *strategy // of -compare, nil if there is none
	shadow     bool
	parser     reqlog.Parser
	input      string // "" is standard input
	decisions  string // "" is nowhere
	strict     bool
	json       bool
}

// rawFlags are the flags as given.
type rawFlags struct {
	limits               []ration.Limit
	strategy, by, format string
	compare              string
	policy               string
	slots                int
	set                  map[string]bool
	files                []string
}

func parseSettings(args []string) (*settings, error) {
	s := &settings{}
	raw, err := s.parseFlags(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil, err
	}
	if err != nil {
		return nil, usageError{err}
	}
	if len(raw.files) > 1 {
		return nil, usagef("one log, not %d: %q", len(raw.files), raw.files)
	}
	if len(raw.files) == 1 && raw.files[0] != "-" {
		s.input = raw.files[0]
	}
	if s.decisions == "-" {
		return nil, usagef("-decisions needs a file; /dev/stdout is one")
	}
	file := policyFile{}
	if raw.set["policy"] {
		if file, err = readPolicy(raw.policy); err != nil {
			return nil, err
		}
	}
	if err := s.merge(raw, file); err != nil {
		return nil, err
	}
	return s, s.validate()
}

func (s *settings) parseFlags(args []string) (rawFlags, error) {
	raw := rawFlags{set: map[string]bool{}}
	fs := flag.NewFlagSet("simulate", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Func("limit", "", func(text string) error {
		l, err := parseLimit(text)
		raw.limits = append(raw.limits, l)
		return err
	})
	fs.StringVar(&raw.strategy, "strategy", "log", "")
	fs.StringVar(&raw.compare, "compare", "", "")
	fs.IntVar(&raw.slots, "slots", 0, "")
	fs.StringVar(&raw.by, "by", "address", "")
	fs.StringVar(&raw.policy, "policy", "", "")
	fs.StringVar(&raw.format, "format", "auto", "")
	fs.BoolVar(&s.shadow, "shadow", false, "")
	fs.BoolVar(&s.strict, "strict", false, "")
	fs.BoolVar(&s.json, "json", false, "")
	fs.StringVar(&s.decisions, "decisions", "", "")
	// Flags may follow the file too.
	for {
		if err := fs.Parse(args); err != nil {
			return raw, err
		}
		if fs.NArg() == 0 {
			break
		}
		raw.files = append(raw.files, fs.Arg(0))
		args = fs.Args()[1:]
	}
	fs.Visit(func(f *flag.Flag) { raw.set[f.Name] = true })
	return raw, nil
}

// merge puts flags, policy file and defaults together, in this order.
func (s *settings) merge(raw rawFlags, file policyFile) error {
	pick := func(flag, given, filed string) string {
		if raw.set[flag] || filed == "" {
			return given
		}
		return filed
	}
	s.policy = ration.Policy{Name: file.Name, Limits: raw.limits, Slots: raw.slots}
	if s.policy.Name == "" {
		s.policy.Name = "simulate"
	}
	if len(raw.limits) == 0 {
		s.policy.Limits = file.limits()
	}
	if !raw.set["slots"] {
		s.policy.Slots = file.Slots
	}
	if len(s.policy.Limits) == 0 {
		return usagef("no limit: give -limit 10/1m, or a -policy that has limits")
	}
	var err error
	if s.strategies, err = strategiesOf(pick("strategy", raw.strategy, file.Strategy)); err != nil {
		return err
	}
	if raw.set["compare"] {
		other, err := strategiesOf(raw.compare)
		if err != nil || len(other) != 1 {
			return usagef("-compare needs one strategy: fixed, log, buckets, compact, counter or token, not %q", raw.compare)
		}
		s.other = &other[0]
	}
	if s.parser.By, err = reqlog.ParseBy(pick("by", raw.by, string(file.By))); err != nil {
		return usagef("-by: %w", err)
	}
	if s.parser.Format, err = reqlog.ParseFormat(raw.format); err != nil {
		return usagef("-format: %w", err)
	}
	return nil
}

// validate lets the library look at the policy before the log is read. Its
// constructors need no Redis.
func (s *settings) validate() error {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	store, err := ration.Open(rdb)
	if err != nil {
		return err
	}
	all := s.strategies
	if s.other != nil {
		all = append(slices.Clone(all), *s.other)
	}
	for _, st := range all {
		if _, err := st.open(store, s.policyOf(st)); err != nil {
			return usageError{err}
		}
	}
	return nil
}
