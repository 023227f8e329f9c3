package datapath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen makes a listener for [Datapath.Steer]. It is bound to any port of the loopback
// address. The local address of an accepted connection is the one that the sandbox
// dialled.
func Listen() (*net.TCPListener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) {
			set = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1), mark(int(fd)))
		})
		return errors.Join(err, set)
	}}
	config.SetMultipathTCP(false) // a SOCKMAP refuses MPTCP, Go's default
	l, err := config.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("making a transparent listener: %w", err)
	}
	return l.(*net.TCPListener), nil
}

// Steer sends new TCP connections of all attached sandboxes to the listener; open
// connections stay where they are. The listener must be from [Listen] and of this network
// namespace. When it is closed, even by the death of its process, the packets are dropped.
// DNS passes from now on too, so the resolver must have bound its sockets, with [Mark], to
// the gateway's address before.
func (d *Datapath) Steer(l *net.TCPListener) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return fmt.Errorf("steering to %s: %w", l.Addr(), err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var put error
	err = raw.Control(func(fd uintptr) {
		if on, e := unix.GetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT); e != nil || on == 0 {
			put = errors.New("the listener is not transparent: use Listen")
			return
		}
		put = d.objs.Listener.Put(uint32(0), uint64(fd))
	})
	if err := errors.Join(err, put); err != nil {
		return fmt.Errorf("steering to %s: %w", l.Addr(), err)
	}
	return nil
}
