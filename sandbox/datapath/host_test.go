package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

const (
	unprivileged = 65534
	servicePort  = 8000 // of a service in the sandbox
)

// knock is what a process of the host may try: a connection and a datagram, and
// whether it can mark a socket. It fails when the sandbox answers.
func knock(address string) error {
	var errs []error
	if c, err := net.DialTimeout("tcp4", address, 700*time.Millisecond); err == nil {
		c.Close()
		errs = append(errs, errors.New("it connected"))
	} else if !silence(err) {
		errs = append(errs, err)
	}
	c, err := net.Dial("udp4", address)
	if err != nil {
		return err
	}
	defer c.Close()
	_, _ = c.Write([]byte(markerStart + "datagram" + markerEnd)) // a drop may be an error
	if os.Geteuid() != 0 {
		if err := mark(fileOf(c)); !errors.Is(err, unix.EPERM) {
			errs = append(errs, fmt.Errorf("marking a socket: %v, want no permission", err))
		}
	}
	return errors.Join(errs...)
}

func fileOf(c net.Conn) (n int) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return -1
	}
	_ = raw.Control(func(fd uintptr) { n = int(fd) })
	return n
}

// serviceIn has a server in the sandbox that greets over TCP.
func serviceIn(t *testing.T, s *space, a netip.Addr) netip.AddrPort {
	t.Helper()
	var server net.Listener
	s.do(func() (err error) {
		server, err = net.Listen("tcp4", fmt.Sprintf("%s:%d", a, servicePort))
		return err
	})
	t.Cleanup(func() { server.Close() })
	go echo(server)
	return netip.AddrPortFrom(a, servicePort)
}

// No process of the host sends a sandbox anything, whoever its user is, and what is
// dropped is counted and told.
func TestHostProcesses(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	steered(t, d)
	next := drops(t, d)
	to := serviceIn(t, l.alice, alice.Address)
	// A connection that an earlier test has left open speaks too, of other ports.
	heard := l.alice.listen(func(f []byte) bool {
		return len(f) >= 38 && f[12] == 0x08 && f[13] == 0 && (f[23] == protoICMP || binary.BigEndian.Uint16(f[36:]) == servicePort)
	})
	for name, uid := range map[string]uint32{"an unprivileged user": unprivileged, "root": 0} {
		t.Run(name, func(t *testing.T) {
			before := dropped(t, d)[HostProcess].Packets
			c := exec.Command("/proc/self/exe")
			c.Env = append(os.Environ(), envKnock+"="+to.String())
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, strings.TrimSpace(string(out)))
			}
			if n := dropped(t, d)[HostProcess].Packets - before; n < 2 {
				t.Errorf("%d drops were counted, want one for the connection and one for the datagram at least", n)
			}
		})
	}
	t.Run("ping", func(t *testing.T) {
		before := dropped(t, d)[HostProcess].Packets
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		must.OK(t, err)
		defer unix.Close(fd)
		echo := packet{proto: protoICMP, icmp: 8, saddr: gateway, daddr: alice.Address}.transport()
		_ = unix.Sendto(fd, echo, 0, &unix.SockaddrInet4{Addr: alice.Address.As4()})
		if n := dropped(t, d)[HostProcess].Packets - before; n != 1 {
			t.Errorf("%d drops were counted, want one", n)
		}
	})
	if got := next(HostProcess); got.Sandbox != alice.Sandbox || got.SandboxID != alice.ID || got.Source.Addr() != gateway ||
		got.Destination.Addr() != alice.Address || got.Reason.FromSandbox() {
		t.Errorf("told of %+v", got)
	}
	select {
	case frame := <-heard:
		t.Errorf("alice heard of it: %x", frame)
	default:
	}
	// The daemon gets there, and what has been dropped would have been heard.
	c, err := dialDaemon(to)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	select {
	case <-heard:
	case <-time.After(patience):
		t.Error("alice hears nothing at all: the test shows nothing")
	}
}

// A socket of a process of the host is no way for a sandbox to that process: what
// is sent to it goes to the gateway.
func TestHostProcessIsNotAnswered(t *testing.T) {
	for port, ours := range map[int]bool{40007: true, 40008: false} {
		t.Run(map[bool]string{true: "the daemon's", false: "another's"}[ours], func(t *testing.T) {
			l := newLab(t)
			d := l.open(t)
			attachBoth(t, d, l)
			listener, err := Listen()
			must.OK(t, err)
			defer listener.Close()
			must.OK(t, d.Steer(listener))
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			must.OK(t, err)
			defer unix.Close(fd)
			if ours {
				must.OK(t, setMark(fd, openMark))
			}
			must.OK(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: gateway.As4(), Port: port}))
			// Nobody listens there, and nobody says so: it goes on trying.
			l.alice.do(func() error { return exec.Command("ip", "route", "add", "blackhole", gateway.String()).Run() })
			if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: alice.Address.As4(), Port: servicePort}); !errors.Is(err, unix.EINPROGRESS) {
				t.Fatal(err)
			}
			// A SYN of its own is an answer to one (RFC 9293, 3.5, simultaneous open).
			l.alice.send(packet{
				dst: bridgeMAC(testBridge), src: hw(alice), saddr: alice.Address, daddr: gateway,
				proto: protoTCP, sport: servicePort, dport: uint16(port),
			}.bytes())
			opened := func() bool {
				info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
				must.OK(t, err)
				return info.State != unix.BPF_TCP_SYN_SENT
			}
			if ours {
				eventually(t, "it is answered", opened)
			} else if settle(); opened() {
				t.Error("it was answered")
			}
		})
	}
}

// A connection that was begun for another process is one of the daemon's.
func TestConnecting(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	f, err := Connecting(serviceIn(t, l.alice, alice.Address))
	must.OK(t, err)
	defer f.Close()
	must.OK(t, f.SetDeadline(time.Now().Add(patience)))
	b := make([]byte, 100)
	n, err := f.Read(b) // which waits until it is connected
	for deadline := time.Now().Add(patience); errors.Is(err, unix.ENOTCONN) && time.Now().Before(deadline); {
		settle()
		n, err = f.Read(b)
	}
	if !strings.HasPrefix(string(b[:n]), alice.Address.String()) {
		t.Errorf("got %q, %v", b[:n], err)
	}
}

// again uses a socket of the gateway's process for another connection, as that may:
// connect(2) with AF_UNSPEC undoes what the socket was connected to.
func again(fd int, to netip.AddrPort) error {
	var none unix.RawSockaddrInet4 // family 0
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none)); errno != 0 {
		return fmt.Errorf("letting go: %w", errno)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connecting again: %w", err)
	}
	return nil
}

// No socket that the gateway's process is given or accepts reaches another port of a
// sandbox: the mark is the socket's, whatever it is connected to.
func TestSocketsOfTheGateway(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	listener := listening(t, d)
	to := serviceIn(t, l.alice, alice.Address)
	sockets := map[string]func(t *testing.T) *os.File{
		"to an exposed port": func(t *testing.T) *os.File {
			f, err := Connecting(to)
			must.OK(t, err)
			return f
		},
		"from a sandbox": func(t *testing.T) *os.File {
			c, err := l.alice.dial("", outside.String()+":443")
			must.OK(t, err)
			defer c.Close()
			got, err := listener.Accept()
			must.OK(t, err)
			defer got.Close()
			f, err := got.(*net.TCPConn).File()
			must.OK(t, err)
			return f
		},
	}
	for name, socket := range sockets {
		t.Run(name, func(t *testing.T) {
			f := socket(t)
			defer f.Close()
			settle()
			before := dropped(t, d)[HostProcess].Packets
			must.OK(t, again(int(f.Fd()), to))
			settle()
			info, err := unix.GetsockoptTCPInfo(int(f.Fd()), unix.IPPROTO_TCP, unix.TCP_INFO)
			must.OK(t, err)
			if info.State != unix.BPF_TCP_SYN_SENT {
				t.Errorf("it is in state %d, want one that nobody answers", info.State)
			}
			eventually(t, "a drop is counted", func() bool { return dropped(t, d)[HostProcess].Packets > before })
		})
	}
}
