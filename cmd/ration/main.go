// Command ration works with rate limits from the command line. Its one
// command so far, simulate, answers: what would this policy do to my traffic?
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

const usage = `ration works with rate limits.

Usage:

	ration simulate [flags] [FILE]    what would this policy do to my traffic?
	ration help                       this text

"ration simulate -h" says more.
`

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1 // a file that can't be read or written, -strict, an error while deciding
	exitUsage   = 2 // a wrong flag, limit, strategy or policy
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	command := "help"
	if len(args) > 0 {
		command = args[0]
	}
	switch command {
	case "simulate":
		return simulate(args[1:], stdin, stdout, stderr)
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	}
	fmt.Fprintf(stderr, "ration: unknown command %q; see ration help\n", command)
	return exitUsage
}

// oneLine is an error's text in one line, without the library's own prefix:
// the command puts its name there.
func oneLine(err error) string {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.TrimPrefix(strings.Join(lines, " "), "ration: ")
}
