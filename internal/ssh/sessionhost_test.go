package ssh

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/test/must"
)

// Clients that carry nothing, or are gone without a word, do not stay.
func TestIdle(t *testing.T) {
	p := newSSHTest(t, func(s *worker, o *Options) { s.alive, o.Idle = 200*time.Millisecond, 500*time.Millisecond })
	c := p.in()
	began := time.Now()
	_ = c.Wait()
	if took := time.Since(began); took < 300*time.Millisecond || took > time.Minute {
		t.Errorf("idle, it ended after %v", took)
	}
	p = newSSHTest(t, func(s *worker, _ *Options) { s.alive = 500 * time.Millisecond })
	stays := p.in()
	raw, err := net.Dial("tcp", p.at)
	must.OK(t, err)
	mute := &muted{Conn: raw}
	conn, channels, requests, err := ssh.NewClientConn(mute, p.at, &ssh.ClientConfig{
		User: "demo", Auth: []ssh.AuthMethod{ssh.PublicKeys(p.alice)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	must.OK(t, err)
	go ssh.DiscardRequests(requests)
	go func() {
		for c := range channels {
			_ = c.Reject(ssh.UnknownChannelType, "")
		}
	}()
	mute.on.Store(true)
	p.await("the end of who says nothing", func() bool { return p.server.Status().Connections == 1 })
	_ = conn.Close()
	if out, err := p.session(stays).Output("both"); string(out) != "out" {
		t.Errorf("who answers: %q, %v", out, err)
	}
}

// muted is a connection that can be made to say nothing more.
type muted struct {
	net.Conn
	on atomic.Bool
}

func (m *muted) Write(p []byte) (int, error) {
	if m.on.Load() {
		return len(p), nil
	}
	return m.Conn.Write(p)
}

// Four sources that say nothing have all places of those who have not signed; an
// operator at a fifth one is let in, and the log tells that they are crowded.
func TestStrangersOfFourSources(t *testing.T) {
	crowded := make(chan string, 16)
	p := newSSHTest(t, func(_ *worker, o *Options) { o.Crowded = func(source string) { crowded <- source } })
	var held []net.Conn
	t.Cleanup(func() {
		for _, c := range held {
			_ = c.Close()
		}
	})
	for i := range 4 {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(10+i))}}
		for range maxOfSource {
			c, err := d.Dial("tcp", p.at)
			must.OK(t, err)
			held = append(held, c)
			if _, err := io.ReadFull(c, make([]byte, len("SSH-2.0"))); err != nil { // it has its place
				t.Fatal(err)
			}
		}
	}
	for range 5 { // each of which makes one of them go
		c, err := net.Dial("tcp", p.at)
		must.OK(t, err)
		held = append(held, c)
		if _, err := io.ReadFull(c, make([]byte, len("SSH-2.0"))); err != nil {
			t.Fatalf("a newcomer has to go: %v", err)
		}
	}
	_ = p.in().Close()
	select {
	case <-crowded:
	case <-time.After(time.Minute):
		t.Error("nothing tells of it")
	}
	if n := len(crowded); n > 0 {
		t.Errorf("it is told %d times more", n)
	}
}
