package http1

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// hungUp tells whether the peer has ended its direction of a connection, or all of
// it, whatever it sent before that and nobody has read. Below TLS its end is that of
// TCP. Of what is not TCP nothing is known.
func hungUp(c net.Conn) bool {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	var gone bool
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		gone = err == nil && (info.State == unix.BPF_TCP_CLOSE || info.State == unix.BPF_TCP_CLOSE_WAIT)
	})
	return gone
}
