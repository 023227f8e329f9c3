package agent_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// listening serves what a program inside would, and returns its port.
func listening(t *testing.T, address string, serve func(*net.TCPConn)) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil && address == "::1" {
		must.Lack(t, "%v", err) // a host without IPv6
	}
	must.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); serve(c.(*net.TCPConn)) }()
		}
	}()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func connect(t *testing.T, c *channel.Channel, host string, port uint16) *channel.Port {
	t.Helper()
	p, err := c.Connect(t.Context(), host, port)
	must.OK(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// The host reaches what listens for the sandbox alone, and nothing that is not the
// sandbox's.
func TestPortHosts(t *testing.T) {
	_, _, c := serve(t)
	name := func(text string) func(*net.TCPConn) { return func(c *net.TCPConn) { _, _ = io.WriteString(c, text) } }
	four := listening(t, "127.0.0.1", name("four"))
	for host, want := range map[string]string{"127.0.0.1": "four", "localhost": "four", "": "four"} {
		if got, err := io.ReadAll(connect(t, c, host, four)); string(got) != want || err != nil {
			t.Errorf("%q: got %q, %v", host, got, err)
		}
	}
	for what, tt := range map[string]struct {
		host   string
		port   uint16
		status int
	}{
		"nobody":        {"localhost", unused(t), http.StatusBadGateway},
		"another host":  {"198.51.100.1", four, http.StatusBadRequest},
		"a name":        {"example.test", four, http.StatusBadRequest},
		"any address":   {"0.0.0.0", four, http.StatusBadRequest},
		"no port":       {"localhost", 0, http.StatusBadRequest},
		"the agent's":   {"localhost", wire.Port, http.StatusBadRequest},
		"another local": {"127.0.0.2", four, http.StatusBadRequest},
	} {
		var said *channel.Error
		if _, err := c.Connect(t.Context(), tt.host, tt.port); !errors.As(err, &said) || said.Status != tt.status {
			t.Errorf("%s: %v", what, err)
		}
	}
	six := listening(t, "::1", name("six"))
	for _, host := range []string{"::1", "localhost"} {
		if got, err := io.ReadAll(connect(t, c, host, six)); string(got) != "six" || err != nil {
			t.Errorf("%q: got %q, %v", host, got, err)
		}
	}
	if _, err := c.Connect(t.Context(), "127.0.0.1", six); err == nil {
		t.Error("127.0.0.1 is ::1")
	}
}

// unused is a port that nobody listens on, nor can until the test ends.
func unused(t *testing.T) uint16 {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must.OK(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	must.OK(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	at, err := syscall.Getsockname(fd)
	must.OK(t, err)
	return uint16(at.(*syscall.SockaddrInet4).Port)
}

// Each direction ends for itself, and what breaks off is no end.
func TestPortEnds(t *testing.T) {
	_, _, c := serve(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB

	echo := listening(t, "127.0.0.1", func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	p := connect(t, c, "localhost", echo)
	go func() { _, _ = p.Write(big); _ = p.CloseWrite() }()
	if got, err := io.ReadAll(p); err != nil || !bytes.Equal(got, big) {
		t.Errorf("%d bytes came back: %v", len(got), err)
	}

	// The program ends first, and goes on listening.
	heard := make(chan int, 1)
	first := listening(t, "127.0.0.1", func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "hello")
		_ = c.CloseWrite()
		all, _ := io.ReadAll(c)
		heard <- len(all)
	})
	p = connect(t, c, "localhost", first)
	if got, err := io.ReadAll(p); string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := p.Write(big); err != nil {
		t.Error(err)
	}
	_ = p.CloseWrite()
	if n := <-heard; n != len(big) {
		t.Errorf("after its own end it was sent %d bytes", n)
	}

	// It answers without taking what it is sent.
	answered := make(chan struct{})
	early := listening(t, "127.0.0.1", func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 1))
		_, _ = io.WriteString(c, "too much")
		_ = c.CloseWrite()
		_ = c.CloseRead()
		<-answered
	})
	p = connect(t, c, "localhost", early)
	go func() { _, _ = io.Copy(writing{p}, endless{}) }()
	got := make([]byte, 8)
	if _, err := io.ReadFull(p, got); string(got) != "too much" {
		t.Errorf("of an early answer: %q, %v", got, err)
	}
	close(answered)
	_ = p.Close()

	// It breaks off.
	broken := listening(t, "127.0.0.1", func(c *net.TCPConn) { _, _ = io.ReadFull(c, make([]byte, 1)); _ = c.SetLinger(0) })
	p = connect(t, c, "localhost", broken)
	_, _ = p.Write([]byte("x"))
	if got, err := io.ReadAll(p); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("of a broken connection: %q, %v", got, err)
	}

	// The host goes away.
	gone := make(chan error, 1)
	waits := listening(t, "127.0.0.1", func(c *net.TCPConn) { _, err := io.ReadAll(c); gone <- err })
	p = connect(t, c, "localhost", waits)
	_ = p.Close()
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Error("the program is not told that the host is gone")
	}

	p = connect(t, c, "localhost", echo)
	c.Close()
	if _, err := io.ReadAll(p); !errors.Is(err, channel.ErrClosed) {
		t.Errorf("when the sandbox stops: %v", err)
	}
}

type writing struct{ io.Writer }

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// Bytes that a program does not take are held by nobody, and the number of places is bounded.
func TestPortBounds(t *testing.T) {
	at, key, c := serve(t)
	deaf := make(chan struct{})
	t.Cleanup(func() { close(deaf) })
	port := listening(t, "127.0.0.1", func(*net.TCPConn) { <-deaf })
	p := connect(t, c, "localhost", port)
	sent := make(chan int64, 1)
	go func() { n, _ := io.Copy(writing{p}, endless{}); sent <- n }()
	time.Sleep(500 * time.Millisecond)
	_ = p.Close()
	if n := <-sent; n > 32<<20 {
		t.Errorf("a program that reads nothing was sent %d MiB", n>>20)
	}
	another := channel.New(at.Addr(), channel.Options{Key: key, Dial: to(at)})
	defer another.Close()
	// A client that has left does not keep its place, though the program goes on taking
	// nothing.
	var held []*channel.Port
	must.Soon(t, "64 places", func() bool {
		p, err := c.Connect(t.Context(), "localhost", port)
		if err == nil {
			held = append(held, p)
		}
		return len(held) == 64
	})
	defer func() {
		for _, p := range held {
			_ = p.Close()
		}
	}()
	if _, err := c.Connect(t.Context(), "localhost", port); !errors.Is(err, channel.ErrBusy) {
		t.Errorf("one more of a host: %v", err)
	}
	var said *channel.Error
	if _, err := another.Connect(t.Context(), "localhost", port); !errors.As(err, &said) || said.Status != http.StatusTooManyRequests || !strings.Contains(said.Error(), "64") {
		t.Errorf("one more of a sandbox: %v", err)
	}
	if err := another.JSON(t.Context(), "GET", "/activity", nil, nil); err != nil {
		t.Errorf("and another call: %v", err)
	}
}
