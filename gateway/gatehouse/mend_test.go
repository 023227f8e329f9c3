package gatehouse

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nothing is a filter that lets no packet through.
var nothing = unix.SockFprog{Len: 1, Filter: &unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}}

// elsewhere is where a process connects a socket to that it was given.
var elsewhere = &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}

func filter(fd int) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &nothing)
}

// Whatever a process has done to the sockets that it shares, the one after it
// gets connections and datagrams on them.
func TestSocketsAreMended(t *testing.T) {
	shut := func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) }
	away := func(fd int) error { _ = unix.Connect(fd, elsewhere); return nil }
	type breaking map[string][]func(fd int) error
	for name, steps := range (breaking{
		"as it was": nil, "shut down": {shut}, "filtered": {filter}, "connected": {shut, away},
	}) {
		for _, kind := range []struct{ fixed, multipath bool }{{true, false}, {false, false}, {false, true}} {
			t.Run(fmt.Sprintf("TCP %s, %+v", name, kind), func(t *testing.T) {
				var config net.ListenConfig
				config.SetMultipathTCP(kind.multipath)
				some, err := config.Listen(t.Context(), "tcp4", fmt.Sprintf("127.0.0.1:%d", port(t, kind.fixed)))
				if err != nil {
					t.Fatal(err)
				}
				defer some.Close()
				l := some.(*net.TCPListener)
				spoil(t, l, steps)
				if err := (&Listeners{Explicit: l}).mend(); err != nil {
					t.Fatal(err)
				}
				c, err := net.DialTimeout("tcp4", l.Addr().String(), time.Second)
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
				_ = next.(*net.TCPListener).SetDeadline(time.Now().Add(time.Second))
				got, err := next.Accept()
				if err != nil {
					t.Fatal(err)
				}
				_ = got.Close()
			})
		}
	}
	for name, steps := range (breaking{
		"as it was": nil, "connected": {away}, "filtered": {filter},
	}) {
		for _, fixed := range []bool{true, false} {
			t.Run(fmt.Sprintf("UDP %s, port fixed %t", name, fixed), func(t *testing.T) {
				u, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port(t, fixed)})
				if err != nil {
					t.Fatal(err)
				}
				defer u.Close()
				spoil(t, u, steps)
				if err := (&Listeners{DNS: u}).mend(); err != nil {
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
				deadline := time.Now().Add(time.Second)
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
	if err := (&Listeners{Transparent: l}).mend(); err != nil {
		t.Fatal(err)
	}
	_ = l.SetDeadline(time.Now().Add(time.Second))
	got, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Close()
}

// The datapath is told of the listener again, before each process but the first.
func TestMended(t *testing.T) {
	calls := 0
	w := New(Options{Listeners: Listeners{Mended: func() error { calls++; return nil }}})
	if err := w.mend(); err != nil || calls != 0 {
		t.Errorf("before the first: %d, %v", calls, err)
	}
	w.began = time.Now()
	if err := w.mend(); err != nil || calls != 1 {
		t.Errorf("before the second: %d, %v", calls, err)
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
		t.Skip(err) // as for a filter under gVisor
	}
	if err := errors.Join(err, cerr); err != nil {
		t.Fatal(err)
	}
}

type filer interface{ File() (*os.File, error) }
