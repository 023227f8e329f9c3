package gateway_test

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"sallyport/internal/test/must"
)

// steered is a listener like the datapath's: its connections report the
// sandbox's address and the one it dialled, over loopback TCP.
type steered struct {
	net.Listener
	mu    sync.Mutex
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	count int // of connections
}

func newSteered(t *testing.T) *steered {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	return &steered{Listener: ln, conns: make(chan net.Conn), done: make(chan struct{})}
}

func (s *steered) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

func (s *steered) Close() error {
	s.once.Do(func() { close(s.done) })
	return s.Listener.Close()
}

func (s *steered) dial(from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	near, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		return nil, err
	}
	far, err := s.Listener.Accept()
	if err != nil {
		near.Close()
		return nil, err
	}
	if err := s.adopt(far, from, to); err != nil {
		near.Close()
		return nil, err
	}
	return near, nil
}

// adopt takes over a connection as one of a sandbox's.
func (s *steered) adopt(c net.Conn, from netip.Addr, to netip.AddrPort) error {
	source := netip.AddrPortFrom(from, addrPort(c.RemoteAddr()).Port())
	select {
	case s.conns <- &addressed{c.(*net.TCPConn), net.TCPAddrFromAddrPort(to), net.TCPAddrFromAddrPort(source)}:
		return nil
	case <-s.done:
		c.Close()
		return net.ErrClosed
	}
}

type addressed struct {
	*net.TCPConn
	local, remote net.Addr
}

func (c *addressed) LocalAddr() net.Addr  { return c.local }
func (c *addressed) RemoteAddr() net.Addr { return c.remote }
