package gateway

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// ending is how a WebSocket ended, which goproxy does not tell: as the first of
// its directions did. What comes after that is its echo.
type ending struct {
	mu   sync.Mutex
	over bool
	err  error // nil for a regular end
}

func (e *ending) meet(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.over {
		e.over, e.err = true, err
	}
}

func (e *ending) met() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// counted counts the bytes of a connection that a WebSocket has taken, and knows
// where its frames end and how it did.
type counted struct {
	net.Conn
	in, out *atomic.Int64
	ended   *ending
	meter   *limitMeter
	client  frontier // of what is read

	mu     sync.Mutex // held while writing
	frames frontier
	over   bool // nothing but goodbye is written
}

func (c *counted) Read(p []byte) (int, error) {
	if c.client.bad {
		c.ended.meet(errFrames)
		return 0, errFrames
	}
	n, err := c.Conn.Read(p)
	c.in.Add(int64(n))
	if c.client.pass(p[:n]); c.client.bad {
		c.ended.meet(errFrames)
		return 0, errFrames
	}
	if over := c.meter.spend(n); over != nil {
		c.ended.meet(over)
		return 0, over
	}
	switch {
	case err == io.EOF && reset(wire(c.Conn)) == nil:
		c.ended.meet(nil)
	case err != nil:
		c.ended.meet(errClient)
	}
	return n, err
}

func (c *counted) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return 0, net.ErrClosed
	}
	if over := c.meter.spend(len(p)); over != nil {
		c.ended.meet(over)
		return 0, over
	}
	n, err := c.Conn.Write(p)
	c.out.Add(int64(n))
	c.frames.pass(p[:n])
	if err != nil {
		c.ended.meet(errClient)
	}
	return n, err
}

// wire is a connection below TLS and what else is around it.
func wire(c net.Conn) net.Conn {
	for {
		over, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return c
		}
		c = over.NetConn()
	}
}

// far is the upstream's end of a WebSocket.
type far struct {
	io.ReadWriteCloser
	ended *ending
}

func (f far) Read(p []byte) (int, error) {
	n, err := f.ReadWriteCloser.Read(p)
	switch {
	case err == io.EOF:
		f.ended.meet(nil)
	case err != nil:
		f.ended.meet(err)
	}
	return n, err
}

func (f far) Write(p []byte) (int, error) {
	n, err := f.ReadWriteCloser.Write(p)
	if err != nil {
		f.ended.meet(err)
	}
	return n, err
}
