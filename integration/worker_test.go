package integration

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration"
)

// A worker is an instance of a service: this test binary as a process of its own, with its own
// client and store. What it's to do stands in workerEnv. It says on its output that it's ready, begins at the
// first byte of its input and ends with that: so it doesn't outlive the test.
const workerEnv = "RATION_WORKER"

// task is what a worker is to do.
type task struct {
	Addr string
	Dir  string // for its records
	Name string
	Rule ration.FailureRule
	// Budget is what a call may take.
	Budget time.Duration
	Seed   uint64
}

// fleet is the number of workers. They ask for a quarter more of the hot subject than its limit allows, all
// the time; of the others evenly and, once in a while, in a burst.
const (
	fleet      = 4
	hotUnits   = 200
	hotWindow  = 800 * time.Millisecond
	hotSlots   = 5 // so that a block of the sliding buckets, which ends with its slot, lasts
	hotHold    = hotWindow / hotSlots
	hotPart    = 0.8
	hotDemand  = 1.25
	hot        = 0 // the hot subject's number; which others are asked for is distributed as Zipf has it
	subjects   = 40
	waveLength = 1300 * time.Millisecond // in no step with the windows
	burst      = 150 * time.Millisecond
	tick       = 5 * time.Millisecond
	mostDue    = 20 // what was missed in a pause isn't made up for
)

// modes are those of NewTwoTier.
var modes = map[string][]ration.TierOption{
	"lease": {ration.WithHold(hotHold)},
	"share": {ration.WithShare(hotPart), ration.WithInstances(fleet)},
}

// use is a call and its answer. The clock is the machine's, so the server's and all workers'.
type use struct {
	Before, After int64 // µs
	Asked         int64
	Granted       int64
	Subject       int32
	Source        ration.Source
	Degraded      bool
	Failed        bool // there was an error
	_             byte
}

// useSize is what a record takes in a file.
var useSize = binary.Size(use{})

// asWorker makes this process a worker if it's to be one, and says how it ended.
func asWorker() (exit int, is bool) {
	text := os.Getenv(workerEnv)
	if text == "" {
		return 0, false
	}
	var job task
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

func (job task) run() error {
	rdb := redis.NewClient(&redis.Options{Addr: job.Addr})
	store, err := ration.Open(rdb, ration.WithOnFailure(job.Rule), ration.WithTimeout(job.Budget),
		ration.WithBreaker(ration.Breaker{Cooldown: 50 * time.Millisecond, MaxCooldown: fleetCooldown}))
	if err != nil {
		return err
	}
	var callers []*caller
	for name, st := range leased {
		for mode, opts := range modes {
			made, err := job.callers(store, name+"-"+mode, st, opts)
			if err != nil {
				return err
			}
			callers = append(callers, made...)
		}
	}
	for _, c := range callers {
		for began := time.Now(); ; { // until the server has its script
			_, err := c.l.Peek(ctx, "x")
			if err == nil {
				break
			}
			if time.Since(began) > bound {
				return err
			}
		}
	}
	fmt.Println("ready")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	end := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(end)
	}()
	var all sync.WaitGroup
	for _, c := range callers {
		all.Go(func() { c.call(end) })
	}
	all.Wait()
	for _, c := range callers {
		err = errors.Join(err, c.err, c.log.Close())
	}
	return errors.Join(err, store.Close(), rdb.Close())
}

// callers makes the two callers of a limiter: of the hot subject and of the others.
func (job task) callers(store *ration.Store, name string, st strategy, opts []ration.TierOption) ([]*caller, error) {
	global, err := st.limiter(store, ration.Policy{Name: name, Slots: hotSlots, Limits: []ration.Limit{ration.Per(hotUnits, hotWindow)}})
	if err != nil {
		return nil, err
	}
	l, err := ration.NewTwoTier(global, opts...)
	if err != nil {
		return nil, err
	}
	var made []*caller
	for i, kind := range []string{"hot", "zipf"} {
		log, err := os.Create(filepath.Join(job.Dir, name+"."+kind+"."+job.Name))
		if err != nil {
			return nil, err
		}
		c := &caller{l: l, log: log, perSecond: hotDemand * hotUnits / fleet / hotWindow.Seconds()}
		if kind == "zipf" {
			c.zipf = rand.NewZipf(rand.New(rand.NewPCG(job.Seed, uint64(len(name)+i))), 2, 1, subjects-1)
		}
		made = append(made, c)
	}
	return made, nil
}

// caller makes calls of one limiter at an even pace.
type caller struct {
	l         ration.Limiter
	log       *os.File
	perSecond float64
	zipf      *rand.Zipf // nil: of the hot subject only
	err       error      // that isn't an outage
}

func (c *caller) call(end <-chan struct{}) {
	due, last := 0.0, time.Now()
	pace := time.NewTicker(tick)
	defer pace.Stop()
	for {
		select {
		case <-end:
			return
		case <-pace.C:
		}
		due = min(due+time.Since(last).Seconds()*c.rate(), mostDue)
		last = time.Now()
		var batch bytes.Buffer
		for ; due >= 1; due-- {
			u := c.one()
			_ = binary.Write(&batch, binary.LittleEndian, &u) // into memory
		}
		// Before any further call: what a worker that is killed was granted is known, but for one batch.
		if _, err := c.log.Write(batch.Bytes()); err != nil {
			c.err = errors.Join(c.err, err)
			return
		}
	}
}

// rate is how many calls a second are to be made now. A burst takes at once what an even pace has spent
// from blocks, as late as it might, a window ago: had that been counted too early, it would show.
func (c *caller) rate() float64 {
	if c.zipf != nil && time.Duration(time.Now().UnixNano())%waveLength < burst {
		return 6 * c.perSecond
	}
	return c.perSecond
}

func (c *caller) one() use {
	u := use{Subject: hot, Asked: 1}
	if c.zipf != nil {
		u.Subject = 1 + int32(c.zipf.Uint64())
		u.Asked += int64(u.Subject) / 4 % 3 // 1 for those that are asked for most
	}
	key := fmt.Sprint("u", u.Subject)
	u.Before = time.Now().UnixMicro()
	d, err := c.l.AllowN(ctx, key, u.Asked)
	u.After = time.Now().UnixMicro()
	u.Granted, u.Source, u.Degraded, u.Failed = d.Granted, d.Source, d.Degraded, err != nil
	if err != nil && !errors.Is(err, ration.ErrUnavailable) {
		c.err = errors.Join(c.err, err)
	}
	return u
}

// readUses reads the records of one limiter by all workers, the hot subject's or the others'.
func readUses(t testing.TB, dir, limiter string) (uses []use) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, limiter+".*"))
	if err != nil || len(files) == 0 {
		t.Fatal("no records of ", limiter, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		part := make([]use, len(data)/useSize) // a worker that is killed may leave half a record
		if err := binary.Read(bytes.NewReader(data), binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
		uses = append(uses, part...)
	}
	return uses
}
