package ration

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// onceCmd is a command that go-redis sends at most once. By default it resends
// after EOF and timeouts, EVALSHA too, and a script that had run would
// charge again.
type onceCmd struct{ *redis.Cmd }

// NoRetry tells go-redis not to resend.
func (onceCmd) NoRetry() bool { return true }

// trip is one command of a run: the items that share a script run.
type trip struct {
	items  []*item
	args   []any
	cmd    onceCmd
	script *script
}

// execute sends a run and fills in each item's reply or error. Items that may
// share a script run do; if that makes several commands, they go in one pipeline.
func (s *Store) execute(r *run) {
	if r.kept != nil {
		for _, it := range r.items {
			it.err = r.kept
		}
		return
	}
	defer func() {
		// A hook of the caller's client runs here; its panic must end neither
		// the process nor the other callers' hope of an answer.
		if p := recover(); p != nil {
			s.fail(r.items, fmt.Errorf("%w: %v", errPanic, p))
		}
	}()
	ctx, cancel := s.runContext(r)
	defer cancel()
	trips := s.trips(r.items)
	s.send(ctx, trips, "evalsha")
	var again []*trip
	for _, t := range trips {
		// Only NOSCRIPT proves that nothing ran: only then it's sent again.
		if redis.HasErrorPrefix(t.cmd.Err(), "NOSCRIPT") {
			again = append(again, t)
		}
	}
	if len(again) > 0 {
		s.send(ctx, again, "eval")
	}
	for _, t := range trips {
		s.land(t)
	}
	s.learn(ctx, r.items)
}

// outcome gives the run's first failure and, if all of it failed, that again: where
// others got their answers the server is there.
func (r *run) outcome() (first, all error) {
	all = r.items[0].err
	for _, it := range r.items {
		if first == nil {
			first = it.err
		}
		if it.err == nil {
			all = nil
		}
	}
	return first, all
}

// runContext is what a run gives to go-redis: of a lone caller's context the
// values, of none its end.
func (s *Store) runContext(r *run) (context.Context, context.CancelFunc) {
	parent := context.Background()
	if len(r.items) == 1 && len(r.items[0].calls) == 1 {
		parent = context.WithoutCancel(r.items[0].calls[0].ctx)
	}
	return context.WithTimeout(parent, s.opts.timeout)
}

// trips sorts a run's items by what may share a script run.
func (s *Store) trips(items []*item) []*trip {
	type place struct {
		script *script
		shard  any
	}
	var trips []*trip
	places := map[place]*trip{}
	for _, it := range items {
		at := place{it.script, s.shard(it)}
		if n := len(trips); n > 0 && trips[n-1].script == at.script && places[at] == trips[n-1] {
			trips[n-1].items = append(trips[n-1].items, it)
			continue
		}
		t := places[at]
		if t == nil {
			t = &trip{script: it.script}
			places[at] = t
			trips = append(trips, t)
		}
		t.items = append(t.items, it)
	}
	return trips
}

// send sends each trip's command once, several in one pipeline.
func (s *Store) send(ctx context.Context, trips []*trip, command string) {
	for _, t := range trips {
		name := t.script.sha
		if command == "eval" {
			name = t.script.text
		}
		if t.script == permitScript {
			t.args = encodePermits([]any{command, name}, t.items, s.header(t.script))
		} else {
			t.args = encode([]any{command, name}, t.items, s.header(t.script))
		}
		t.cmd = onceCmd{redis.NewCmd(ctx, t.args...)}
	}
	if len(trips) == 1 {
		_ = s.rdb.Process(ctx, trips[0].cmd) // the command keeps its error
		return
	}
	pipe := s.rdb.Pipeline()
	for _, t := range trips {
		_ = pipe.Process(ctx, t.cmd)
	}
	_, _ = pipe.Exec(ctx)
}

// land decodes a trip's reply, or fails its items.
func (s *Store) land(t *trip) {
	reply, err := t.cmd.Slice()
	switch {
	case err == nil && t.script == permitScript:
		err = decodePermits(reply, t.items)
	case err == nil:
		err = decode(reply, t.items)
	case t.cmd.Err() == nil:
		err = fmt.Errorf("%w: %w", errReply, err)
	}
	if err != nil {
		s.fail(t.items, err)
	}
}

// fail gives all items one cause. An item that has its reply keeps it.
func (s *Store) fail(items []*item, cause error) {
	var err error
	for _, it := range items {
		if it.reply == nil {
			if err == nil {
				err = s.unavailable(cause, items)
			}
			it.err = err
		}
	}
}

// shard tells what an item shares a script run with: a standalone server runs
// all items together, a cluster those of one hash slot, a ring those of
// one server. Of a client that isn't known only one subject's keys are surely together.
func (s *Store) shard(it *item) any {
	switch rdb := s.rdb.(type) {
	case *redis.Client:
		return nil
	case *redis.ClusterClient:
		return hashSlot(it.keys[0])
	case *redis.Ring:
		if server, err := rdb.GetShardClientForKey(it.keys[0]); err == nil {
			return server
		}
	}
	return hashTag(it.keys[0])
}

// hashTag is what Redis Cluster hashes of our keys: the subject between the braces.
func hashTag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return tag
}

// hashSlot is the key's slot in a cluster: CRC16 (XMODEM) of its hash tag,
// modulo 16384, as the Redis Cluster specification has it.
func hashSlot(key string) int {
	crc := uint16(0)
	tag := hashTag(key)
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % slots)
}

const slots = 16384
