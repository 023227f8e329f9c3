package supervisor

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"sallyport/gateway/workerapi"

	"golang.org/x/sys/unix"
)

// A worker shares its listeners with the supervisor and with the next worker: a
// shutdown(2), a connect(2) or an option of one holds for the next. So the sockets
// are restored after each worker. A TCP listener keeps the connections that wait in
// it, unless it cannot be restored: then it is replaced. The UDP socket is always
// replaced, since its shutdown cannot be undone nor, for sending, be seen; clients
// that wait for an answer there ask again.

// restoreSockets restores the sockets if a worker has had them since the last call. It is
// called between one worker's end and the next one's start.
func (s *Supervisor) restoreSockets() {
	if !s.used {
		return
	}
	l := &s.o.Listeners
	err := l.restore()
	if l.Restored != nil {
		err = errors.Join(err, l.Restored())
	}
	if err != nil { // the others serve
		s.o.Logger.Error("a socket that the gateway's process had cannot be mended: restart the daemon", "error", err)
		return
	}
	s.used = false
}

// tcp are the TCP listeners that there are, by the names of their files in the worker.
func (l *Listeners) tcp() map[string]*net.TCPListener {
	all := map[string]*net.TCPListener{
		workerapi.FileTransparent: l.Transparent, workerapi.FileExplicit: l.Explicit, workerapi.FileDNSTCP: l.DNSTCP,
		workerapi.FileInbound: l.Inbound, workerapi.FileRouted: l.Routed,
	}
	maps.DeleteFunc(all, func(_ string, t *net.TCPListener) bool { return t == nil })
	return all
}

// restore restores each socket.
func (l *Listeners) restore() error {
	var all error
	for name, t := range l.tcp() {
		if err := listenAgain(t); err != nil {
			all = errors.Join(all, fmt.Errorf("listening on %s again: %w", name, err))
		}
	}
	if l.Transparent != nil {
		// Without privileges there is no datapath that needs it.
		err := control(l.Transparent, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1) })
		if err != nil && !errors.Is(err, unix.EPERM) {
			all = errors.Join(all, fmt.Errorf("making %s so again: %w", workerapi.FileTransparent, err))
		}
	}
	if l.DNS != nil {
		err := control(l.DNS, func(fd int) error { return replace(fd, l.DNS.LocalAddr().(*net.UDPAddr).AddrPort()) })
		if err != nil {
			all = errors.Join(all, fmt.Errorf("hearing %s again: %w", workerapi.FileDNS, err))
		}
	}
	return all
}

// listenAgain keeps the connections that wait, where it can.
func listenAgain(l *net.TCPListener) error {
	return control(l, func(fd int) error {
		at := l.Addr().(*net.TCPAddr).AddrPort()
		err := relisten(fd, at)
		if err == nil {
			return nil
		}
		if rerr := replace(fd, at); rerr != nil {
			return errors.Join(err, rerr)
		}
		return nil
	})
}

// relisten undoes everything that can be undone.
func relisten(fd int, at netip.AddrPort) error {
	if err := unfilter(fd); err != nil {
		return err
	}
	// Connections inherit it; the other options that a process may set are set
	// again when one is accepted. Multipath TCP has none.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		return os.NewSyscallError("setsockopt", err)
	}
	on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	if on == 0 {
		if err := disconnect(fd, at); err != nil {
			return err
		}
	}
	return listen(fd)
}

// listen has the longest queue: the kernel takes net.core.somaxconn for more, as package
// net does.
func listen(fd int) error { return os.NewSyscallError("listen", unix.Listen(fd, math.MaxInt32)) }

// replace puts a new socket in the place of one, under its descriptor and at its
// address: what knows the descriptor need not know. Between the two another
// process of this host may bind the address, if it is not below 1024: then the
// new socket fails to, and the caller says so. It gets what arrives in that moment.
func replace(fd int, at netip.AddrPort) error {
	is := map[int]int{unix.SO_DOMAIN: 0, unix.SO_TYPE: 0, unix.SO_PROTOCOL: 0}
	for name := range is {
		v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, name)
		if err != nil {
			return os.NewSyscallError("getsockopt", err)
		}
		is[name] = v
	}
	next, err := unix.Socket(is[unix.SO_DOMAIN], is[unix.SO_TYPE]|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, is[unix.SO_PROTOCOL])
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(next)
	if is[unix.SO_DOMAIN] == unix.AF_INET6 {
		only, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
		if err == nil {
			err = unix.SetsockoptInt(next, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only)
		}
		if err != nil {
			return os.NewSyscallError("IPV6_V6ONLY", err)
		}
	}
	// The datapath knows the daemon's sockets by their mark, which a process cannot
	// change; to set it takes a capability.
	if mark, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK); err != nil {
		return os.NewSyscallError("getsockopt", err)
	} else if mark != 0 {
		if err := unix.SetsockoptInt(next, unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
			return os.NewSyscallError("SO_MARK", err)
		}
	}
	stream := is[unix.SO_TYPE] == unix.SOCK_STREAM
	if stream {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // it may not listen where another is bound
	}
	// Both must have it for the two to be bound there at once (socket(7)).
	for _, s := range []int{fd, next} {
		if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return os.NewSyscallError("SO_REUSEADDR", err)
		}
	}
	to, err := sockaddr(fd, at)
	if err != nil {
		return err
	}
	if err := unix.Bind(next, to); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if stream {
		err = listen(next)
	} else { // where it would let others have the address too
		err = os.NewSyscallError("SO_REUSEADDR", unix.SetsockoptInt(next, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0))
	}
	if err != nil {
		return err
	}
	return os.NewSyscallError("dup3", unix.Dup3(next, fd, unix.O_CLOEXEC))
}

func control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(err, cerr)
}

// unfilter removes a filter of packets (SO_ATTACH_FILTER of socket(7)), unless it
// is locked.
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
	to, err := sockaddr(fd, at)
	if err != nil {
		return err
	}
	err = unix.Bind(fd, to)
	if errors.Is(err, unix.EINVAL) { // it has kept it
		return nil
	}
	return os.NewSyscallError("bind", err)
}

// sockaddr is an address as a socket of fd's family takes it.
func sockaddr(fd int, at netip.AddrPort) (unix.Sockaddr, error) {
	is, err := unix.Getsockname(fd)
	if err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	if six, ok := is.(*unix.SockaddrInet6); ok {
		return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16(), ZoneId: six.ZoneId}, nil
	}
	return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().Unmap().As4()}, nil
}

// connect is the system call: package unix knows no address of no family.
func connect(fd int, to *unix.RawSockaddrAny) error {
	_, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(to)), unsafe.Sizeof(to.Addr))
	if e != 0 {
		return e
	}
	return nil
}
