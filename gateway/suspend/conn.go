package suspend

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a connection with a sandbox, held while that is suspended.
type Conn struct {
	net.Conn
	of      *Set
	group   *group
	address netip.Addr
	writes  atomic.Int32 // that are under way in the kernel
	once    sync.Once    // closes Conn

	mu      sync.Mutex
	frozen  bool
	read    deadline
	write   deadline
	cut     chan struct{} // closed to interrupt writes that wait; nil: none waits
	source  *net.TCPConn  // that ReadFrom copies from
	broken  bool          // freeze has interrupted that copy
	closed  bool
	shut    bool // CloseWrite was put off
	alive   int  // SO_KEEPALIVE and TCP_USER_TIMEOUT as they were
	timeout int
}

// deadline is a deadline that can stand still.
type deadline struct {
	at   time.Time
	left time.Duration // until at, while it stands still; a zero at: no deadline
}

// past tells whether it is over. A caller sets such a deadline to interrupt a call.
func (l deadline) past(now time.Time) bool { return !l.at.IsZero() && !l.at.After(now) }

// NetConn returns the connection below.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// SyscallConn implements syscall.Conn.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, syscall.EINVAL
}

// freeze stops the deadlines and the kernel's timeouts.
func (c *Conn) freeze() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frozen {
		return
	}
	c.frozen = true
	now := time.Now()
	c.read.stop(now, c.Conn.SetReadDeadline)
	c.write.stop(now, c.Conn.SetWriteDeadline)
	c.option(func(fd int) {
		c.alive, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		c.timeout, _ = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0)
	})
	if c.source != nil {
		c.broken = true
		_ = c.source.SetReadDeadline(time.Unix(1, 0)) // the copy goes on when the sandbox resumes
	}
}

func (l *deadline) stop(now time.Time, set func(time.Time) error) {
	if l.at.IsZero() || l.past(now) {
		return
	}
	l.left = l.at.Sub(now)
	_ = set(time.Time{})
}

// restart lets the deadlines and the kernel's timeouts go on.
func (c *Conn) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.frozen {
		return
	}
	c.frozen = false
	now := time.Now()
	c.read.start(now, c.Conn.SetReadDeadline)
	c.write.start(now, c.Conn.SetWriteDeadline)
	c.option(func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, c.alive)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, c.timeout)
	})
}

func (l *deadline) start(now time.Time, set func(time.Time) error) {
	if l.at.IsZero() || l.left == 0 {
		return
	}
	l.at, l.left = now.Add(l.left), 0
	_ = set(l.at)
}

// thaw is restart for a connection that may have been closed meanwhile.
func (c *Conn) thaw() {
	c.mu.Lock()
	closed, shut := c.closed, c.shut
	c.shut = false
	c.mu.Unlock()
	if closed {
		c.finish()
		return
	}
	c.restart()
	if shut {
		_ = c.closeWrite()
	}
}

// atRest tells whether nothing is under way: all bytes sent are acknowledged, and all
// bytes received are read.
func (c *Conn) atRest() bool {
	return c.writes.Load() == 0 && c.queued(unix.SIOCOUTQ) == 0 && c.queued(unix.SIOCINQ) == 0
}

// queued returns how many bytes are in a queue of the kernel (tcp(7)), 0 where the
// connection is not TCP.
func (c *Conn) queued(request uint) (bytes int) {
	c.option(func(fd int) { bytes, _ = unix.IoctlGetInt(fd, request) })
	return bytes
}

func (c *Conn) option(f func(fd int)) {
	raw, err := c.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// reset ends the connection at once. The sandbox sees that as soon as it runs.
func (c *Conn) reset() {
	c.mu.Lock()
	c.closed = true
	c.interrupt()
	c.mu.Unlock()
	if t, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		_ = t.SetLinger(0)
	}
	c.finish()
}

func (c *Conn) finish() {
	c.once.Do(func() {
		_ = c.Conn.Close()
		c.of.remove(c)
	})
}

// interrupt ends the wait of writes. c.mu is held.
func (c *Conn) interrupt() {
	if c.cut != nil {
		close(c.cut)
		c.cut = nil
	}
}

// enter waits until the sandbox runs, and counts a write that is under way.
func (c *Conn) enter() error {
	for {
		c.writes.Add(1)
		if !c.group.suspended.Load() {
			return nil
		}
		c.writes.Add(-1)
		if err := c.wait(); err != nil {
			return err
		}
	}
}

func (c *Conn) wait() error {
	resumed := c.of.resumed(c.group)
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return net.ErrClosed
	case c.write.past(time.Now()):
		c.mu.Unlock()
		return errDeadline
	}
	if c.cut == nil {
		c.cut = make(chan struct{})
	}
	cut := c.cut
	c.mu.Unlock()
	select {
	case <-resumed:
	case <-cut:
	}
	return nil // the next call of enter sees why
}

// errDeadline is the error of a write after its deadline.
var errDeadline = &net.OpError{Op: "write", Net: "tcp", Err: os.ErrDeadlineExceeded}

// Write waits while the sandbox is suspended.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.writes.Add(-1)
	return c.Conn.Write(p)
}

// Read returns bytes that came before the sandbox was suspended, and waits for the rest.
func (c *Conn) Read(p []byte) (int, error) {
	m, err := c.Conn.Read(p)
	return m, c.over(err)
}

// over maps the error of a connection whose Close is put off.
func (c *Conn) over(err error) error {
	if err == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed && err != io.EOF {
		return net.ErrClosed
	}
	return err
}

// ReadFrom implements io.ReaderFrom, so that the kernel copies from another TCP
// connection (splice(2)). When the sandbox is suspended nothing more is taken off
// that connection.
func (c *Conn) ReadFrom(r io.Reader) (total int64, err error) {
	src, ok := r.(*net.TCPConn)
	dst, also := c.Conn.(io.ReaderFrom)
	if !ok || !also {
		return io.Copy(struct{ io.Writer }{c}, r)
	}
	for {
		if err := c.enter(); err != nil {
			return total, err
		}
		c.mu.Lock()
		c.source = src
		frozen := c.frozen
		c.mu.Unlock()
		var m int64
		if !frozen {
			m, err = dst.ReadFrom(src)
		}
		c.mu.Lock()
		broken := c.broken
		c.source, c.broken = nil, false
		c.mu.Unlock()
		c.writes.Add(-1)
		total += m
		if !frozen && !(broken && errors.Is(err, os.ErrDeadlineExceeded)) {
			return total, c.over(err)
		}
		if err := c.wait(); err != nil {
			return total, err
		}
		if err := src.SetReadDeadline(time.Time{}); err != nil {
			return total, err
		}
	}
}

// WriteTo implements io.WriterTo, likewise.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	src, ok := c.Conn.(*net.TCPConn)
	if dst, also := w.(*net.TCPConn); ok && also {
		m, err := dst.ReadFrom(src)
		return m, c.over(err)
	}
	return io.Copy(w, struct{ io.Reader }{c})
}

// Close takes effect when the sandbox resumes; for the caller it is closed at once.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.closed = true
	c.interrupt()
	frozen := c.frozen
	if frozen {
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // interrupts a read
	}
	c.mu.Unlock()
	if !frozen {
		c.finish()
	}
	return nil
}

// CloseWrite is put off likewise.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	if c.frozen {
		c.shut = true
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	return c.closeWrite()
}

func (c *Conn) closeWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// SetDeadline, SetReadDeadline and SetWriteDeadline count from when the sandbox resumes
// while it is suspended. A time that is over interrupts waiting calls at once.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limit(&c.read, t, c.Conn.SetReadDeadline)
}

func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.limit(&c.write, t, c.Conn.SetWriteDeadline)
	if c.write.past(time.Now()) {
		c.interrupt()
	}
	return err
}

// limit sets a deadline. c.mu is held.
func (c *Conn) limit(l *deadline, t time.Time, set func(time.Time) error) error {
	if c.closed {
		return net.ErrClosed
	}
	*l = deadline{at: t}
	if c.frozen && !t.IsZero() {
		if now := time.Now(); t.After(now) {
			l.left = t.Sub(now)
			t = time.Time{}
		}
	}
	return set(t)
}
