package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/rationgo/ration"
)

const simulateUsage = `Usage: ration simulate [flags] [FILE]

Replays a log under a policy, with the scripts that would run in your Redis,
and says what would have been refused. FILE is an access log in common or
combined format, or JSON lines; "-" or none is standard input.

	{"time": "2026-03-01T12:00:00Z", "key": "alice", "n": 1}

The time is RFC 3339 or Unix seconds; n, the cost, is 1 if it isn't there.
Requests are taken in the order of their times, equal times in that of the file.

The policy:
  -limit UNITS/WINDOW  10/1m, 3/7s, 100/d or 5/1d12h; repeat it for several that
                       must all hold; 10/1m+20 is a token bucket with a burst of 20
  -strategy NAME       fixed, log, buckets, compact, counter, token, or all to compare them
                       (default log)
  -compare NAME        a second strategy that gets the same requests: how often the
                       verdicts differ from its, and which way
  -shadow              refuse nothing (ration.NewShadow), count what would be refused
  -slots N             slots a window of the buckets is cut into (default 20)
  -by FIELDS           what makes a subject, with commas between: address, user,
                       method, path (without its query), protocol, status,
                       referer, agent (default address); JSON lines have their key
  -policy FILE         a policy in YAML; flags go before it:

	name: api
	strategy: log
	slots: 20
	by: address,path
	limits:
	  - 10/1m
	  - {units: 100, window: 1h, name: hourly}

The log:
  -format NAME         access (also called common, combined) or json (default auto:
                       a line that begins with { is JSON)
  -strict              stop at a line that can't be read; otherwise it's counted

The answer:
  -json                one JSON object a strategy, each in a line
  -decisions FILE      write every decision as a line of JSON

Exit codes: 0 done, 1 failed, 2 wrong flags or policy.

The log and the state of its subjects are kept in memory. What is refused here isn't
charged, and the log has it all the same: so it's what ration.NewShadow would say of this
traffic.
`

func simulate(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	s, err := parseSettings(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, simulateUsage)
		return exitOK
	}
	if err == nil {
		err = s.run(stdin, stdout, stderr)
	}
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(stderr, "ration simulate:", oneLine(err))
	var wrong usageError
	if errors.As(err, &wrong) {
		return exitUsage
	}
	return exitFailure
}

// run does what the settings say.
func (s *settings) run(stdin io.Reader, stdout, stderr io.Writer) (err error) {
	bar := newProgress(stderr)
	defer bar.clear()
	t, err := s.readLog(stdin, bar)
	if err != nil {
		return err
	}
	bar.clear()
	t.complain(stderr)
	out, err := s.openDecisions()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.close()) }()
	var tallies []*tally
	for _, st := range s.strategies {
		sum := newTally(st.name, len(t.keys))
		sum.other = s.other
		err := s.replay(context.Background(), st, t, sum, func(i int, d ration.Decision) error {
			bar.show("simulating "+st.name, i+1, len(t.requests))
			sum.add(&t.requests[i], d)
			return out.write(st.name, t, i, d)
		})
		if err != nil {
			return fmt.Errorf("strategy %s: %w", st.name, err)
		}
		tallies = append(tallies, sum)
	}
	bar.clear()
	if s.json {
		return printJSON(stdout, s, t, tallies)
	}
	return printText(stdout, s, t, tallies)
}

// openDecisions makes the file of -decisions, but never on top of the log.
func (s *settings) openDecisions() (*decisionFile, error) {
	if s.decisions == "" {
		return nil, nil
	}
	if s.input != "" {
		log, err := os.Stat(s.input)
		old, err2 := os.Stat(s.decisions)
		if err == nil && err2 == nil && os.SameFile(log, old) {
			return nil, fmt.Errorf("-decisions %s would write over the log", s.decisions)
		}
	}
	return createDecisions(s.decisions)
}
