package supervisor

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/testnet"
)

// nothing is a filter that lets no packet through.
var nothing = unix.SockFprog{Len: 1, Filter: &unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}}

// lock has a filter stay.
func lock(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1) }

// elsewhere is where a process connects a socket to that it was given.
var elsewhere = &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}

func filter(fd int) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &nothing)
}

// Whatever a process has done to the sockets that it shares, the one after it
// gets connections and datagrams on them.
func TestSocketsAreMended(t *testing.T) {
	shut := func(fd int) error { // which it says of a datagram socket too, and does it
		if err := unix.Shutdown(fd, unix.SHUT_RDWR); !errors.Is(err, unix.ENOTCONN) {
			return err
		}
		return nil
	}
	away := func(fd int) error { _ = unix.Connect(fd, elsewhere); return nil }
	type breaking map[string][]func(fd int) error
	for name, steps := range (breaking{
		"as it was": nil, "shut down": {shut}, "filtered": {filter}, "connected": {shut, away},
		"filtered for good": {filter, lock}, "shut down and locked": {lock, shut},
	}) {
		for _, kind := range []struct{ fixed, multipath, six bool }{{fixed: true}, {}, {multipath: true}, {six: true}} {
			t.Run(fmt.Sprintf("TCP %s, %+v", name, kind), func(t *testing.T) {
				var config net.ListenConfig
				config.SetMultipathTCP(kind.multipath)
				network, host := "tcp4", "127.0.0.1"
				if kind.six {
					network, host = "tcp", "" // every address of both families
				}
				some, err := config.Listen(t.Context(), network, fmt.Sprintf("%s:%d", host, port(t, kind.fixed)))
				if err != nil {
					t.Fatal(err)
				}
				defer some.Close()
				l := some.(*net.TCPListener)
				spoil(t, l, steps)
				if err := (&Listeners{Explicit: l}).restore(); err != nil {
					t.Fatal(err)
				}
				c, err := net.DialTimeout("tcp4", fmt.Sprintf("127.0.0.1:%d", l.Addr().(*net.TCPAddr).Port), time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				f, err := l.File()
				if err != nil {
					t.Fatal(err)
				}
				next, err := net.FileListener(f)
				_ = f.Close()
				if err != nil {
					t.Fatal(err)
				}
				defer next.Close()
				_ = next.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute))
				got, err := next.Accept()
				if err != nil {
					t.Fatal(err)
				}
				_ = got.Close()
			})
		}
	}
	for name, steps := range (breaking{
		"as it was": nil, "connected": {away}, "filtered": {filter}, "filtered for good": {filter, lock}, "shut down": {shut},
		"shut down for sending": {func(fd int) error { _ = unix.Shutdown(fd, unix.SHUT_WR); return nil }},
	}) {
		for _, fixed := range []bool{true, false} {
			t.Run(fmt.Sprintf("UDP %s, port fixed %t", name, fixed), func(t *testing.T) {
				u, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port(t, fixed)})
				if err != nil {
					t.Fatal(err)
				}
				defer u.Close()
				spoil(t, u, steps)
				if err := (&Listeners{DNS: u}).restore(); err != nil {
					t.Fatal(err)
				}
				f, err := u.File()
				if err != nil {
					t.Fatal(err)
				}
				next, err := net.FilePacketConn(f)
				_ = f.Close()
				if err != nil {
					t.Fatal(err)
				}
				defer next.Close()
				c, err := net.Dial("udp4", u.LocalAddr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				deadline := time.Now().Add(time.Minute)
				if err := errors.Join(next.SetDeadline(deadline), c.SetDeadline(deadline)); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Write([]byte("question")); err != nil {
					t.Fatal(err)
				}
				b := make([]byte, 100)
				n, from, err := next.ReadFrom(b)
				if err != nil || string(b[:n]) != "question" {
					t.Fatalf("got %q, %v", b[:n], err)
				}
				if _, err := next.WriteTo([]byte("answer"), from); err != nil {
					t.Fatal(err)
				}
				if n, err := c.Read(b); err != nil || string(b[:n]) != "answer" {
					t.Errorf("the answer is %q, %v", b[:n], err)
				}
			})
		}
	}
}

// The daemon's mark stays on a socket that is replaced: the datapath knows it by that.
func TestMendKeepsTheMark(t *testing.T) {
	testnet.Privileged(t)
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, 77); err != nil {
				t.Error(err)
			}
		})
	}}
	u, err := config.ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	config.SetMultipathTCP(false)
	l, err := config.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	spoil(t, l.(*net.TCPListener), []func(int) error{filter, lock}) // which is past mending
	if err := (&Listeners{DNS: u.(*net.UDPConn), Transparent: l.(*net.TCPListener)}).restore(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]syscall.Conn{"UDP": u.(*net.UDPConn), "TCP": l.(*net.TCPListener)} {
		err := control(c, func(fd int) error {
			if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK); got != 77 || err != nil {
				t.Errorf("%s: the mark is %d, %v", name, got, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A connection that waits while one process follows another is not lost.
func TestMendKeepsWaiting(t *testing.T) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := (&Listeners{Transparent: l}).restore(); err != nil {
		t.Fatal(err)
	}
	_ = l.SetDeadline(time.Now().Add(time.Minute))
	got, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Close()
}

// The datapath is told of the listener again when a process has had it, until it
// has heard.
func TestMended(t *testing.T) {
	calls := 0
	var fails error
	w := New(Options{Listeners: Listeners{Restored: func() error { calls++; return fails }}, Logger: slog.New(slog.DiscardHandler)})
	if w.restoreSockets(); calls != 0 {
		t.Errorf("before the first: %d calls", calls)
	}
	w.used, fails = true, errors.New("no")
	for range 2 {
		w.restoreSockets()
	}
	fails = nil
	for range 2 {
		w.restoreSockets()
	}
	if calls != 3 {
		t.Errorf("after it: %d calls, want two that fail and one", calls)
	}
}

// A socket that was replaced belongs to its holder as the one before did: closed,
// it leaves its address to others.
func TestReplacedSocketCloses(t *testing.T) {
	u, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if err := (&Listeners{DNS: u}).restore(); err != nil {
		t.Fatal(err)
	}
	second, err := net.ListenUDP("udp4", u.LocalAddr().(*net.UDPAddr))
	if err == nil {
		_ = second.Close()
		t.Error("another can have its address")
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	second, err = net.ListenUDP("udp4", u.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	_ = second.Close()
}

// Options that a process may set on a listener are not its successor's connections'.
func TestMendResetsPatience(t *testing.T) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	some, err := config.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer some.Close()
	l := some.(*net.TCPListener)
	spoil(t, l, []func(int) error{func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 1) }})
	if err := (&Listeners{Explicit: l}).restore(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	err = control(got, func(fd int) error {
		v, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		if err == nil && v != 0 {
			err = fmt.Errorf("it gives its peer %d ms", v)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// port is a free one, for a socket that names it, or the kernel's choice.
func port(t *testing.T, fixed bool) int {
	t.Helper()
	if !fixed {
		return 0
	}
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// spoil does to a socket what a process could, on a descriptor of its own.
func spoil(t *testing.T, c filer, steps []func(fd int) error) {
	t.Helper()
	f, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	cerr := raw.Control(func(fd uintptr) {
		for _, step := range steps {
			err = errors.Join(err, step(int(fd)))
		}
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no filters for Multipath TCP: ", err)
	}
	if errors.Is(err, unix.EPERM) {
		testnet.Privileged(t) // for a filter
	}
	if err := errors.Join(err, cerr); err != nil {
		t.Fatal(err)
	}
}

type filer interface{ File() (*os.File, error) }
