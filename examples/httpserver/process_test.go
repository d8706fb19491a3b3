package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const (
	patience = 30 * time.Second // for what takes a moment
	poll     = 10 * time.Millisecond
)

// bin is where the programs are, once built.
var bin string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if bin != "" {
			_ = os.RemoveAll(bin)
		}
		os.Exit(code)
	}))
}

// built makes httpserver and hey, once.
var built = sync.OnceValue(func() error {
	var err error
	if bin, err = os.MkdirTemp("", "httpserver-"); err != nil {
		return err
	}
	args := []string{"build", "-ldflags=-s -w", "-o", bin + "/"}
	if raced {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, ".", "github.com/rakyll/hey")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
})

func program(t *testing.T, name string) string {
	t.Helper()
	require.NoError(t, built())
	return filepath.Join(bin, name)
}

// process is a program that runs. It doesn't outlive the test, nor the test binary.
type process struct {
	cmd    *exec.Cmd
	done   chan struct{} // closed when it has ended,
	err    error         // with this
	stderr bytes.Buffer  // to be read then
}

func startProcess(t *testing.T, stdout io.Writer, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(program(t, name), args...), done: make(chan struct{})}
	p.cmd.SysProcAttr, p.cmd.Stdout, p.cmd.Stderr = dieWithParent(), stdout, &p.stderr
	p.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // or the race detector waits a second
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		runtime.LockOSThread() // to the kernel this thread is the parent
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
	}()
	require.NoError(t, <-started)
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("%s said:\n%s", name, p.stderr.String())
		}
	})
	return p
}

// wait returns the exit code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatalf("%s doesn't end", p.cmd.Path)
	}
	return p.cmd.ProcessState.ExitCode()
}

// instance is one httpserver.
type instance struct {
	*process
	t   *testing.T
	url string
}

// startInstance starts one on a free port, with a config and a Redis. It waits long for Redis, since this
// machine may be busy.
func startInstance(t *testing.T, redis, config string, args ...string) *instance {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	r, w := io.Pipe()
	t.Cleanup(func() { _ = r.Close() })
	args = append([]string{"-addr", "127.0.0.1:0", "-redis", redis, "-config", file, "-redis-timeout", "10s"}, args...)
	p := startProcess(t, w, "httpserver", args...)
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, r) }()
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	require.True(t, ok, line)
	return &instance{p, t, url}
}

// stop asks it to end and returns the exit code.
func (i *instance) stop() int {
	i.t.Helper()
	require.NoError(i.t, i.cmd.Process.Signal(syscall.SIGTERM))
	return i.wait(i.t)
}

// get asks with a client's key and gives the status and the body.
func (i *instance) get(path, key string) (int, string) {
	i.t.Helper()
	r, err := http.NewRequestWithContext(i.t.Context(), http.MethodGet, i.url+path, nil)
	require.NoError(i.t, err)
	r.Header.Set(keyHeader, key)
	r.Close = true
	resp, err := http.DefaultClient.Do(r)
	require.NoError(i.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(i.t, err)
	return resp.StatusCode, string(body)
}

// sum adds up a metric's series that have all of some labels, given as name and value in turns.
func (i *instance) sum(name string, labels ...string) int {
	i.t.Helper()
	status, page := i.get("/metrics", "")
	require.Equal(i.t, http.StatusOK, status)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	require.NoError(i.t, err)
	total := 0.0
	for _, m := range families[name].GetMetric() {
		has := map[string]string{}
		for _, l := range m.GetLabel() {
			has[l.GetName()] = l.GetValue()
		}
		fits := true
		for j := 0; j < len(labels); j += 2 {
			fits = fits && has[labels[j]] == labels[j+1]
		}
		if fits {
			total += m.GetCounter().GetValue()
		}
	}
	return int(total)
}

// decisions counts the answers to calls for units.
func decisions(policy, verdict string, instances ...*instance) int {
	n := 0
	for _, i := range instances {
		n += i.sum("ration_decisions_total", "ration_policy", policy, "ration_verdict", verdict, "ration_operation", "allow")
	}
	return n
}

// statuses is how many answers had which.
type statuses map[int]int

func (s statuses) add(other statuses) {
	for status, n := range other {
		s[status] += n
	}
}

// hey is a run of the load generator.
type hey struct {
	*process
	out bytes.Buffer
}

// load starts n requests by c workers of a client; c divides n.
func load(t *testing.T, url, key string, n, c int, args ...string) *hey {
	t.Helper()
	h := &hey{}
	args = append([]string{"-n", strconv.Itoa(n), "-c", strconv.Itoa(c), "-t", "60", "-H", keyHeader + ": " + key}, args...)
	h.process = startProcess(t, &h.out, "hey", append(args, url)...)
	return h
}

var distribution = regexp.MustCompile(`\[(\d+)\]\s+(\d+) responses`)

// statuses waits for the end and gives hey's distribution of status codes.
func (h *hey) statuses(t *testing.T) statuses {
	t.Helper()
	require.Zero(t, h.wait(t))
	got := statuses{}
	for _, m := range distribution.FindAllStringSubmatch(h.out.String(), -1) {
		status, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		n, err := strconv.Atoi(m[2])
		require.NoError(t, err)
		got[status] += n
	}
	return got
}

// eventually polls until try gives nil.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			require.NoError(t, errors.Join(err, ctx.Err()))
		}
	}
}
