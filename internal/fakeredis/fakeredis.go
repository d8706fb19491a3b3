// Package fakeredis is a Redis inside the process: a miniredis whose one
// clock moves TIME and the lifetimes of keys together.
//
// Plain miniredis has two clocks that know nothing of each other: SetTime
// moves TIME, FastForward moves lifetimes. A test that moves one of them
// passes or fails for the wrong reason. Here [Server.Advance] and
// [Server.SetTime] move both, to the microsecond, and nothing else does.
//
// Three constructors, one for each way time can pass:
//
//   - [Start]: time stands still until the caller moves it.
//   - [StartWithoutTTL]: the same, but no key ever expires. What is decided
//     here must not depend on a key being gone.
//   - [Synctest]: time is that of a testing/synctest bubble.
//
// The package doesn't import testing, so programs can use it too.
package fakeredis

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// Server is one Redis in memory. It must come from one of the constructors.
// All methods are safe for concurrent use.
type Server struct {
	mini      *miniredis.Miniredis
	lifetimes bool // keys expire
	bubble    bool // time is time.Now(), which the bubble moves

	mu     sync.Mutex
	now    time.Time // unused when bubble is set
	closed bool
}

// Start starts a server that listens on a free loopback port and whose clock
// stands at now, cut to whole microseconds, until Advance or SetTime moves it.
// The zero time is an error: to miniredis it means the computer's clock.
func Start(now time.Time) (*Server, error) {
	return start(now, true)
}

// StartWithoutTTL is Start with lifetimes that never run: TIME moves, yet a
// key stays, with the lifetime it was given, until it is deleted.
func StartWithoutTTL(now time.Time) (*Server, error) {
	return start(now, false)
}

func start(now time.Time, lifetimes bool) (*Server, error) {
	if now.IsZero() {
		return nil, errors.New("fakeredis: the zero time can't be the start of the clock")
	}
	s := &Server{mini: miniredis.NewMiniRedis(), lifetimes: lifetimes, now: whole(now)}
	s.mini.SetTime(s.now)
	s.mini.ClockTTL(lifetimes)
	if err := s.mini.Start(); err != nil {
		return nil, fmt.Errorf("fakeredis: start: %w", err)
	}
	return s, nil
}

// Synctest makes a server for a test that runs in a testing/synctest bubble:
// its clock is time.Now(), which inside the bubble moves only when all
// goroutines wait, and a plain time.Sleep expires keys. It doesn't listen;
// reach it by [Server.Client]. Server and clients must be closed before the
// bubble ends.
func Synctest() *Server {
	s := &Server{mini: miniredis.NewMiniRedis(), lifetimes: true, bubble: true}
	s.mini.ClockTTL(true)
	return s
}

// Addr gives the address the server listens on, "" if it doesn't listen
// (after Close, and always with Synctest).
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bubble || s.closed {
		return ""
	}
	return s.mini.Addr()
}

// Now gives the server's time: what TIME answers.
func (s *Server) Now() time.Time {
	if s.bubble {
		return time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Advance moves the clock by d, backwards if d is negative; see SetTime. With
// Synctest it sleeps for d, and panics if d is negative.
func (s *Server) Advance(d time.Duration) {
	if s.bubble {
		sleep(d)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(s.now.Add(d))
}

// SetTime moves the clock to t, cut to whole microseconds. Keys whose lifetime
// has passed by then are gone when it returns, and stay gone: moving the clock
// back revives nothing. As on a real server a key expires at an instant, so
// moving back makes the lifetime of a living key longer again. The zero time
// panics. With Synctest it sleeps until t, and panics if t has passed.
//
// A command that runs at the same moment sees the old time or the new one.
func (s *Server) SetTime(t time.Time) {
	if s.bubble {
		sleep(time.Until(t))
		return
	}
	if t.IsZero() {
		panic("fakeredis: SetTime with the zero time")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(t)
}

func (s *Server) set(t time.Time) {
	t = whole(t)
	step := t.Sub(s.now)
	s.now = t
	s.mini.SetTime(t)
	if !s.lifetimes {
		return
	}
	if step < 0 {
		// By itself miniredis leaves what is left of a lifetime as it is, so
		// that a key would expire too early after a step back.
		s.mini.FastForward(step)
		return
	}
	// Expiry waits for the next access. If the clock went back before that,
	// keys that were due would live on; so this is the access.
	s.mini.DB(0)
}

// Mini gives the miniredis itself, to look at keys or to make commands fail.
// Its SetTime, FastForward and ClockTTL are not to be called: they would part
// the two clocks again.
func (s *Server) Mini() *miniredis.Miniredis { return s.mini }

// Close stops the server and cuts its connections. Clients made by
// [Server.Client] then fail as they would with no server there; closing them
// remains with their owner. Closing twice does nothing.
func (s *Server) Close() {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if !closed {
		s.mini.Close()
	}
}

// whole cuts t to what TIME can say, and drops a monotonic reading.
func whole(t time.Time) time.Time {
	return t.Truncate(time.Microsecond).UTC()
}

func sleep(d time.Duration) {
	if d < 0 {
		panic("fakeredis: the clock of a bubble can't be moved back")
	}
	time.Sleep(d)
}
