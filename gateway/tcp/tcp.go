// Package tcp asks the kernel how TCP connections stand, and bounds how long their
// other side may take.
package tcp

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SetStallTimeout has the kernel end a connection whose client takes nothing off it for
// as long: TCP_USER_TIMEOUT of tcp(7), which also bounds how long a window may
// stay closed. It does nothing for what is not TCP, or over already.
func SetStallTimeout(c net.Conn, timeout time.Duration) {
	if over, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = over.NetConn()
	}
	control(c, func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(timeout.Milliseconds()))
	})
}

// control calls f with a connection's descriptor, unless it has none or is closed.
func control(c any, f func(fd int)) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := s.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// Below returns the connection below TLS and what else is around it.
func Below(c net.Conn) net.Conn {
	for {
		over, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return c
		}
		c = over.NetConn()
	}
}

// Reset tells whether a connection that reads as ended was reset: it returns
// ECONNRESET then. The kernel gives that error to the first call, which may be a write.
// After a regular end, before our own is sent, there is a state left (tcp(7)).
func Reset(c net.Conn) error {
	closed := false
	control(c, func(fd int) {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		closed = err == nil && info.State == unix.BPF_TCP_CLOSE
	})
	if closed {
		return syscall.ECONNRESET
	}
	return nil
}

// Aborted tells, once, whether this host has ended a connection by SOCK_DESTROY (sock_diag(7)),
// as it does with those of an endpoint that is gone.
func Aborted(c net.Conn) bool {
	aborted := false
	control(c, func(fd int) {
		reason, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		aborted = err == nil && syscall.Errno(reason) == syscall.ECONNABORTED
	})
	return aborted
}

// Heard tells whether the other side has sent a byte, or that cannot be told.
func Heard(c syscall.Conn) bool {
	heard := true
	control(c, func(fd int) {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		heard = err != nil || info.Data_segs_in > 0
	})
	return heard
}

// ClientLeft tells whether the error of a connection means that its client ended it.
func ClientLeft(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// StallConn bounds for how long the other side may take nothing, as SetStallTimeout
// does where the kernel knows such a bound.
type StallConn struct {
	net.Conn
	Stall time.Duration
}

func (p *StallConn) Write(b []byte) (int, error) {
	if p.Stall > 0 {
		if err := p.Conn.SetWriteDeadline(time.Now().Add(p.Stall)); err != nil {
			return 0, err
		}
	}
	return p.Conn.Write(b)
}

// CloseWrite ends one direction.
func (p *StallConn) CloseWrite() error {
	if half, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return p.Conn.Close()
}
