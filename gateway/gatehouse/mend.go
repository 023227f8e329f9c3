package gatehouse

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The process shares its listeners with the Warden, and with the process after
// it: what one did to them, be it shutdown(2), connect(2) or a filter, holds for
// the next. So they are mended before each. What cannot be mended is a UDP socket
// that was shut down and a filter that was locked (SO_LOCK_FILTER); the latter is
// an error.

// mend makes the sockets what they were. w.life is held.
func (w *Warden) mend() error {
	l := &w.o.Listeners
	err := l.mend()
	if !w.began.IsZero() && l.Mended != nil { // somebody had them before
		err = errors.Join(err, l.Mended())
	}
	return err
}

// mend is the sockets' part.
func (l *Listeners) mend() error {
	var all error
	for name, t := range map[string]*net.TCPListener{fileTransparent: l.Transparent, fileExplicit: l.Explicit, fileDNSTCP: l.DNSTCP} {
		if t != nil {
			if err := listenAgain(t); err != nil {
				all = errors.Join(all, fmt.Errorf("listening on %s again: %w", name, err))
			}
		}
	}
	if l.Transparent != nil {
		// A process may turn it off, and only the Warden on. Without privileges
		// there is no datapath that needs it.
		err := control(l.Transparent, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1) })
		if err != nil && !errors.Is(err, unix.EPERM) {
			all = errors.Join(all, fmt.Errorf("making %s so again: %w", fileTransparent, err))
		}
	}
	if l.DNS != nil {
		if err := hearAgain(l.DNS); err != nil {
			all = errors.Join(all, fmt.Errorf("hearing %s again: %w", fileDNS, err))
		}
	}
	return all
}

// listenAgain leaves connections that wait as they are.
func listenAgain(l *net.TCPListener) error {
	return control(l, func(fd int) error {
		err := unfilter(fd)
		on, gerr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		err = errors.Join(err, os.NewSyscallError("getsockopt", gerr))
		if on == 0 {
			err = errors.Join(err, disconnect(fd, l.Addr().(*net.TCPAddr).AddrPort()))
		}
		// The kernel takes net.core.somaxconn for more, as package net does.
		return errors.Join(err, os.NewSyscallError("listen", unix.Listen(fd, math.MaxInt32)))
	})
}

func hearAgain(c *net.UDPConn) error {
	return control(c, func(fd int) error {
		return errors.Join(unfilter(fd), disconnect(fd, c.LocalAddr().(*net.UDPAddr).AddrPort()))
	})
}

func control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(err, cerr)
}

// unfilter removes a filter of packets (SO_ATTACH_FILTER of socket(7)).
func unfilter(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) { // there is none, or can be none
		return nil
	}
	return os.NewSyscallError("setsockopt", err)
}

// disconnect ends what a socket is connected to (connect(2), AF_UNSPEC). One
// whose port was the kernel's choice loses it thereby, and gets it again.
func disconnect(fd int, at netip.AddrPort) error {
	none := unix.RawSockaddrAny{Addr: unix.RawSockaddr{Family: unix.AF_UNSPEC}}
	if err := connect(fd, &none); err != nil {
		return os.NewSyscallError("connect", err)
	}
	is, err := unix.Getsockname(fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	var to unix.Sockaddr = &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().Unmap().As4()}
	if six, ok := is.(*unix.SockaddrInet6); ok {
		to = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16(), ZoneId: six.ZoneId}
	}
	err = unix.Bind(fd, to)
	if errors.Is(err, unix.EINVAL) { // it has kept it
		return nil
	}
	return os.NewSyscallError("bind", err)
}

// connect is the system call: package unix knows no address of no family.
func connect(fd int, to *unix.RawSockaddrAny) error {
	_, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(to)), unsafe.Sizeof(to.Addr))
	if e != 0 {
		return e
	}
	return nil
}
