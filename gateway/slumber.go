package gateway

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

// slumber is a connection with a sandbox, held while that sleeps.
type slumber struct {
	net.Conn
	of      *slumbers
	room    *dormitory
	address netip.Addr
	writes  atomic.Int32 // that are under way in the kernel
	once    sync.Once    // closes Conn

	mu       sync.Mutex
	lulled   bool
	read     connDeadline
	write    connDeadline
	cut      chan struct{} // closed when what waits to write shall not; nil: nothing waits
	source   *net.TCPConn  // that ReadFrom copies from
	broken   bool          // lull has broken that off
	closed   bool
	shut     bool // CloseWrite was put off
	alive    int  // SO_KEEPALIVE and TCP_USER_TIMEOUT as they were
	patience int
}

// connDeadline is one that can stand still.
type connDeadline struct {
	at   time.Time
	left time.Duration // of it, while it stands still; at says whether there is one
}

// past tells whether it is over: it is set so to break something off.
func (l connDeadline) past(now time.Time) bool { return !l.at.IsZero() && !l.at.After(now) }

// SyscallConn implements syscall.Conn.
func (n *slumber) SyscallConn() (syscall.RawConn, error) {
	if s, ok := n.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, syscall.EINVAL
}

// lull stops the clocks.
func (n *slumber) lull() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lulled {
		return
	}
	n.lulled = true
	now := time.Now()
	n.read.stop(now, n.Conn.SetReadDeadline)
	n.write.stop(now, n.Conn.SetWriteDeadline)
	n.option(func(fd int) {
		n.alive, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		n.patience, _ = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0)
	})
	if n.source != nil {
		n.broken = true
		_ = n.source.SetReadDeadline(time.Unix(1, 0)) // copy goes on after the wake
	}
}

func (l *connDeadline) stop(now time.Time, set func(time.Time) error) {
	if l.at.IsZero() || l.past(now) {
		return
	}
	l.left = l.at.Sub(now)
	_ = set(time.Time{})
}

// rearm lets the clocks go on.
func (n *slumber) rearm() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.lulled {
		return
	}
	n.lulled = false
	now := time.Now()
	n.read.start(now, n.Conn.SetReadDeadline)
	n.write.start(now, n.Conn.SetWriteDeadline)
	n.option(func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, n.alive)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, n.patience)
	})
}

func (l *connDeadline) start(now time.Time, set func(time.Time) error) {
	if l.at.IsZero() || l.left == 0 {
		return
	}
	l.at, l.left = now.Add(l.left), 0
	_ = set(l.at)
}

// rouse is rearm for a connection that may have been closed meanwhile.
func (n *slumber) rouse() {
	n.mu.Lock()
	closed, shut := n.closed, n.shut
	n.shut = false
	n.mu.Unlock()
	if closed {
		n.finish()
		return
	}
	n.rearm()
	if shut {
		_ = n.closeWrite()
	}
}

// rests tells whether nothing is under way: all that was sent is acknowledged, and
// all that came is read.
func (n *slumber) rests() bool {
	return n.writes.Load() == 0 && n.queued(unix.SIOCOUTQ) == 0 && n.queued(unix.SIOCINQ) == 0
}

// queued is how many bytes are in a queue of the kernel's (tcp(7)), 0 for what is
// not TCP.
func (n *slumber) queued(request uint) (bytes int) {
	n.option(func(fd int) { bytes, _ = unix.IoctlGetInt(fd, request) })
	return bytes
}

func (n *slumber) option(f func(fd int)) {
	raw, err := n.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// reset ends the connection at once, which the sandbox sees as soon as it runs.
func (n *slumber) reset() {
	n.mu.Lock()
	n.closed = true
	n.uncork()
	n.mu.Unlock()
	if t, ok := n.Conn.(interface{ SetLinger(int) error }); ok {
		_ = t.SetLinger(0)
	}
	n.finish()
}

func (n *slumber) finish() {
	n.once.Do(func() {
		_ = n.Conn.Close()
		n.of.leave(n)
	})
}

// uncork sends away who waits to write. n.mu is held.
func (n *slumber) uncork() {
	if n.cut != nil {
		close(n.cut)
		n.cut = nil
	}
}

// enter waits until the sandbox is awake, and counts a write that is under way.
func (n *slumber) enter() error {
	for {
		n.writes.Add(1)
		if !n.room.asleep.Load() {
			return nil
		}
		n.writes.Add(-1)
		if err := n.wait(); err != nil {
			return err
		}
	}
}

func (n *slumber) wait() error {
	woken := n.of.gate(n.room)
	n.mu.Lock()
	switch {
	case n.closed:
		n.mu.Unlock()
		return net.ErrClosed
	case n.write.past(time.Now()):
		n.mu.Unlock()
		return errPast
	}
	if n.cut == nil {
		n.cut = make(chan struct{})
	}
	cut := n.cut
	n.mu.Unlock()
	select {
	case <-woken:
	case <-cut:
	}
	return nil // whoever comes again sees why
}

// errPast is what a write meets whose connDeadline is over.
var errPast = &net.OpError{Op: "write", Net: "tcp", Err: os.ErrDeadlineExceeded}

// Write waits while the sandbox sleeps.
func (n *slumber) Write(p []byte) (int, error) {
	if err := n.enter(); err != nil {
		return 0, err
	}
	defer n.writes.Add(-1)
	return n.Conn.Write(p)
}

// Read gives what has come before the sandbox slept, and waits for the rest.
func (n *slumber) Read(p []byte) (int, error) {
	m, err := n.Conn.Read(p)
	return m, n.over(err)
}

// over gives the error of a connection that is closed in all but name.
func (n *slumber) over(err error) error {
	if err == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed && err != io.EOF {
		return net.ErrClosed
	}
	return err
}

// ReadFrom implements io.ReaderFrom, so that the kernel copies from another TCP
// connection (splice(2)). When the sandbox goes to sleep nothing more is taken
// off that one.
func (n *slumber) ReadFrom(r io.Reader) (total int64, err error) {
	src, ok := r.(*net.TCPConn)
	dst, also := n.Conn.(io.ReaderFrom)
	if !ok || !also {
		return io.Copy(struct{ io.Writer }{n}, r)
	}
	for {
		if err := n.enter(); err != nil {
			return total, err
		}
		n.mu.Lock()
		n.source = src
		lulled := n.lulled
		n.mu.Unlock()
		var m int64
		if !lulled {
			m, err = dst.ReadFrom(src)
		}
		n.mu.Lock()
		broken := n.broken
		n.source, n.broken = nil, false
		n.mu.Unlock()
		n.writes.Add(-1)
		total += m
		if !lulled && !(broken && errors.Is(err, os.ErrDeadlineExceeded)) {
			return total, n.over(err)
		}
		if err := n.wait(); err != nil {
			return total, err
		}
		if err := src.SetReadDeadline(time.Time{}); err != nil {
			return total, err
		}
	}
}

// WriteTo implements io.WriterTo, likewise.
func (n *slumber) WriteTo(w io.Writer) (int64, error) {
	src, ok := n.Conn.(*net.TCPConn)
	if dst, also := w.(*net.TCPConn); ok && also {
		m, err := dst.ReadFrom(src)
		return m, n.over(err)
	}
	return io.Copy(w, struct{ io.Reader }{n})
}

// Close is put off while the sandbox sleeps; here it is closed at once.
func (n *slumber) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return net.ErrClosed
	}
	n.closed = true
	n.uncork()
	lulled := n.lulled
	if lulled {
		_ = n.Conn.SetReadDeadline(time.Unix(1, 0)) // whoever reads has enough of it
	}
	n.mu.Unlock()
	if !lulled {
		n.finish()
	}
	return nil
}

// CloseWrite is put off likewise.
func (n *slumber) CloseWrite() error {
	n.mu.Lock()
	if n.lulled {
		n.shut = true
		n.mu.Unlock()
		return nil
	}
	n.mu.Unlock()
	return n.closeWrite()
}

func (n *slumber) closeWrite() error {
	if half, ok := n.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return n.Close()
}

// SetDeadline and its kin count from the wake on while the sandbox sleeps; but a
// time that is over breaks off what waits, at once.
func (n *slumber) SetDeadline(t time.Time) error {
	if err := n.SetReadDeadline(t); err != nil {
		return err
	}
	return n.SetWriteDeadline(t)
}

func (n *slumber) SetReadDeadline(t time.Time) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.limit(&n.read, t, n.Conn.SetReadDeadline)
}

func (n *slumber) SetWriteDeadline(t time.Time) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := n.limit(&n.write, t, n.Conn.SetWriteDeadline)
	if n.write.past(time.Now()) {
		n.uncork()
	}
	return err
}

// limit sets a connDeadline. n.mu is held.
func (n *slumber) limit(l *connDeadline, t time.Time, set func(time.Time) error) error {
	if n.closed {
		return net.ErrClosed
	}
	*l = connDeadline{at: t}
	if n.lulled && !t.IsZero() {
		if now := time.Now(); t.After(now) {
			l.left = t.Sub(now)
			t = time.Time{}
		}
	}
	return set(t)
}
