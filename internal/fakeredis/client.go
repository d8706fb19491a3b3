package fakeredis

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Client makes a client that reaches the server through memory, with no
// socket: quick, and usable inside a testing/synctest bubble. Each of opts may
// change the options before the client is made. Whoever calls it closes the
// client.
func (s *Server) Client(opts ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{
		Addr:   "fakeredis",
		Dialer: s.dial,
		// A server that is closed stays closed; asking it again costs a second.
		DialerRetries: 1,
		// None of the following is needed, and each costs a command per connection.
		Protocol:        2,
		DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	}
	if s.bubble {
		// Who waits for a free connection takes a timer from a pool that the
		// driver keeps for the whole process, and a timer of one bubble panics
		// in another. So nobody shall ever wait.
		o.PoolSize = 4096
	}
	for _, opt := range opts {
		if opt != nil {
			opt(o)
		}
	}
	return redis.NewClient(o)
}

func (s *Server) dial(context.Context, string, string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		// Dial would start a closed miniredis anew, old keys included.
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: syscall.ECONNREFUSED}
	}
	c, err := s.mini.Dial()
	if err != nil {
		return nil, err
	}
	return newConn(c), nil
}

// conn is a client's end of a net.Pipe that takes any amount of data at once.
// A bare pipe holds nothing: a client that sends a long pipeline before it
// reads, and a server that answers each command before it reads on, would
// wait for each other.
type conn struct {
	net.Conn

	more chan struct{} // holds one token while queue may be non-empty
	done chan struct{} // closed by Close
	once sync.Once

	mu    sync.Mutex
	queue []byte
	err   error // why nothing can be written any more
}

func newConn(c net.Conn) *conn {
	w := &conn{Conn: c, more: make(chan struct{}, 1), done: make(chan struct{})}
	go w.forward()
	return w
}

// Write queues p. It never waits, so it has no use for a deadline.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.queue = append(c.queue, p...)
	select {
	case c.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

// forward hands the queue to the server until either side closes.
func (c *conn) forward() {
	var out []byte
	for {
		select {
		case <-c.more:
		case <-c.done:
			return
		}
		c.mu.Lock()
		out, c.queue = c.queue, out[:0]
		c.mu.Unlock()
		if _, err := c.Conn.Write(out); err != nil {
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
			return
		}
	}
}

func (c *conn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

func (c *conn) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}
