//go:build linux

package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// crashEnv makes TestCrash the test binary that ends badly.
const crashEnv = "REDISTEST_CRASH"

// Whichever way a test binary ends, its servers end too.
func TestCrash(t *testing.T) {
	if how := os.Getenv(crashEnv); how != "" {
		crash(t, how)
		return
	}
	newServer(t) // skips
	for _, how := range []string{"panic", "exit", "kill"} {
		t.Run(how, func(t *testing.T) {
			dies(t, how)
		})
	}
}

func crash(t *testing.T, how string) {
	s := Start(t)
	fmt.Printf("\nserver %d %s\n", s.Pid(), s.dir)
	switch how {
	case "panic":
		go func() { panic("on purpose") }()
		select {}
	case "exit":
		os.Exit(3)
	case "kill":
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
}

func dies(t *testing.T, how string) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrash$")
	cmd.Env = append(os.Environ(), crashEnv+"="+how)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var pid int
	var dir string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "server ") {
			_, err := fmt.Sscanf(lines.Text(), "server %d %s", &pid, &dir)
			require.NoError(t, err)
		}
	}
	require.Error(t, cmd.Wait())
	require.NotZero(t, pid)
	require.NoError(t, os.RemoveAll(dir)) // nobody else could
	require.NoError(t, poll(startLimit, func() error {
		if alive(pid) {
			return errors.New("the server still runs")
		}
		return nil
	}))
}

// The kernel ends a server with the thread that started it, so that must not
// be a thread which may end before the test.
func TestServerOutlivesTheStartingThread(t *testing.T) {
	s := newServer(t)
	s.args = s.plainArgs()
	thread := onEndingThread(s.launch)
	require.NoError(t, poll(startLimit, func() error {
		if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", thread)); err == nil {
			return errors.New("the thread is still there")
		}
		return nil
	}))
	require.NoError(t, s.Client(t).Ping(t.Context()).Err())
	require.True(t, alive(s.Pid()))
}

// onEndingThread calls f on a thread that ends afterwards, and gives its id.
func onEndingThread(f func()) int {
	thread := make(chan int)
	go func() {
		runtime.LockOSThread()
		id := syscall.Gettid()
		if id == os.Getpid() { // the main thread never ends: keep it busy meanwhile
			id = onEndingThread(f)
			runtime.UnlockOSThread()
		} else {
			f()
		}
		thread <- id
	}()
	return <-thread
}
