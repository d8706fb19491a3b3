package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	startLimit = 20 * time.Second // until a server must answer
	stopLimit  = 2 * time.Second  // until a server that won't end is killed
	pollEvery  = 5 * time.Millisecond
)

var (
	errPortTaken = errors.New("the port is taken")
	errEnded     = errors.New("the server ended")
)

// process is one running server. It can't outlive this process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and was waited for
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = dieWithParent()
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		// To the kernel the parent is the thread that forked, not the whole
		// process: were that thread to end early, the server would be killed.
		// So this goroutine keeps it until the server has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// signal reaches this process or nobody, even when its pid is in use again.
func (p *process) signal(sig syscall.Signal) error {
	return p.cmd.Process.Signal(sig)
}

// stop ends the process and returns when it is gone.
func (p *process) stop() {
	// Errors mean that it has ended already.
	_ = p.signal(syscall.SIGTERM)
	_ = p.signal(syscall.SIGCONT) // a frozen one would never hear of the first
	select {
	case <-p.done:
		return
	case <-time.After(stopLimit):
	}
	_ = p.signal(syscall.SIGKILL)
	<-p.done
}

// waitReady returns when the server answers on its unix socket. A server opens
// that after its port, and nobody else answers there, so the port is its own.
func (p *process) waitReady(socket, logFile string) error {
	err := poll(startLimit, func() error {
		select {
		case <-p.done:
			return errEnded
		default:
			return ping(socket)
		}
	})
	if err == nil {
		return nil
	}
	p.stop()
	out, _ := os.ReadFile(logFile)
	if strings.Contains(string(out), "Address already in use") {
		return errPortTaken
	}
	return fmt.Errorf("%w; its log:\n%s", err, out)
}

// ping asks for a sign of life without logging in: a server that wants a
// password first is up as well.
func ping(socket string) error {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	for _, ok := range []string{"+PONG", "-NOAUTH", "-NOPERM"} {
		if strings.HasPrefix(line, ok) {
			return nil
		}
	}
	return fmt.Errorf("PING: %s", strings.TrimSpace(line))
}

// poll calls try until it gives nil, gives errEnded, or limit has passed, and
// returns its last error.
func poll(limit time.Duration, try func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := try()
		if err == nil || errors.Is(err, errEnded) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready after %v: %w", limit, err)
		}
		time.Sleep(pollEvery)
	}
}

// freePort finds a port that nobody listens on, never Redis's own, and with
// bus one whose cluster bus port (10000 above) is free too.
func freePort(bus bool) (int, error) {
	for range 100 {
		port, err := tryPort(0)
		if err != nil {
			return 0, err
		}
		if port == 6379 {
			continue
		}
		if !bus {
			return port, nil
		}
		if port+10000 > 65535 {
			continue
		}
		if _, err := tryPort(port + 10000); err == nil {
			return port, nil
		}
	}
	return 0, errors.New("no free port found")
}

// tryPort listens on a port for a moment; 0 means any.
func tryPort(port int) (int, error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
