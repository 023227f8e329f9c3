package ssh

import (
	"io"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// left awaits that the Server has no connection any more.
func (p *sshTest) left() {
	p.t.Helper()
	p.await("the end of a connection whose client has gone", func() bool {
		p.server.mu.Lock()
		defer p.server.mu.Unlock()
		return len(p.server.connections) == 0
	})
}

// A client that goes while nothing comes of its files leaves nothing behind.
func TestLeftReading(t *testing.T) {
	p := newSSHTest(t)
	p.block.mute = true
	c := p.in()
	read := make(chan error, 1)
	go func() { _, err := sftp.NewClient(c); read <- err }()
	select {
	case err := <-read:
		t.Fatal("something came: ", err)
	case <-time.After(300 * time.Millisecond):
	}
	_ = c.Close()
	<-read
	p.left()
}

// A client that goes, or closes the channel, has not ended what a command reads: half of
// it is not to pass for all.
func TestLeftWriting(t *testing.T) {
	for name, leave := range map[string]func(c *ssh.Client, s ssh.Channel){
		"its connection": func(c *ssh.Client, _ ssh.Channel) { _ = c.Close() },
		// x/crypto/ssh does not tell this from the end of the input, and the channel's
		// end is seen only after all that was asked by it before.
		"its channel": func(c *ssh.Client, s ssh.Channel) {
			for range 10 {
				_, _ = s.SendRequest("window-change", false, ssh.Marshal(struct{ Cols, Rows, Width, Height uint32 }{80, 24, 0, 0}))
			}
			_ = s.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newSSHTest(t)
			for range 20 {
				c := p.in()
				s, requests, err := c.OpenChannel("session", nil)
				must.OK(t, err)
				go ssh.DiscardRequests(requests)
				if ok, err := s.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{"cat"})); err != nil || !ok {
					t.Fatal(ok, err)
				}
				if _, err := io.WriteString(s, "half"); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(s, make([]byte, 4)); err != nil {
					t.Fatal(err)
				}
				leave(c, s)
				p.await("the end of the command", func() bool { return p.block.over("cat") })
				_ = c.Close()
				p.left()
			}
			if p.book.has(audit.KindCompletion, "shell", "exit") || !p.book.has(audit.KindCompletion, "shell", "the client went away") {
				t.Error("a command ended as if all had come")
			}
		})
	}
}

// The end of a command's client comes to the Server twice, by the connection and by the
// command's own streams. Whichever is first, the command's input has not ended and the
// record says the same.
func TestLeftInEitherOrder(t *testing.T) {
	p := newSSHTest(t)
	for name, leave := range map[string]func(connection uint64, streams io.Closer){
		"the connection first": func(connection uint64, streams io.Closer) {
			p.server.leave(p.process, leaveCall{Connection: connection})
			_ = streams.Close()
		},
		"the streams first": func(connection uint64, streams io.Closer) {
			_ = streams.Close()
			p.await("the end of the command", func() bool { return p.block.over("cat") })
			p.server.leave(p.process, leaveCall{Connection: connection})
		},
	} {
		t.Run(name, func(t *testing.T) {
			p.in()
			var id uint64
			p.await("the connection", func() bool {
				p.server.mu.Lock()
				defer p.server.mu.Unlock()
				for id = range p.server.connections {
				}
				return id != 0
			})
			o, streams, err := p.server.open(t.Context(), p.process, openCall{Connection: id, Use: policy.ProtocolShell, Command: "cat"})
			must.OK(t, err)
			u := p.server.used(p.process, id, o)
			must.OK(t, wire.NewWriter(streams).Write(wire.Stdin, []byte("half")))
			leave(id, streams)
			<-u.done
			p.left()
			if got := p.book.last(audit.KindCompletion, "shell"); got != "the client went away" {
				t.Errorf("it is on record as %q", got)
			}
		})
	}
}

// A client that goes on asking of a session that is over keeps nothing from ending.
func TestLeftAsking(t *testing.T) {
	p := newSSHTest(t)
	c := p.in()
	ch, requests, err := c.OpenChannel("session", nil)
	must.OK(t, err)
	go ssh.DiscardRequests(requests)
	for range 2 * maxRequests {
		if _, err := ch.SendRequest("x", false, nil); err != nil {
			break
		}
	}
	_ = c.Close()
	p.left()
}

// One key, whose client has gone astray, leaves places to the others.
func TestPlacesOfKeys(t *testing.T) {
	p := newSSHTest(t)
	bob := newSigner(t)
	p.server.Use(append(p.keys(), Key{Name: "bob", Key: bob.PublicKey(), Sandboxes: []string{"demo"}}))
	for range maxOfKey {
		p.in()
	}
	if c, err := p.dial("demo", p.alice); err == nil {
		_ = c.Close()
		t.Error("one key has more than its places")
	}
	c, err := p.dial("demo", bob)
	if err != nil {
		t.Fatalf("another key: %v", err)
	}
	_ = c.Close()
}

// Calls that one key's sandboxes do not answer keep nobody else's from the daemon, by a
// process too that lets a key have more open than it should.
func TestCallsOfKeys(t *testing.T) {
	waits := make(chan struct{}, 2*maxCalls)
	p := newSSHTest(t, func(s *worker, _ *Options) { s.channels = newChannelLimit(maxOfKey*maxUses, maxOfKey*maxUses) })
	p.block.stuck = waits
	bob, mallory := newSigner(t), newSigner(t)
	p.server.Use([]Key{
		{Name: "bob", Key: bob.PublicKey(), Sandboxes: []string{"demo"}},
		{Name: "mallory", Key: mallory.PublicKey(), Sandboxes: []string{"*"}, Allow: []policy.Protocol{policy.ProtocolSFTP}},
	})
	var asked sync.WaitGroup
	defer asked.Wait()
	for i := range maxOfKey {
		name := "s" + strconv.Itoa(i/(maxOfSandbox/maxUses))
		p.block.mu.Lock()
		p.block.all[name] = sandbox.Info{Name: name, ID: "id-" + name}
		p.block.mu.Unlock()
		c, err := p.dial(name, mallory)
		must.OK(t, err)
		defer c.Close()
		for range maxUses {
			asked.Go(func() {
				if s, err := sftp.NewClient(c); err == nil {
					_ = s.Close()
				}
			})
		}
	}
	p.await("calls that wait", func() bool { return len(waits) >= callsOfKey })
	time.Sleep(100 * time.Millisecond)
	let := make(chan error, 1)
	go func() {
		c, err := p.dial("demo", bob)
		if err == nil {
			err = c.Close()
		}
		let <- err
	}()
	select {
	case err := <-let:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("another key waits for the calls of this one")
	}
}
