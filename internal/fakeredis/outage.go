package fakeredis

import "github.com/alicebob/miniredis/v2/server"

// Cut makes the server unreachable until [Server.Recover]: each connection is cut
// at its next command, with no answer, and nothing is run. What is stored stays.
//
// Connecting still succeeds, HELLO included: a driver tries that several times with pauses, and in the end
// takes to dialing once a second, and a test would wait for it. A connection that isn't used
// meanwhile is good again afterwards.
func (s *Server) Cut() {
	s.intercept(func(p *server.Peer) { p.Close() })
}

// Fail has the server answer each command with an error reply until [Server.Recover], such
// as "LOADING Redis is loading the dataset in memory", and run none. An empty reply means
// "ERR failing". Connecting succeeds, as with Cut.
func (s *Server) Fail(reply string) {
	if reply == "" {
		reply = "ERR failing"
	}
	s.intercept(func(p *server.Peer) { p.WriteError(reply) })
}

// Recover ends what Cut or Fail began; without one it does nothing.
func (s *Server) Recover() { s.intercept(nil) }

// intercept has instead done instead of each command; nil means the commands themselves. A
// closed server is left alone.
func (s *Server) intercept(instead func(*server.Peer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if s.mini.Server() == nil { // in a bubble it begins with the first connection
		c, err := s.mini.Dial()
		if err != nil { // can't be: nothing listens
			return
		}
		c.Close()
	}
	if instead == nil {
		s.mini.Server().SetPreHook(nil)
		return
	}
	s.mini.Server().SetPreHook(func(p *server.Peer, cmd string, _ ...string) bool {
		if cmd == "HELLO" || cmd == "CLIENT" {
			return false
		}
		instead(p)
		return true
	})
}
