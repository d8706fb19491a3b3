package ration

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Store is a Redis that limiters of any number and strategy share, with the
// settings common to them. It's safe for concurrent use. Make one per client,
// not one per policy: it costs no connection and no goroutine of its own.
type Store struct {
	rdb  redis.UniversalClient
	opts options
	id   string        // names this store's runs, no other store has it
	runs atomic.Uint64 // number of runs so far

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup // the calls under way
}

// Open makes a Store of a client: *redis.Client, *redis.ClusterClient,
// *redis.Ring, or a Sentinel client. It sends nothing and works with no Redis running; it
// never closes the client. A nil client, typed or not, is ErrInvalidClient, a
// bad option ErrInvalidOption. Nil options are passed over.
func Open(rdb redis.UniversalClient, opts ...Option) (*Store, error) {
	if isNil(rdb) {
		return nil, fmt.Errorf("%w: Open needs a Redis client, not nil", ErrInvalidClient)
	}
	o := options{prefix: defaultPrefix, timeout: defaultTimeout}
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
	return &Store{rdb: rdb, opts: o, id: base64.RawURLEncoding.EncodeToString(id[:])}, nil
}

func isNil(v any) bool {
	if v == nil {
		return true
	}
	rv := reflect.ValueOf(v)
	switch rv.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Interface:
		return rv.IsNil()
	}
	return false
}

// Close waits for the calls under way (no longer than their budget) and makes
// later ones fail with ErrClosed. The client stays open: it's the caller's. Closing again does nothing. A
// store that is dropped without Close leaks nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.calls.Wait()
	return nil
}

// enter counts a call in; its leave is s.calls.Done.
func (s *Store) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.calls.Add(1)
	return nil
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

// runContext is what a run gives to go-redis: the caller's values, not its end.
func (s *Store) runContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.opts.timeout)
}
