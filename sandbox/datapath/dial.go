package datapath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Mark marks a socket as the daemon's. Only marked sockets of this host exchange packets
// with sandboxes. Connections that a marked listener accepts are marked too. The mark
// alone opens no connection: see [Dial]. Mark is for the Control of [net.ListenConfig].
func Mark(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) { set = mark(int(fd)) })
	return errors.Join(err, set)
}

// mark needs CAP_NET_ADMIN, or CAP_NET_RAW, over the network namespace (socket(7)).
func mark(fd int) error { return setMark(fd, routeMark) }

func setMark(fd, to int) error {
	return os.NewSyscallError("SO_MARK", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, to))
}

// Dial connects to a sandbox over TCP.
func Dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) { set = setMark(int(fd), openMark) })
		return errors.Join(err, set)
	}}
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, "tcp4", to.String())
	if err != nil {
		return nil, err
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err == nil {
		err = Mark("", "", raw)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Connecting returns a TCP socket that has begun to connect to a sandbox. It is for a
// process that may not mark sockets; the socket opens no other connection.
func Connecting(to netip.AddrPort) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", to, os.NewSyscallError("socket", err))
	}
	f := os.NewFile(uintptr(fd), "connection")
	err = setMark(fd, openMark)
	if err == nil {
		err = os.NewSyscallError("connect", unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}))
	}
	if errors.Is(err, unix.EINPROGRESS) {
		err = nil
	}
	if err = errors.Join(err, mark(fd)); err != nil {
		return nil, errors.Join(fmt.Errorf("connecting to %s: %w", to, err), f.Close())
	}
	return f, nil
}
