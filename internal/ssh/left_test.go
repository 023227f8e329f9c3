package ssh

import (
	"context"
	"io"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// mute has files whose contents never come, as a root inside can have it.
type mute struct{ drawer }

func (m mute) Read(ctx context.Context, _ string) (sandbox.File, io.ReadCloser, error) {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { _ = w.CloseWithError(context.Cause(ctx)) })
	return sandbox.File{Type: wire.Regular, Size: 1 << 20}, r, nil
}

// left awaits that the Door has no connection any more.
func (p *porch) left() {
	p.t.Helper()
	p.await("the end of a connection whose client has gone", func() bool {
		p.door.mu.Lock()
		defer p.door.mu.Unlock()
		return len(p.door.connections) == 0
	})
}

// A client that goes while a file's contents do not come leaves nothing behind.
func TestLeftReading(t *testing.T) {
	p := newPorch(t, func(_ *server, o *Options) {
		o.Files = func(string) Files { return mute{drawer{dir: t.TempDir()}} }
	})
	c := p.in()
	s := p.sftp(c)
	f, err := s.Open("/any")
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() { _, err := f.ReadAt(make([]byte, 10), 0); read <- err }()
	select {
	case err := <-read:
		t.Fatal("it was read: ", err)
	case <-time.After(300 * time.Millisecond):
	}
	_ = c.Close()
	<-read
	p.left()
}

// A client that goes on asking of a session that is over keeps nothing from ending.
func TestLeftAsking(t *testing.T) {
	p := newPorch(t)
	c := p.in()
	ch, requests, err := c.OpenChannel("session", nil)
	if err != nil {
		t.Fatal(err)
	}
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
	p := newPorch(t)
	bob := newSigner(t)
	p.door.Use(append(p.keys(), Key{Name: "bob", Key: bob.PublicKey(), Sandboxes: []string{"demo"}}))
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
