package redistest

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// WithClock gives the server a wall clock that stands at start, cut to whole
// microseconds, until [Server.SetTime] or [Server.Advance] moves it. TIME, in
// scripts too, and the expiry of keys follow it; the monotonic clock stays
// real, so the server works on as ever. It needs Linux and a C compiler,
// under the same rule as redis-server itself.
//
// While the clock stands, whatever the server times by the wall clock stands
// too: timeouts of blocking commands, the durations in INFO commandstats. Not
// for measuring, nor for a cluster.
func WithClock(start time.Time) Option {
	return optionFunc(func(s *settings) { s.clock, s.hasClock = start, true })
}

// Now gives the time of the server's own clock. Like the other methods of the
// clock it panics on a server started without WithClock.
func (s *Server) Now() time.Time {
	return time.UnixMicro(s.movable().us.Load()).UTC()
}

// SetTime moves the server's clock to t, cut to whole microseconds, backwards
// too. Every command sent after it has returned sees the new time. It panics
// if t isn't after 1970.
//
// On a real server a key that is due stays in memory until it is read or
// collected. If the clock goes back before that, the key lives on; once a
// read has found it gone, it stays gone.
func (s *Server) SetTime(t time.Time) {
	s.movable().us.Store(micros(t))
}

// Advance moves the server's clock by d, cut to whole microseconds, backwards
// if d is negative; see SetTime. Concurrent calls add up.
func (s *Server) Advance(d time.Duration) {
	us := s.movable().us
	for {
		old := us.Load()
		if us.CompareAndSwap(old, micros(time.UnixMicro(old).Add(d.Truncate(time.Microsecond)))) {
			return
		}
	}
}

func (s *Server) movable() *clock {
	if s.clock == nil {
		panic("redistest: this server was started without WithClock")
	}
	return s.clock
}

// micros gives t as the shim reads it. 0 would mean real time.
func micros(t time.Time) int64 {
	us := t.UnixMicro()
	if us <= 0 {
		panic(fmt.Sprintf("redistest: %v is no time for a server's clock", t))
	}
	return us
}

// clock is eight bytes of memory that this process shares with a server.
type clock struct {
	us  *atomic.Int64
	env []string // what makes a process use it
}

// newClock lays the clock and the shim that reads it into dir.
func newClock(t testing.TB, dir string, start time.Time) *clock {
	t.Helper()
	if runtime.GOOS != "linux" {
		missing(t, "a moveable server clock", "it works on Linux only")
	}
	cc := compiler()
	if cc == "" {
		missing(t, "a C compiler, for the moveable server clock",
			"Debian, Ubuntu: apt-get install gcc")
	}
	lib, err := shim(cc)
	if err != nil {
		t.Fatal(err)
	}
	libPath, clockPath := filepath.Join(dir, "clock.so"), filepath.Join(dir, "clock")
	must(t, os.WriteFile(libPath, lib, 0o700))
	must(t, os.WriteFile(clockPath, make([]byte, 8), 0o600))
	f, err := os.OpenFile(clockPath, os.O_RDWR, 0)
	must(t, err)
	mem, err := syscall.Mmap(int(f.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	must(t, err)
	must(t, f.Close())

	// The page is never unmapped: a late SetTime shall find memory there.
	c := &clock{us: (*atomic.Int64)(unsafe.Pointer(&mem[0]))}
	c.us.Store(micros(start))
	preload := libPath
	if others := os.Getenv("LD_PRELOAD"); others != "" {
		preload += ":" + others
	}
	c.env = []string{"LD_PRELOAD=" + preload, "REDISTEST_CLOCK=" + clockPath}
	return c
}

func compiler() string {
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

//go:embed testdata/clock.c
var shimSource []byte

var (
	shimOnce sync.Once
	shimLib  []byte
	errShim  error
)

// shim compiles testdata/clock.c once per process and gives the library's
// content: the directory it was made in is gone by then.
func shim(cc string) ([]byte, error) {
	shimOnce.Do(func() { shimLib, errShim = compile(cc) })
	return shimLib, errShim
}

func compile(cc string) (lib []byte, err error) {
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	src, out := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(src, shimSource, 0o600); err != nil {
		return nil, err
	}
	msg, err := exec.Command(cc, "-shared", "-fPIC", "-O2", "-o", out, src).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("redistest: %s clock.c: %w\n%s", cc, err, msg)
	}
	return os.ReadFile(out)
}
