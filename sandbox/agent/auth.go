package agent

import (
	"container/list"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"sallyport/sandbox/agent/wire"
)

const (
	// maxPending is how many connections may be unproved at a time; the
	// oldest makes room for a new one.
	maxPending = 8
	// proveTimeout is how long each has.
	proveTimeout = 2 * time.Second
)

// authListener is a listener whose connections are all the host's. It closes a connection
// that does not prove itself, without an answer.
type authListener struct {
	net.Listener
	key ed25519.PublicKey
	// inside says that connections from the sandbox's own addresses are
	// closed unasked: the host has others.
	inside bool

	opened chan net.Conn
	done   chan struct{}
	once   sync.Once

	mu      sync.Mutex
	pending *list.List // of net.Conn, the oldest first
}

func newAuthListener(l net.Listener, key ed25519.PublicKey, inside bool) *authListener {
	d := &authListener{
		Listener: l, key: key, inside: inside,
		opened: make(chan net.Conn), done: make(chan struct{}), pending: list.New(),
	}
	go d.listen()
	return d
}

// Accept returns the next proved connection.
func (d *authListener) Accept() (net.Conn, error) {
	select {
	case c := <-d.opened:
		return c, nil
	case <-d.done:
		return nil, net.ErrClosed
	}
}

// Close ends the listener and the connections that have not proved themselves.
func (d *authListener) Close() error {
	err := d.Listener.Close()
	d.once.Do(func() { close(d.done) })
	d.mu.Lock()
	defer d.mu.Unlock()
	for e := d.pending.Front(); e != nil; e = e.Next() {
		_ = e.Value.(net.Conn).Close()
	}
	return err
}

func (d *authListener) listen() {
	for {
		c, err := d.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			d.once.Do(func() { close(d.done) })
			return
		}
		if err != nil {
			time.Sleep(5 * time.Millisecond) // out of files, or so: it passes
			continue
		}
		if d.inside && own(c) {
			_ = c.Close()
			continue
		}
		d.mu.Lock()
		if d.pending.Len() >= maxPending {
			_ = d.pending.Remove(d.pending.Front()).(net.Conn).Close()
		}
		e := d.pending.PushBack(c)
		d.mu.Unlock()
		go func() {
			err := d.ask(c)
			d.mu.Lock()
			d.pending.Remove(e) // of no effect on one that made room
			d.mu.Unlock()
			if err != nil {
				_ = c.Close()
				return
			}
			select {
			case d.opened <- c:
			case <-d.done:
				_ = c.Close()
			}
		}()
	}
}

var errRefused = errors.New("not the host")

// ask lets a connection prove itself.
func (d *authListener) ask(c net.Conn) error {
	at, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return err
	}
	if err := c.SetDeadline(time.Now().Add(proveTimeout)); err != nil {
		return err
	}
	challenge := make([]byte, wire.ChallengeSize)
	_, _ = rand.Read(challenge) // never fails
	if _, err := c.Write(challenge); err != nil {
		return err
	}
	signature := make([]byte, ed25519.SignatureSize)
	if _, err := io.ReadFull(c, signature); err != nil {
		return err
	}
	if !ed25519.Verify(d.key, wire.Proof(challenge, at), signature) {
		return errRefused
	}
	return c.SetDeadline(time.Time{})
}

// own says whether a connection comes from the host that it goes to.
func own(c net.Conn) bool {
	from, err1 := netip.ParseAddrPort(c.RemoteAddr().String())
	to, err2 := netip.ParseAddrPort(c.LocalAddr().String())
	return err1 != nil || err2 != nil || from.Addr().IsLoopback() || from.Addr() == to.Addr()
}
