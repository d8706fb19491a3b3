package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
)

// A holder is an instance of a service, as a worker is, that holds a permit again and again and writes down when
// it surely did. It ends with its input.
const holderEnv = "RATION_HOLDER"

// holding is what a holder is to do.
type holding struct {
	Addr  string
	Log   string // its records: a letter, a blank, and the machine's clock in microseconds
	Limit int64
	TTL   time.Duration
	Hold  time.Duration // at most, at random; 0: until its end
	Seed  uint64
}

// The letters of its records.
const (
	gotPermit  = "got"  // after an Acquire
	hasPermit  = "has"  // before Lost, which then said no
	lostPermit = "lost" // before Lost, which said yes
	ranFree    = "free" // before a Release
)

func asHolder() (exit int, is bool) {
	text := os.Getenv(holderEnv)
	if text == "" {
		return 0, false
	}
	var job holding
	err := json.Unmarshal([]byte(text), &job)
	if err == nil {
		err = job.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

func (job holding) policy() ration.ConcurrencyPolicy {
	return ration.ConcurrencyPolicy{Name: "jobs", Limit: job.Limit, TTL: job.TTL}
}

func (job holding) run() error {
	log, err := os.Create(job.Log)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: job.Addr})
	store, err := ration.Open(rdb, ration.WithTimeout(job.TTL/6), ration.WithBreaker(ration.Breaker{MaxCooldown: job.TTL / 6}))
	if err != nil {
		return err
	}
	jobs, err := ration.NewConcurrency(store, job.policy())
	if err != nil {
		return err
	}
	end := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(end)
	}()
	fmt.Println("ready")
	rng := rand.New(rand.NewPCG(job.Seed, 1))
	for {
		select {
		case <-end:
			return errors.Join(store.Close(), rdb.Close(), log.Close())
		default:
		}
		p, d, err := jobs.Acquire(ctx, "u", 1)
		if err != nil && !errors.Is(err, ration.ErrUnavailable) {
			return err
		}
		if d.Allowed {
			job.hold(p, log, rng, end)
		}
		time.Sleep(time.Duration(1+rng.IntN(5)) * time.Millisecond) // its own pace, no wait for anything
	}
}

// hold works for a while under a permit, or till it's lost.
func (job holding) hold(p *ration.Permit, log io.Writer, rng *rand.Rand, end <-chan struct{}) {
	note := func(what string, at time.Time) { fmt.Fprintln(log, what, at.UnixMicro()) }
	note(gotPermit, time.Now())
	defer p.Release()
	stop := (<-chan time.Time)(nil)
	if job.Hold > 0 {
		stop = time.After(time.Duration(rng.Int64N(int64(job.Hold))))
	}
	for pace := time.Tick(time.Millisecond); ; <-pace {
		before := time.Now()
		if p.Lost() {
			note(lostPermit, before)
			return
		}
		note(hasPermit, before)
		select {
		case <-end:
		case <-stop:
		default:
			continue
		}
		note(ranFree, time.Now())
		return
	}
}

// holder is such a process.
type holder struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	errors bytes.Buffer
	log    string
	killed bool
}

// startHolder starts one and returns when it's about to ask.
func startHolder(t testing.TB, job holding) *holder {
	t.Helper()
	job.Log = filepath.Join(t.TempDir(), "log")
	text, err := json.Marshal(job)
	require.NoError(t, err)
	h := &holder{t: t, log: job.Log, cmd: exec.Command(os.Args[0])}
	h.cmd.Env = append(os.Environ(), holderEnv+"="+string(text))
	h.cmd.Stderr = &h.errors
	h.in, err = h.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := h.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, h.cmd.Start())
	t.Cleanup(h.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.Equal(t, "ready\n", line, "%v", err)
	return h
}

// kill ends it where it is, with SIGKILL, and returns when it's gone.
func (h *holder) kill() {
	if h.cmd.ProcessState == nil {
		h.killed = true
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait()
	}
}

func (h *holder) signal(sig syscall.Signal) {
	h.t.Helper()
	require.NoError(h.t, h.cmd.Process.Signal(sig))
}

// end has it come to its end, and returns when it has.
func (h *holder) end() {
	h.t.Helper()
	_ = h.in.Close()
	if !h.killed {
		require.NoError(h.t, h.cmd.Wait(), &h.errors)
	}
}

// note is a record.
type note struct {
	what string
	at   int64
}

// notes reads the records.
func (h *holder) notes() (notes []note) {
	h.t.Helper()
	data, err := os.ReadFile(h.log)
	require.NoError(h.t, err)
	for line := range strings.Lines(string(data)) {
		what, at, ok := strings.Cut(line, " ")
		us, err := strconv.ParseInt(strings.TrimSpace(at), 10, 64)
		if !ok || err != nil || !strings.HasSuffix(line, "\n") {
			continue // half a record of a process that was killed
		}
		notes = append(notes, note{what, us})
	}
	return notes
}

// await polls until there is a record of a kind, at a time or later.
func (h *holder) await(what string, since int64) note {
	h.t.Helper()
	var found note
	until(h.t, "a record: "+what, func() bool {
		for _, n := range h.notes() {
			if n.what == what && n.at >= since {
				found = n
				return true
			}
		}
		return false
	})
	return found
}

// uses are the spans in which it surely had its permits: from when an Acquire had returned to the last time Lost was
// about to say no.
func uses(notes []note) (spans [][2]int64) {
	for _, n := range notes {
		switch n.what {
		case gotPermit:
			spans = append(spans, [2]int64{n.at, n.at})
		case hasPermit:
			spans[len(spans)-1][1] = n.at
		}
	}
	return spans
}

// mostAtOnce is the number of spans that lie over each other.
func mostAtOnce(spans [][2]int64) (most int) {
	type turn struct {
		at   int64
		step int
	}
	var turns []turn
	for _, s := range spans {
		turns = append(turns, turn{s[0], 1}, turn{s[1], -1})
	}
	slices.SortFunc(turns, func(a, b turn) int { // an end goes before a begin at the same time
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return a.step - b.step
	})
	now := 0
	for _, t := range turns {
		now += t.step
		most = max(most, now)
	}
	return most
}

func TestMostAtOnce(t *testing.T) {
	notes := []note{{gotPermit, 1}, {hasPermit, 5}, {lostPermit, 20}, {gotPermit, 30}, {hasPermit, 31}, {hasPermit, 40}, {ranFree, 50}}
	require.Equal(t, [][2]int64{{1, 5}, {30, 40}}, uses(notes))
	require.Equal(t, 1, mostAtOnce([][2]int64{{1, 5}, {5, 9}, {10, 12}}))
	require.Equal(t, 3, mostAtOnce([][2]int64{{1, 50}, {4, 9}, {5, 12}, {9, 12}}))
}
