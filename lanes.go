package ration

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// lanes are a store's roads: one for a standalone server, one a server of a
// ring, one a node of a cluster, so that a slow node holds up only its own calls.
type lanes struct {
	store  *Store
	first  *lane
	slots  []atomic.Pointer[lane] // of a cluster: the lane of a hash slot, once learned
	table  atomic.Bool            // the cluster client has its table of slots and needn't ask for it
	mu     sync.Mutex
	others map[any]*lane
	closed bool
}

func newLanes(s *Store) *lanes {
	l := &lanes{store: s, first: newLane(s), others: map[any]*lane{}}
	if _, ok := s.rdb.(*redis.ClusterClient); ok {
		l.slots = make([]atomic.Pointer[lane], slots)
	}
	return l
}

// of finds the lane of a subject.
func (l *lanes) of(subject string) *lane {
	switch rdb := l.store.rdb.(type) {
	case *redis.ClusterClient:
		tag := "{" + escapeSubject(subject) + "}"
		slot := &l.slots[hashSlot(tag)]
		if ln := slot.Load(); ln != nil {
			return ln
		}
		if l.table.Load() {
			if node, err := rdb.MasterForKey(context.Background(), tag); err == nil {
				ln := l.at(node.Options().Addr)
				slot.Store(ln)
				return ln
			}
		}
	case *redis.Ring:
		if server, err := rdb.GetShardClientForKey("{" + escapeSubject(subject) + "}"); err == nil {
			return l.at(server)
		}
	}
	return l.first
}

// at is the lane of a server, made when first asked for.
func (l *lanes) at(server any) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.others[server]
	if ln == nil {
		ln = newLane(l.store)
		ln.closed = l.closed
		l.others[server] = ln
	}
	return ln
}

// close shuts all lanes and waits for what is under way on them.
func (l *lanes) close() {
	l.mu.Lock()
	l.closed = true
	all := []*lane{l.first}
	for _, ln := range l.others {
		all = append(all, ln)
	}
	l.mu.Unlock()
	for _, ln := range all {
		ln.shut()
	}
}
