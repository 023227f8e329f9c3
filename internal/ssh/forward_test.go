package ssh

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/sandbox"
)

// address gives the sandbox demo one.
func (p *sshTest) address(a string) {
	p.block.mu.Lock()
	defer p.block.mu.Unlock()
	i := p.block.all["demo"]
	i.Address = netip.MustParseAddr(a)
	p.block.all["demo"] = i
}

// listen serves what a program inside would, and returns its port.
func (p *sshTest) listen(at string, serve func(*net.TCPConn)) int {
	p.t.Helper()
	l, err := net.Listen("tcp", at)
	must.OK(p.t, err)
	var served sync.WaitGroup
	p.t.Cleanup(func() { _ = l.Close(); served.Wait() })
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() { defer c.Close(); serve(c.(*net.TCPConn)) })
		}
	})
	return l.Addr().(*net.TCPAddr).Port
}

func TestForward(t *testing.T) {
	p := newSSHTest(t)
	p.address("127.0.0.3")
	echo := func(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.CloseWrite() }
	port := p.listen("127.0.0.1:0", echo)
	c := p.in()
	// A server for the sandbox alone is reached, from within.
	for _, host := range []string{"localhost", "127.0.0.1", "127.0.0.3"} {
		to, err := c.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		must.OK(t, err)
		big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		go func() { _, _ = to.Write(big); _ = to.(interface{ CloseWrite() error }).CloseWrite() }()
		if got, err := io.ReadAll(to); err != nil || !bytes.Equal(got, big) {
			t.Errorf("%d bytes came back: %v", len(got), err)
		}
		_ = to.Close()
	}
	p.block.mu.Lock()
	if got := strings.Join(p.block.hosts, " "); got != "localhost 127.0.0.1 " {
		t.Errorf("the agent was asked for %q", got)
	}
	p.block.mu.Unlock()
	if _, err := c.Dial("tcp", net.JoinHostPort("::1", strconv.Itoa(port))); err == nil || !strings.Contains(err.Error(), sandbox.ErrNoPort.Error()) || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("where nothing listens: %v", err)
	}
	for _, host := range []string{"198.51.100.1", "example.test", "0.0.0.0", "127.0.0.2", "demo"} {
		if _, err := c.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(port))); err == nil || !strings.Contains(err.Error(), onlyInside) {
			t.Errorf("to %s: %v", host, err)
		}
	}
	stays, err := c.Dial("tcp", net.JoinHostPort("localhost", strconv.Itoa(port)))
	must.OK(t, err)
	p.rules.allow(policy.ProtocolShell)
	p.server.check()
	if _, err := io.ReadAll(stays); err != nil {
		t.Error(err)
	}
	if _, err := c.Dial("tcp", net.JoinHostPort("localhost", strconv.Itoa(port))); err == nil || !strings.Contains(err.Error(), "no rule allows forward") {
		t.Errorf("without a rule: %v", err)
	}
	p.await("records", func() bool { return p.book.has(audit.KindCompletion, "forward", "no rule allows forward") })
}

// An agent of an earlier version connects to nothing: what listens on the sandbox's
// address is reached as before it could, and of the rest it is said what to do.
func TestForwardEarlier(t *testing.T) {
	p := newSSHTest(t)
	p.address("127.0.0.3")
	p.block.earlier = true
	say := func(c *net.TCPConn) { _, _ = io.WriteString(c, "hello") }
	open, local := p.listen("127.0.0.3:0", say), p.listen("127.0.0.1:0", say)
	c := p.in()
	to, err := c.Dial("tcp", net.JoinHostPort("localhost", strconv.Itoa(open)))
	must.OK(t, err)
	if got, err := io.ReadAll(to); string(got) != "hello" || err != nil {
		t.Errorf("on its address: %q, %v", got, err)
	}
	if _, err := c.Dial("tcp", net.JoinHostPort("localhost", strconv.Itoa(local))); err == nil || !strings.Contains(err.Error(), "stop the sandbox and use it again, or let the program listen on 0.0.0.0") {
		t.Errorf("on none of the outside's: %v", err)
	}
}

// A channel that breaks off is closed without an end, and one that ends has one.
func TestForwardBreaksOff(t *testing.T) {
	p := newSSHTest(t)
	end := make(chan func(*net.TCPConn), 1)
	port := p.listen("127.0.0.1:0", func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "half")
		(<-end)(c)
		_, _ = io.Copy(io.Discard, c)
	})
	c := p.in()
	for _, tt := range []struct {
		what   string
		end    func(*net.TCPConn)
		closed bool
	}{
		{"an end", func(c *net.TCPConn) { _ = c.CloseWrite() }, false},
		{"a break", func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() }, true},
	} {
		to, requests, err := c.OpenChannel("direct-tcpip", ssh.Marshal(struct {
			Host       string
			Port       uint32
			Origin     string
			OriginPort uint32
		}{"localhost", uint32(port), "127.0.0.1", 1}))
		must.OK(t, err)
		closed := make(chan struct{})
		go func() { ssh.DiscardRequests(requests); close(closed) }()
		if _, err := io.ReadFull(to, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		end <- tt.end
		// Of an end of the data the channel stays open for the other direction.
		if rest, err := io.ReadAll(to); len(rest) > 0 || err != nil {
			t.Errorf("%s: %q, %v", tt.what, rest, err)
		}
		is, wait := false, 500*time.Millisecond
		if tt.closed {
			wait = time.Minute
		}
		select {
		case <-closed:
			is = true
		case <-time.After(wait):
		}
		if is != tt.closed {
			t.Errorf("%s: the channel is closed: %v", tt.what, is)
		}
		_ = to.Close()
	}
}

// A sandbox that has got the name of the one that was meant is not spoken to, whether
// by its agent or at its address.
func TestForwardReplaced(t *testing.T) {
	for _, earlier := range []bool{false, true} {
		p := newSSHTest(t)
		heard := make(chan int, 1)
		port := p.listen("127.0.0.1:0", func(c *net.TCPConn) {
			all, _ := io.ReadAll(c)
			heard <- len(all)
		})
		c := p.in()
		p.block.mu.Lock()
		p.block.earlier, p.block.replace = earlier, true
		p.block.mu.Unlock()
		to, err := c.Dial("tcp", net.JoinHostPort("localhost", strconv.Itoa(port)))
		if err == nil {
			_, _ = to.Write([]byte("for another"))
			_ = to.Close()
			t.Errorf("earlier %v: it was connected to another sandbox", earlier)
		} else if !strings.Contains(err.Error(), sandbox.ErrNotFound.Error()) {
			t.Errorf("earlier %v: %v", earlier, err)
		}
		if n := <-heard; n != 0 {
			t.Errorf("earlier %v: the other one heard %d bytes", earlier, n)
		}
	}
}

// A client that has sent all and left is heard to the end, and one that leaves
// something that nobody takes does not stay.
func TestForwardLeft(t *testing.T) {
	p := newSSHTest(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	heard := make(chan int, 1)
	slow := p.listen("127.0.0.1:0", func(c *net.TCPConn) {
		_ = c.CloseWrite()
		time.Sleep(500 * time.Millisecond)
		all, _ := io.ReadAll(c)
		heard <- len(all)
	})
	c := p.in()
	to, err := c.Dial("tcp", net.JoinHostPort("localhost", strconv.Itoa(slow)))
	must.OK(t, err)
	if _, err := to.Write(big); err != nil {
		t.Fatal(err)
	}
	_ = to.(interface{ CloseWrite() error }).CloseWrite()
	_ = to.Close()
	if n := <-heard; n != len(big) {
		t.Errorf("of %d bytes the program got %d", len(big), n)
	}
	left := make(chan struct{})
	deaf := p.listen("127.0.0.1:0", func(*net.TCPConn) { <-left })
	defer close(left)
	if to, err = c.Dial("tcp", net.JoinHostPort("localhost", strconv.Itoa(deaf))); err != nil {
		t.Fatal(err)
	}
	given := make(chan error)
	go func() {
		_, err := to.Write(make([]byte, 64<<20)) // more than any buffer on the way
		given <- err
	}()
	time.AfterFunc(500*time.Millisecond, func() { _ = to.Close() })
	if err := <-given; err == nil {
		t.Error("a program that takes nothing was given all")
	}
	p.await("the end of both", func() bool {
		p.server.mu.Lock()
		defer p.server.mu.Unlock()
		for _, n := range p.server.connections {
			return len(n.uses) == 0
		}
		return false
	})
}
