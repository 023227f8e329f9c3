package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/gateway/access"
	"sallyport/gateway/inbound"
	"sallyport/gateway/worker"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
)

// program is the far end of a Stream.
func program(t *testing.T) (Stream, *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	_ = far.SetDeadline(time.Now().Add(2 * time.Minute))
	return c.(*net.TCPConn), far.(*net.TCPConn)
}

// exposes is a scene with port 8000 of box exposed, and the far ends of what was
// connected to.
func exposes(t *testing.T) (*scene, <-chan *net.TCPConn) {
	t.Helper()
	s := newScene(t)
	far := make(chan *net.TCPConn, 2*maxLoopback)
	s.supervisor.o.Ports = func() []access.Port {
		list := []access.Port{{Sandbox: "box", SandboxID: "box", Port: 8000}, {Sandbox: "other", SandboxID: "other", Port: 9000}}
		for i := range maxLoopback / maxLoopbackPerSandbox {
			id := fmt.Sprint("box", i)
			list = append(list, access.Port{Sandbox: id, SandboxID: id, Owner: string("ab"[i%2]), Port: 8000})
		}
		return list
	}
	s.supervisor.o.Loopback = func(context.Context, string, uint16) (Stream, error) {
		here, there := program(t)
		far <- there
		return here, nil
	}
	return s, far
}

// A process that has been taken over is connected to exposed ports of exposed
// sandboxes, and no others.
func TestInsideIsChecked(t *testing.T) {
	s, far := exposes(t)
	var why atomic.Pointer[error]
	connect := s.supervisor.o.Loopback
	s.supervisor.o.Loopback = func(ctx context.Context, id string, port uint16) (Stream, error) {
		if err := why.Load(); err != nil {
			return nil, fmt.Errorf("no: %w", *err)
		}
		return connect(ctx, id, port)
	}
	for _, c := range []workerapi.PortRequest{{ID: "box", Port: 8001}, {ID: "box", Port: 9000}, {ID: "other", Port: 8000}, {ID: "none", Port: 8000}, {ID: "", Port: 0}, {ID: "box", Port: 0}} {
		if c, err := (worker.Sandboxes{Peer: s.child}).Connect(t.Context(), c.ID, c.Port); err == nil {
			_ = c.Close()
			t.Errorf("%v: connected", c)
		}
	}
	if len(far) != 0 {
		t.Errorf("%d connections were made", len(far))
	}
	for _, want := range []error{inbound.ErrNoListener, inbound.ErrLoopbackBusy, inbound.ErrLoopbackEarlier} {
		why.Store(&want)
		if _, err := (worker.Sandboxes{Peer: s.child}).Connect(t.Context(), "box", 8000); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

// A process dials nothing of a sandbox's itself: it gets a socket that is on its way
// to an exposed port of an exposed sandbox, and no other.
func TestReachIsChecked(t *testing.T) {
	s, _ := exposes(t)
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	to, asked := ln.Addr().(*net.TCPAddr).AddrPort(), 0
	s.supervisor.o.Dial = func(string, uint16) (*os.File, error) {
		asked++
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); !errors.Is(err, unix.EINPROGRESS) {
			t.Errorf("connecting: %v", err)
		}
		return os.NewFile(uintptr(fd), ""), nil
	}
	own := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("10.231.0.3"), port) }
	for _, c := range []workerapi.PortRequest{{ID: "box", Port: 8001}, {ID: "box", Port: 9000}, {ID: "other", Port: 8000}, {ID: "none", Port: 8000}, {ID: "", Port: 0}} {
		if c, err := (worker.Sandboxes{Peer: s.child}).Dial(t.Context(), c.ID, own(c.Port)); err == nil {
			_ = c.Close()
			t.Errorf("%v: connected", c)
		}
	}
	if asked != 0 {
		t.Errorf("%d connections were begun", asked)
	}
	c, err := (worker.Sandboxes{Peer: s.child}).Dial(t.Context(), "box", own(8000))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(far, "hello")
	_ = far.Close()
	if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	_ = ln.Close()
	if _, err := (worker.Sandboxes{Peer: s.child}).Dial(t.Context(), "box", own(8000)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("where nobody listens: %v", err)
	}
}

// Bytes and ends pass both ways.
func TestInsideCarries(t *testing.T) {
	s, far := exposes(t)
	c, err := worker.Sandboxes{Peer: s.child}.Connect(t.Context(), "box", 8000)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	there := <-far
	sent := make([]byte, 300_000)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	go func() { _, _ = c.Write(sent); _ = c.(*ipc.Pieces).CloseWrite() }()
	got, err := io.ReadAll(there)
	if err != nil || string(got) != string(sent) {
		t.Errorf("the program got %d bytes, %v", len(got), err)
	}
	go func() { _, _ = there.Write(sent); _ = there.CloseWrite() }()
	if got, err = io.ReadAll(c); err != nil || string(got) != string(sent) {
		t.Errorf("the process got %d bytes, %v", len(got), err)
	}
}

// A connection that breaks off does not look like one that ends.
func TestInsideBreaksOff(t *testing.T) {
	s, far := exposes(t)
	c, err := worker.Sandboxes{Peer: s.child}.Connect(t.Context(), "box", 8000)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	there := <-far
	_, _ = there.Write([]byte("half"))
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	_ = there.SetLinger(0)
	_ = there.Close()
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("what broke off: %d, %v", n, err)
	}
}

// A process that has been taken over loses its connections to a port that is not
// exposed any more, whatever it does with what it is told.
func TestInsideEndsWithTheExposure(t *testing.T) {
	s, far := exposes(t)
	var over atomic.Bool
	exposed := s.supervisor.o.Ports
	s.supervisor.o.Ports = func() []access.Port {
		list := exposed()
		if over.Load() {
			return list[1:]
		}
		return list
	}
	connect := func(id string, port uint16) (net.Conn, *net.TCPConn) {
		c, err := worker.Sandboxes{Peer: s.child}.Connect(t.Context(), id, port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c, <-far
	}
	ended, there := connect("box", 8000)
	kept, program := connect("other", 9000)
	over.Store(true)
	if _, err := there.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the program is connected still: %v", err)
	}
	_ = ended.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := ended.Read(make([]byte, 1)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the process is told %v", err)
	}
	go func() { _, _ = kept.Write([]byte("x")) }()
	if _, err := io.ReadFull(program, make([]byte, 1)); err != nil {
		t.Errorf("another's has ended: %v", err)
	}
}

// Each sandbox and each owner has its places, and a connection that the process has left gives its
// own back, whether or not the program takes what was sent to it or says anything.
func TestInsideIsBounded(t *testing.T) {
	s, far := exposes(t)
	open := func(id string) (net.Conn, error) {
		return worker.Sandboxes{Peer: s.child}.Connect(t.Context(), id, 8000)
	}
	var all []net.Conn
	for range maxLoopbackPerSandbox {
		c, err := open("box")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	if _, err := open("box"); !errors.Is(err, inbound.ErrLoopbackBusy) {
		t.Errorf("one too many: %v", err)
	}
	others := 0
	for i := range maxLoopback / maxLoopbackPerSandbox {
		for range maxLoopbackPerSandbox {
			c, err := open(fmt.Sprint("box", i))
			if err != nil {
				if !errors.Is(err, inbound.ErrLoopbackBusy) {
					t.Fatal(err)
				}
				break
			}
			defer c.Close()
			others++
		}
	}
	// Each owner has stopped at what was left: 80 and 72 beside the 32.
	if others != 152 {
		t.Errorf("%d of others, want 152", others)
	}
	c, err := (worker.Sandboxes{Peer: s.child}).Connect(t.Context(), "other", 9000)
	if err != nil {
		t.Errorf("an owner with less than is left: %v", err)
	} else {
		defer c.Close()
	}
	for _, c := range all { // none of which is read by its program
		go func() {
			_ = c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
			_, _ = c.Write(make([]byte, 16<<20))
			_ = c.Close()
		}()
	}
	deadline := time.Now().Add(time.Minute)
	for {
		c, err := open("box")
		if err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the places are not given back: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	// With the process ends what it had.
	_ = s.child.Close()
	for range len(far) {
		c := <-far
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("it goes on: %v", err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		left := s.supervisor.loopbacks.Taken()
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d go on", left)
		}
	}
}
