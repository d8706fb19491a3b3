package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/internal/redistest"
)

// fleetCooldown is how long the workers' breakers stay open at most.
const fleetCooldown = 200 * time.Millisecond

// workers are some processes that call, and what they have recorded.
type workers struct {
	t     testing.TB
	dir   string
	task  task // all have that in common
	rng   *rand.Rand
	procs []*worker
	began time.Time
	ended time.Time
}

type worker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	errors bytes.Buffer
	killed bool
}

// launch starts a fleet against a server and returns when it calls.
func launch(t testing.TB, srv *redistest.Server, rule ration.FailureRule, budget time.Duration) *workers {
	t.Helper()
	w := &workers{t: t, dir: t.TempDir(), task: task{Addr: srv.Addr(), Rule: rule, Budget: budget}, rng: seeded(t)}
	for range fleet {
		w.add()
	}
	w.began = time.Now()
	for _, p := range w.procs {
		p.start(t)
	}
	return w
}

// add starts a worker that waits for its start.
func (w *workers) add() *worker {
	w.t.Helper()
	job := w.task
	job.Dir, job.Name, job.Seed = w.dir, fmt.Sprint(len(w.procs)), w.rng.Uint64()
	text, err := json.Marshal(job)
	require.NoError(w.t, err)
	p := &worker{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	p.cmd.Stderr = &p.errors
	p.in, err = p.cmd.StdinPipe()
	require.NoError(w.t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(w.t, err)
	require.NoError(w.t, p.cmd.Start())
	w.procs = append(w.procs, p)
	w.t.Cleanup(p.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.Equal(w.t, "ready\n", line, "%v", err)
	return p
}

// start has a worker begin to call.
func (p *worker) start(t testing.TB) {
	t.Helper()
	_, err := p.in.Write([]byte{1})
	require.NoError(t, err)
}

// kill ends a worker where it is, if it hasn't ended.
func (p *worker) kill() {
	if p.cmd.ProcessState == nil {
		p.killed = true
		_ = p.cmd.Process.Kill() // this process or nobody
		_ = p.cmd.Wait()
	}
}

// signal sends a signal to a worker.
func (w *workers) signal(i int, sig syscall.Signal) {
	w.t.Helper()
	require.NoError(w.t, w.procs[i].cmd.Process.Signal(sig))
}

// end has the workers come to their end, and returns when they have.
func (w *workers) end() {
	w.t.Helper()
	w.ended = time.Now()
	for _, p := range w.procs {
		_ = p.in.Close()
	}
	for i, p := range w.procs {
		if !p.killed {
			require.NoError(w.t, p.cmd.Wait(), "worker %d: %s", i, &p.errors)
		}
	}
}

// sums is what the callers of a limiter's hot subject got from all workers.
type sums struct {
	calls, granted, memory, failed, degraded int64 // memory: units from a block or a share
	later                                    int64 // units granted after a time
	most                                     int64 // units in a window
}

func (s sums) String() string {
	return fmt.Sprintf("%d calls, %d units granted, %d of them from memory; %d degraded, %d errors; at most %d in a window",
		s.calls, s.granted, s.memory, s.degraded, s.failed, s.most)
}

// inMemory says that a call was answered from a block or a share.
func (u use) inMemory() bool {
	return u.Source == ration.Lease || u.Source == ration.Ring && !u.Degraded
}

func sumUp(uses []use, since time.Time) (s sums) {
	for _, u := range uses {
		s.calls++
		s.granted += u.Granted
		if u.inMemory() {
			s.memory += u.Granted
		}
		if u.Failed {
			s.failed++
		}
		if u.Degraded {
			s.degraded++
		}
		if u.Before >= since.UnixMicro() {
			s.later += u.Granted
		}
	}
	return s
}

// history is the records of all limiters, by name and subject.
type history map[string]map[int32][]use

func (w *workers) read() history {
	w.t.Helper()
	all := history{}
	for name := range leased {
		for mode := range modes {
			limiter := name + "-" + mode
			all[limiter] = map[int32][]use{}
			for _, u := range readUses(w.t, w.dir, limiter) {
				all[limiter][u.Subject] = append(all[limiter][u.Subject], u)
			}
		}
	}
	return all
}

// prove demands that all limiters kept their promises to all subjects, and sums up what
// was done with the hot one.
func (w *workers) prove(all history, since time.Time, switches ...span) map[string]sums {
	w.t.Helper()
	of := map[string]sums{}
	var lines []string
	for limiter, bySubject := range all {
		name, _, _ := strings.Cut(limiter, "-")
		p := newProof(strategies[name], hotUnits, hotWindow, switches...)
		s := sumUp(bySubject[hot], since)
		for subject, uses := range bySubject {
			most, err := p.check(uses)
			if err != nil {
				w.t.Errorf("%s, subject %d: %v", limiter, subject, err)
			}
			if subject == hot {
				s.most = most
			}
		}
		of[limiter] = s
		lines = append(lines, fmt.Sprintf("%-14s %v", limiter, s))
	}
	slices.Sort(lines)
	w.t.Logf("%v:\n%s", w.ended.Sub(w.began), strings.Join(lines, "\n"))
	return of
}
