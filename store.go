package ration

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rationgo/ration/internal/nils"
)

// Store is a Redis that limiters of any number and strategy share, with the
// settings common to them. It's safe for concurrent use. Make one per client,
// not one per policy: it costs no connection and no goroutine of its own.
type Store struct {
	rdb  redis.UniversalClient
	opts options
	id   string        // names this store's runs, no other store has it
	runs atomic.Uint64 // number of runs so far

	beats   atomic.Uint64 // number of heartbeats so far
	permits atomic.Uint64 // number of permits asked for so far

	opened   time.Time
	clock    func() time.Duration // tests put in one that runs fast or slow
	obedient bool                 // the client ends its I/O with the context
	lanes    *lanes
	calls    sync.Pool // of *call
	caches   sync.Map  // policy and code to *denyCache
	rings    sync.Map  // policy, code and slots to *localLimiter, for FailLocal
	tallies  sync.Map  // policy to *tally, likewise

	mu    sync.Mutex
	tiers []func()       // close the tiers that live on this store
	work  sync.WaitGroup // of start

	closed atomic.Bool
	ended  chan struct{} // closed when Close is done: who closes at the same time waits for it
}

// Open makes a Store of a client: *redis.Client, *redis.ClusterClient,
// *redis.Ring, or a Sentinel client. It sends nothing and works with no Redis running; it
// never closes the client. A nil client, typed or not, is ErrInvalidClient, a
// bad option ErrInvalidOption. Nil options are passed over.
//
// Set ContextTimeoutEnabled in the client's options where you can: then a lone call whose
// context can't be cancelled is made on its own goroutine, which is some microseconds faster.
func Open(rdb redis.UniversalClient, opts ...Option) (*Store, error) {
	if nils.Is(rdb) {
		return nil, fmt.Errorf("%w: Open needs a Redis client, not nil", ErrInvalidClient)
	}
	o := options{prefix: defaultPrefix, timeout: defaultTimeout, batch: defaultBatch, breaker: defaultBreaker}
	for _, opt := range opts {
		if opt == nil {
			continue
		}
		if err := opt.apply(&o); err != nil {
			return nil, err
		}
	}
	var id [9]byte
	rand.Read(id[:]) // never fails
	s := &Store{rdb: rdb, opts: o, id: base64.RawURLEncoding.EncodeToString(id[:]), opened: time.Now(), ended: make(chan struct{})}
	s.obedient = obeysContext(rdb)
	s.lanes = newLanes(s)
	s.calls.New = newCall
	return s, nil
}

// obeysContext says whether a client keeps a context's deadline in all it does. A
// cluster client doesn't: it asks for the commands' table with a context of its own.
func obeysContext(rdb redis.UniversalClient) bool {
	switch rdb := rdb.(type) {
	case *redis.Client:
		return rdb.Options().ContextTimeoutEnabled
	case *redis.Ring:
		return rdb.Options().ContextTimeoutEnabled
	}
	return false
}

// Close waits for the calls under way (no longer than their budget) and makes
// later ones fail with ErrClosed. The client stays open: it's the caller's. Closing again does nothing. A
// store that is dropped without Close leaks nothing but the renewals of permits that are held.
//
// What the tiers of [NewTwoTier] hold goes back to Redis first. A [Permit] is lost.
func (s *Store) Close() error {
	s.mu.Lock()
	tiers, again := s.tiers, s.closed.Swap(true)
	s.mu.Unlock()
	if again {
		<-s.ended
		return nil
	}
	var all sync.WaitGroup
	for _, end := range tiers {
		all.Go(end)
	}
	all.Wait()
	s.work.Wait()
	s.lanes.close()
	close(s.ended)
	return nil
}

// start runs f, which ends within a call's budget or two, on a goroutine that Close waits for. A
// closed store doesn't.
func (s *Store) start(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return false
	}
	s.work.Go(f)
	return true
}

// adopt has Close end a tier.
func (s *Store) adopt(end func()) {
	s.mu.Lock()
	closed := s.closed.Load()
	s.tiers = append(s.tiers, end)
	s.mu.Unlock()
	if closed {
		end()
	}
}

// since is the store's own clock, monotonic, for budgets.
func (s *Store) since() time.Duration {
	if s.clock != nil {
		return s.clock()
	}
	return time.Since(s.opened)
}

// header is what every script's ARGV begins with: the clock, 0 for the server's,
// and for the sliding log, whose members are made of it, a name that no run of
// any instance has twice.
func (s *Store) header(sc *script) []any {
	var clock int64
	if s.opts.clientTime {
		clock = time.Now().UnixMicro()
	}
	if !sc.named {
		return []any{clock}
	}
	return []any{clock, s.id + strconv.FormatUint(s.runs.Add(1), 36)}
}

// learn notes which node's lane the slots of a cluster belong to, after a run
// of calls that had none yet or failed.
func (s *Store) learn(ctx context.Context, items []*item) {
	cluster, ok := s.rdb.(*redis.ClusterClient)
	if !ok {
		return
	}
	for _, it := range items {
		lane := &s.lanes.slots[hashSlot(it.keys[0])]
		if it.err != nil {
			lane.Store(nil)
		} else if lane.Load() == nil {
			if node, err := cluster.MasterForKey(ctx, it.keys[0]); err == nil {
				lane.Store(s.lanes.at(node.Options().Addr))
				s.lanes.table.Store(true)
			}
		}
	}
}
