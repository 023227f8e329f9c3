package websocket

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/gateway/tcp"
)

// Ending is how a WebSocket ended, which goproxy does not tell: as the first of its
// directions did. Later errors are an echo of that.
type Ending struct {
	mu   sync.Mutex
	over bool
	err  error // nil for a regular end
}

func (e *Ending) meet(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.over {
		e.over, e.err = true, err
	}
}

// Err is nil for a regular end.
func (e *Ending) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Conn is a sandbox's end of a WebSocket. It counts its bytes, and knows where its
// frames end and how it ended. Its exported fields are set before it is used.
type Conn struct {
	net.Conn
	In, Out *atomic.Int64   // bytes from the sandbox, and to it
	End     *Ending         // how it ends
	Spend   func(int) error // counts bytes against limits; its error breaks the WebSocket off
	Gone    error           // how End has a sandbox that went away

	client Frames // of what is read

	mu     sync.Mutex // held while writing
	frames Frames
	over   bool // nothing but a Close frame is written
}

// NewConn returns the sandbox's end of a WebSocket over conn.
func NewConn(conn net.Conn) *Conn {
	return &Conn{Conn: conn, client: Frames{strict: true, masked: true}}
}

// Ahead follows bytes of the sandbox that were read before the Conn was there. It is
// false where they are not in frames. Then the next read fails.
func (c *Conn) Ahead(p []byte) bool {
	c.client.Pass(p)
	return !c.client.Bad
}

func (c *Conn) Read(p []byte) (int, error) {
	if c.client.Bad {
		c.End.meet(ErrFrames)
		return 0, ErrFrames
	}
	n, err := c.Conn.Read(p)
	c.In.Add(int64(n))
	if c.client.Pass(p[:n]); c.client.Bad {
		c.End.meet(ErrFrames)
		return 0, ErrFrames
	}
	if over := c.Spend(n); over != nil {
		c.End.meet(over)
		return 0, over
	}
	switch {
	case err == io.EOF && tcp.Reset(tcp.Below(c.Conn)) == nil:
		c.End.meet(nil)
	case err != nil:
		c.End.meet(c.Gone)
	}
	return n, err
}

func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return 0, net.ErrClosed
	}
	if over := c.Spend(len(p)); over != nil {
		c.End.meet(over)
		return 0, over
	}
	n, err := c.Conn.Write(p)
	c.Out.Add(int64(n))
	c.frames.Pass(p[:n])
	if err != nil {
		c.End.meet(c.Gone)
	}
	return n, err
}

// Upstream is the upstream's end of a WebSocket.
type Upstream struct {
	io.ReadWriteCloser
	End *Ending
}

func (f Upstream) Read(p []byte) (int, error) {
	n, err := f.ReadWriteCloser.Read(p)
	switch {
	case err == io.EOF:
		f.End.meet(nil)
	case err != nil:
		f.End.meet(err)
	}
	return n, err
}

func (f Upstream) Write(p []byte) (int, error) {
	n, err := f.ReadWriteCloser.Write(p)
	if err != nil {
		f.End.meet(err)
	}
	return n, err
}

// Goodbye sends a Close frame with a reason where one of the upstream's frames has
// ended, once, and lets nothing follow it. It waits no longer than within for a client
// that reads nothing.
func (c *Conn) Goodbye(reason string, within time.Duration) {
	late := time.AfterFunc(within, func() { _ = c.SetWriteDeadline(time.Unix(1, 0)) })
	defer late.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.over = true
	if !c.frames.Boundary() {
		return
	}
	n, _ := c.Conn.Write(closeFrame(reason)) // a client that is gone needs none
	c.Out.Add(int64(n))
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// maxDrain bounds what Linger reads, in bytes.
const maxDrain = 256 << 10

// Linger reads bytes that a client has sent meanwhile, its own Close frame at best, for
// no longer than within. To close with unread bytes would reset the connection (RFC
// 9112, section 9.6), and the Close frame of Goodbye would be lost.
func (c *Conn) Linger(within time.Duration) {
	if c.SetReadDeadline(time.Now().Add(within)) == nil {
		_, _ = io.CopyN(io.Discard, c.Conn, maxDrain)
	}
}
