package gateway

import (
	"io"
	"net"
	"testing"
)

// parting is a connection whose client answers our goodbye before it is closed,
// as one of TLS can.
type parting struct {
	net.Conn
	read chan struct{}
	bye  chan struct{}
}

func (p parting) Read([]byte) (int, error) { <-p.bye; return 0, io.EOF }

func (p parting) Close() error { close(p.bye); <-p.read; return nil }

// A peer that answers our goodbye has not left by itself, and stays accountable for a
// connection that was ended for what it said.
func TestAnsweredGoodbyeIsNotLeaving(t *testing.T) {
	t.Parallel()
	p := parting{read: make(chan struct{}), bye: make(chan struct{})}
	l := watchConn(p)
	go func() {
		_, _ = l.Read(nil)
		close(p.read)
	}()
	_ = l.Close()
	if l.gone() {
		t.Error("a client that answered our goodbye is taken for one that left")
	}

	left := parting{bye: make(chan struct{})}
	close(left.bye)
	l = watchConn(left)
	_, _ = l.Read(nil)
	if !l.gone() {
		t.Error("a client that left is not taken for one")
	}
}
