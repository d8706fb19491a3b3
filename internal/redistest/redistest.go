// Package redistest starts real redis-server processes for tests, on free
// loopback ports, and stops those and no others.
//
//	srv := redistest.Start(t)
//	rdb := srv.Client(t)
//
// [Start] gives one server, [StartCluster] a cluster of three masters,
// [StartSentinel] a master and a replica under three sentinels. Each keeps its
// files in a directory of its own, stores nothing, and is gone when the test
// is: by a cleanup, and on Linux also when the test binary panics or is
// killed. Nothing may be started inside a testing/synctest bubble.
//
// Without redis-server on PATH a test is skipped, saying so. Where it must
// not be skipped, set RATION_REQUIRE_REDIS=1 and it fails instead.
package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// requireEnv names the variable that forbids skipping.
const requireEnv = "RATION_REQUIRE_REDIS"

// Option changes how a server is started.
type Option interface{ apply(*settings) }

type optionFunc func(*settings)

func (f optionFunc) apply(s *settings) { f(s) }

type settings struct {
	args     []string
	clock    time.Time
	hasClock bool
}

// WithArgs adds arguments to the server's command line, after those it gets
// anyway, for example "--maxmemory", "1mb".
func WithArgs(args ...string) Option {
	return optionFunc(func(s *settings) { s.args = append(s.args, args...) })
}

func collect(opts []Option) settings {
	var s settings
	for _, o := range opts {
		if o != nil {
			o.apply(&s)
		}
	}
	return s
}

// Server is one redis-server process, or the place of one while it is stopped.
// All methods are safe for concurrent use; those that fail mark the test as
// failed and let it go on.
type Server struct {
	t     testing.TB
	bin   string
	dir   string
	args  func(port int) []string
	port  int
	bus   bool   // it needs a cluster bus port too
	clock *clock // nil for the real time

	mu   sync.Mutex
	proc *process // nil while stopped
}

// Start starts a server and returns when it answers. It is stopped when the
// test ends.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	set := collect(opts)
	s := newServer(t)
	if set.hasClock {
		s.clock = newClock(t, s.dir, set.clock)
	}
	s.args = s.plainArgs(set.args...)
	s.launch()
	return s
}

// newServer gives a server that isn't started yet, with a directory.
func newServer(t testing.TB) *Server {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		missing(t, "redis-server, for tests on a real Redis",
			"Debian, Ubuntu: apt-get install redis-server; macOS: brew install redis")
	}
	// Not t.TempDir: with a long test name its path is too long for a socket.
	dir, err := os.MkdirTemp("", "redistest-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &Server{t: t, bin: bin, dir: dir}
}

// plainArgs gives the command line of a server that stores nothing.
func (s *Server) plainArgs(more ...string) func(port int) []string {
	return func(port int) []string {
		return append([]string{
			"--port", fmt.Sprint(port), "--bind", "127.0.0.1",
			"--dir", s.dir, "--unixsocket", s.socket(),
			"--save", "", "--appendonly", "no",
			"--daemonize", "no", "--logfile", "",
		}, more...)
	}
}

func (s *Server) socket() string  { return filepath.Join(s.dir, "socket") }
func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }

// launch starts the server on a free port. Between finding the port and using
// it somebody else may take it; then another one is tried.
func (s *Server) launch() {
	s.t.Helper()
	s.t.Cleanup(s.Stop)
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errPortTaken
	for try := 0; try < 10 && errors.Is(err, errPortTaken); try++ {
		s.port, err = freePort(s.bus)
		must(s.t, err)
		err = s.run()
	}
	if err != nil {
		s.t.Fatalf("redistest: start redis-server: %v", err)
	}
}

// run starts the process on s.port and waits until it answers.
func (s *Server) run() error {
	log, err := os.Create(s.logFile())
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(s.bin, s.args(s.port)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	if s.clock != nil {
		cmd.Env = append(os.Environ(), s.clock.env...)
	}
	proc, err := startProcess(cmd)
	if err != nil {
		return err
	}
	if err := proc.waitReady(s.socket(), s.logFile()); err != nil {
		return err
	}
	s.proc = proc
	return nil
}

// Addr gives host and port; they stay the same over Stop and Restart.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Client makes a client of this server that is closed when t ends. Each of
// opts may change the options before the client is made.
func (s *Server) Client(t testing.TB, opts ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: s.Addr()}
	for _, opt := range opts {
		if opt != nil {
			opt(o)
		}
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Pid gives the process id, 0 while the server is stopped.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.pid()
}

// Stop ends the process, frozen or not, and returns when it is gone. Stopping
// a stopped server does nothing.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

func (s *Server) stop() {
	if s.proc != nil {
		s.proc.stop()
		s.proc = nil
	}
}

// Restart starts the server anew on its old address, stopping it first if it
// runs: empty, with the same arguments and clock.
func (s *Server) Restart() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
	var failed error // for another reason than the port, so for good
	err := poll(startLimit, func() error {
		err := s.run()
		if errors.Is(err, errPortTaken) {
			return err
		}
		failed = err
		return nil
	})
	if err = errors.Join(err, failed); err != nil {
		s.t.Errorf("redistest: restart redis-server: %v", err)
	}
}

// Freeze stops the process from running (SIGSTOP): connections stay open, new
// ones are accepted by the kernel, and nothing is answered until Thaw.
func (s *Server) Freeze() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(syscall.SIGSTOP)
	if s.proc == nil {
		return
	}
	err := poll(stopLimit, func() error {
		if !frozen(s.proc.pid()) {
			return errors.New("it still runs")
		}
		return nil
	})
	if err != nil {
		s.t.Errorf("redistest: freeze: %v", err)
	}
}

// Thaw lets a frozen process run on (SIGCONT).
func (s *Server) Thaw() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(syscall.SIGCONT)
}

func (s *Server) send(sig syscall.Signal) {
	s.t.Helper()
	if s.proc == nil {
		s.t.Errorf("redistest: %v for a stopped server", sig)
		return
	}
	if err := s.proc.signal(sig); err != nil {
		s.t.Errorf("redistest: %v: %v", sig, err)
	}
}

// missing skips the test for want of something, or fails it if skipping is
// forbidden. It doesn't return.
func missing(t testing.TB, what, remedy string) {
	t.Helper()
	if os.Getenv(requireEnv) == "1" {
		t.Fatalf("%s needs %s, which is missing (%s); %s=1 forbids skipping it", t.Name(), what, remedy, requireEnv)
	}
	t.Skipf("SKIPPED %s: it needs %s, which is missing (%s); set %s=1 to make this a failure", t.Name(), what, remedy, requireEnv)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
}

// addrs lists the servers' addresses.
func addrs(servers []*Server) []string {
	list := make([]string, 0, len(servers))
	for _, s := range servers {
		list = append(list, s.Addr())
	}
	return list
}
