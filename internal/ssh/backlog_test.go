package ssh

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/audit"
	"sallyport/internal/test/must"
)

// small has the process keep so many bytes of all, and half of it of one key.
func small(t *testing.T, most int64) (p *sshTest, kept *backlog) {
	kept = newBacklog(most)
	return newSSHTest(t, func(s *worker, _ *Options) { s.backlog = kept }), kept
}

func (u *backlog) now() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all
}

// A client that sends, byte by byte, to what takes nothing is cut off, long before its
// windows are full. Others go on. The client also counts the packets that the kernel keeps
// for the server, up to 10 MiB by default: 36 bytes each.
func TestFlood(t *testing.T) {
	p, kept := small(t, 2<<20)
	bob := newSigner(t)
	p.server.Use(append(p.keys(), Key{Name: "bob", Key: bob.PublicKey(), Sandboxes: []string{"demo"}}))
	other, err := p.dial("demo", bob)
	must.OK(t, err)
	defer other.Close()

	c := p.in()
	s := p.session(c)
	to, err := s.StdinPipe()
	must.OK(t, err)
	must.OK(t, s.Start("wait"))
	sent := make(chan int, 1)
	go func() {
		n := 0
		for ; n < window; n++ {
			if _, err := to.Write([]byte{'x'}); err != nil {
				break
			}
		}
		sent <- n
	}()
	select {
	case n := <-sent:
		if n > window/4 {
			t.Errorf("it was cut off after %d packets", n)
		}
	case <-time.After(time.Minute):
		t.Fatal("it was not cut off")
	}
	p.await("a record of that", func() bool { return p.book.has(audit.KindCompletion, "ssh", "more than is kept") })
	p.await("what was kept to be forgotten", func() bool { return kept.now() == 0 })
	s = p.session(other)
	s.Stdin = bytes.NewReader(make([]byte, 256<<10))
	if out, err := s.Output("cat"); err != nil || len(out) != 256<<10 {
		t.Errorf("another's: %d bytes, %v", len(out), err)
	}
}

// deaf is a connection whose client reads nothing any more once stop is closed.
type deaf struct {
	net.Conn
	stop, end chan struct{}
}

func (d deaf) Read(p []byte) (int, error) {
	select {
	case <-d.stop:
		<-d.end
		return 0, io.EOF
	default:
		return d.Conn.Read(p)
	}
}

// So is one that asks for much and reads no answers, so that nobody takes what it asks
// next.
func TestFloodOfRequests(t *testing.T) {
	p, kept := small(t, 4<<20)
	n, err := net.Dial("tcp", p.at)
	must.OK(t, err)
	must.OK(t, n.(*net.TCPConn).SetReadBuffer(64<<10))
	d := deaf{n, make(chan struct{}), make(chan struct{})}
	defer n.Close()
	defer close(d.end)
	conn, channels, requests, err := ssh.NewClientConn(d, p.at, &ssh.ClientConfig{
		User: "demo", Auth: []ssh.AuthMethod{ssh.PublicKeys(p.alice)}, HostKeyCallback: ssh.FixedHostKey(p.server.o.HostKey.public),
	})
	must.OK(t, err)
	c := ssh.NewClient(conn, channels, requests)
	begin := func(command string) *ssh.Session {
		s := p.session(c)
		out, err := s.StdoutPipe()
		if err == nil {
			err = s.Start(command)
		}
		must.OK(t, err)
		go func() { _, _ = io.Copy(io.Discard, out) }()
		return s
	}
	list := []*ssh.Session{begin("wait"), begin("wait")}
	for range 4 {
		begin("yes") // whose windows are more than the kernel keeps
	}
	close(d.stop)
	p.await("commands that can say no more", func() bool {
		n := p.block.said.Load()
		time.Sleep(300 * time.Millisecond)
		return n > 0 && n == p.block.said.Load()
	})
	go func() {
		for n := 0; ; n++ {
			s := list[n%2]
			go s.SendRequest("x", true, make([]byte, 128<<10)) // which waits for the answer
			if _, err := s.SendRequest("x", false, make([]byte, 128<<10)); err != nil {
				return
			}
		}
	}()
	p.await("a record of that", func() bool { return p.book.has(audit.KindCompletion, "ssh", "more than is kept") })
	p.await("what was kept to be forgotten", func() bool { return kept.now() == 0 })
}

// Bytes that are taken are not counted for ever, whatever else is open by the connection: a
// session that takes nothing of what it was sent, one whose input has ended, one that has just
// begun.
func TestTaken(t *testing.T) {
	p, _ := small(t, 16<<20)
	c := p.in()
	stalled := p.session(c)
	to, err := stalled.StdinPipe()
	must.OK(t, err)
	must.OK(t, stalled.Start("wait"))
	if _, err := to.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := p.session(c).Start("wait"); err != nil { // its input is none
		t.Fatal(err)
	}
	p.session(c)
	s := p.session(c)
	const all = 64 << 20
	s.Stdin = bytes.NewReader(make([]byte, all))
	if out, err := s.Output("cat"); err != nil || len(out) != all {
		t.Errorf("%d bytes of %d, %v", len(out), all, err)
	}
}

// Nor is what takes more on the wire than it has: input byte by byte, as from a keyboard.
func TestTakenByByte(t *testing.T) {
	p, _ := small(t, 1<<20)
	s := p.session(p.in())
	to, err := s.StdinPipe()
	must.OK(t, err)
	from, err := s.StdoutPipe()
	must.OK(t, err)
	must.OK(t, s.Start("cat"))
	some := make([]byte, 1000)
	for range 30 {
		for range some {
			if _, err := to.Write([]byte{'x'}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.ReadFull(from, some); err != nil {
			t.Fatal(err)
		}
	}
}

// endless is a connection by which zeros come.
type endless struct{ net.Conn }

func (endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }
func (endless) Close() error               { return nil }

// A channel that always has more waiting than it has taken does not have the rest of each
// packet counted for ever either.
func TestTakenWithoutPause(t *testing.T) {
	f := &meteredConn{Conn: endless{}, kept: newBacklog(32 << 20)}
	f.count("key").waiting()
	busy := f.enter()
	p := make([]byte, 1<<20)
	for range 2000 {
		if _, err := f.Read(p); err != nil {
			t.Fatal(err)
		}
		busy.took(len(p) * 99 / 100)
	}
	if f.held > 4*window {
		t.Errorf("%d bytes are held", f.held)
	}
	busy.leave()
	f.end()
	if n := f.kept.now(); n != 0 {
		t.Errorf("%d bytes are kept of nobody", n)
	}
}

// late has more come on a channel after its end.
type late struct {
	ssh.Channel
	in, errs io.Reader
}

func (l late) Read(p []byte) (int, error) { return l.in.Read(p) }
func (l late) Stderr() io.ReadWriter      { return struct{ io.ReadWriter }{readOnly{l.errs}} }

type readOnly struct{ io.Reader }

func (readOnly) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// Data after the end of a channel's input is taken by nobody, so that the connection ends.
func TestAfterTheEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		in, errs string
		want     error
	}{
		"nothing": {"", "", nil}, "as input": {"x", "", errBacklog}, "as standard error": {"", "x", errBacklog},
	} {
		f := &meteredConn{Conn: endless{}, kept: newBacklog(1 << 20)}
		f.count("key").waiting()
		ch := f.enter()
		over := late{in: bytes.NewReader([]byte(tt.in)), errs: bytes.NewReader([]byte(tt.errs))}
		ch.ended(over)
		if _, err := f.Read(make([]byte, 10)); err != nil {
			t.Errorf("%s, one stream has ended: %v", name, err)
		}
		ch.ended(over)
		if _, err := f.Read(make([]byte, 10)); err != tt.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
