package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// States of a connection.
const (
	idle int32 = iota // waits for a request's first byte
	busy
	over // closed by Shutdown while it was idle
)

// conn is one connection of a client.
type conn struct {
	net.Conn
	server   *Server
	ctx      context.Context // of its requests
	cancel   context.CancelFunc
	handler  Handler
	remote   string
	in       headReader
	out      *bufio.Writer // nil while nothing is to be written
	state    atomic.Int32
	until    time.Time // the deadline that rest has set, zero after another was
	served   bool      // a request has come
	response response
	body     *body // of the request, nil without
	hijacked bool
	watcher  watcher
}

// outSize is room for a head and a small body: they go in one write, and so in
// one TLS record.
const outSize = 8 << 10

var outs = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, outSize) }}

func (c *conn) writer() *bufio.Writer {
	if c.out == nil {
		c.out = outs.Get().(*bufio.Writer)
		c.out.Reset(c.Conn)
	}
	return c.out
}

// release gives up what an idle connection need not hold.
func (c *conn) release() {
	if c.out != nil {
		c.out.Reset(nil)
		outs.Put(c.out)
		c.out = nil
	}
}

// rest has reading fail when d is over, or up to an eighth later: a deadline for
// each request costs more than it is worth to be exact about an idle connection.
// Where nobody reads it stands while a request is answered.
func (c *conn) rest(d time.Duration) {
	now := time.Now()
	if left := c.until.Sub(now); left >= d && left <= d+d/8 {
		return
	}
	until := now.Add(d + d/8)
	_ = c.SetReadDeadline(until)
	c.until = until
}

// SetReadDeadline is for whoever reads, or keeps others from it.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.until = time.Time{}
	return c.Conn.SetReadDeadline(t)
}

// Bounds on what is read of a body that nobody wanted, so that the connection
// or at least the answer survives.
const (
	maxDrain   = 256 << 10       // bytes
	drainTime  = 3 * time.Second // a client that is slow has been promised the connection
	lingerTime = 500 * time.Millisecond
)

// refuseTime bounds how long a client may not take why its head was refused.
const refuseTime = 5 * time.Second

// drain reads what is left of the request's body. A body that was never asked
// for, which the client may send or not, has ended the connection before.
func (c *conn) drain() bool {
	_ = c.SetReadDeadline(time.Now().Add(drainTime))
	_, err := io.CopyN(io.Discard, c.body.src, maxDrain)
	return err == io.EOF
}

// linger ends the connection so that the last answer arrives: closing with
// unread bytes would reset it (RFC 9112, section 9.6).
func (c *conn) linger() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	over := time.Now().Add(lingerTime)
	_ = c.SetReadDeadline(over)
	if _, err := io.CopyN(io.Discard, c.in.Reader, maxDrain); err != nil {
		return
	}
	// It sends more than is read, which now fills its window. The answer is its
	// to read for the rest of the time, before what is unread resets it.
	select {
	case <-c.ctx.Done():
	case <-time.After(time.Until(over)):
	}
}

// cut closes a connection without a word. TLS would say goodbye first, which
// waits for a peer that does not read, and makes what was broken off look whole.
func cut(c net.Conn) {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	_ = c.Close()
}

// body is a request's body on its way to the handler and whoever it gives it
// to, which may be another goroutine that goes on when the handler has returned.
type body struct {
	src   io.Reader
	conn  *conn
	turn  sync.Mutex // held while reading
	greet bool       // by who has the turn: 100 (Continue) may have to be sent first

	mu      sync.Mutex
	reading bool
	ended   bool // no more can be read
	closed  bool
}

func (b *body) Read(p []byte) (n int, err error) {
	b.turn.Lock()
	defer b.turn.Unlock()
	if err := b.begin(); err != nil {
		return 0, err
	}
	defer func() { b.finish(err == io.EOF) }()
	if b.greet {
		b.greet = false
		if err := b.conn.response.greet(); err != nil {
			return 0, err
		}
	}
	return b.src.Read(p)
}

func (b *body) begin() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return http.ErrBodyReadAfterClose
	case b.ended:
		return io.EOF
	}
	b.reading = true
	return nil
}

// finish also takes the deadline back that broke the reading off, before anyone
// else can set another.
func (b *body) finish(ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	if b.closed {
		_ = b.conn.SetReadDeadline(time.Time{})
	}
	if ended {
		b.ended = true
		b.conn.watch()
	}
}

// Buffered is how many bytes, at least, can be read without waiting.
func (b *body) Buffered() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.ended || b.reading || b.greet {
		return 0
	}
	if c, ok := b.src.(*chunks); ok {
		return int(min(c.left, uint64(c.in.Buffered())))
	}
	return b.conn.in.Buffered()
}

// Close breaks off a read that is under way: a transport whose upstream is gone
// waits for that. The rest is left to the connection, which knows how much to
// read of it.
func (b *body) Close() error {
	b.end()
	return nil
}

// end keeps the body from being read by others, breaks off a read that is under
// way, and tells whether all of it was read. A late call, when the connection has gone on
// to another request, changes nothing there.
func (b *body) end() bool {
	b.mu.Lock()
	if b.reading && !b.closed {
		_ = b.conn.SetReadDeadline(time.Unix(1, 0))
	}
	b.closed = true
	b.mu.Unlock()
	b.turn.Lock() // until that read has returned
	defer b.turn.Unlock()
	return b.ended
}

// watcher notices that a client goes away, or ends its direction, while it
// waits for an answer. It looks only at what takes longer than patience, or twice
// that: most answers do not, and one timer is for all that come meanwhile. The client's
// next request, sent meanwhile, is not read before its turn: then the
// kernel is asked now and then whether there was an end to it.
type watcher struct {
	mu      sync.Mutex
	timer   *time.Timer
	armed   bool // the timer runs
	wanted  bool
	turn    uint          // of the request that is, or was last, watched
	began   uint          // the turn when the timer began
	ahead   bool          // something has come, so that reading would not tell
	reading chan struct{} // closed when the read that watches has returned
}

const patience = 100 * time.Millisecond

// pollTime is how long it takes at most until a client's end is noticed behind what
// it has sent ahead.
const pollTime = time.Second

// watch begins once the request has been read.
func (c *conn) watch() {
	w := &c.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.hijacked {
		return
	}
	w.wanted, w.ahead = true, false
	w.turn++
	if !w.armed {
		c.arm()
	}
}

// arm has look called after patience. The caller holds the watcher's lock.
func (c *conn) arm() {
	w := &c.watcher
	w.armed, w.began = true, w.turn
	if w.timer == nil {
		w.timer = time.AfterFunc(patience, c.look)
		return
	}
	w.timer.Reset(patience)
}

// look waits for the client's next byte, or its end.
func (c *conn) look() {
	w := &c.watcher
	w.mu.Lock()
	w.armed = false
	switch {
	case w.wanted && w.ahead && w.turn == w.began:
		gone := hungUp(c.Conn)
		if !gone {
			w.armed = true
			w.timer.Reset(pollTime)
		}
		w.mu.Unlock()
		if gone {
			c.cancel()
		}
		return
	case !w.wanted || w.reading != nil:
		w.mu.Unlock()
		return
	case w.turn != w.began:
		c.arm()
		w.mu.Unlock()
		return
	}
	done := make(chan struct{})
	w.reading = done
	_ = c.SetReadDeadline(time.Time{}) // an answer may take longer than a connection may idle
	w.mu.Unlock()
	defer close(done)
	_, err := c.in.Peek(1)
	w.mu.Lock()
	gone := err != nil && w.wanted && !errors.Is(err, os.ErrDeadlineExceeded) // which unwatch and end set
	if err == nil && w.wanted {
		w.ahead, w.armed, w.began = true, true, w.turn
		w.timer.Reset(pollTime)
	}
	w.mu.Unlock()
	if gone {
		c.cancel()
	}
}

// stop lets go of the connection at once.
func (w *watcher) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
}

// unwatch gives reading back to the caller.
func (c *conn) unwatch() {
	w := &c.watcher
	w.mu.Lock()
	w.wanted, w.ahead = false, false
	reading := w.reading
	w.mu.Unlock()
	if reading == nil {
		return
	}
	_ = c.SetReadDeadline(time.Unix(1, 0))
	<-reading
	_ = c.SetReadDeadline(time.Time{})
	w.mu.Lock()
	w.reading = nil
	w.mu.Unlock()
}
