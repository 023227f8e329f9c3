package gateway_test

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sallyport/gateway"
	"sallyport/gateway/tcp"
	"sallyport/internal/test/must"
	"sallyport/policy"
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

// A connection that has ended before it is taken is not read, though something of it is there
// to read: the sandbox that has the address by now may be another.
func TestEndedBeforeItIsTaken(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	to := netip.AddrPortFrom(l.name("api.example.test"), 80)
	asked := make(chan struct{}, 1)
	l.upstream("api.example.test", false, func(http.ResponseWriter, *http.Request) { asked <- struct{}{} })
	near, err := net.Dial("tcp", l.listener.Addr().String())
	must.OK(t, err)
	far, err := l.listener.Listener.Accept()
	must.OK(t, err)
	_, err = io.WriteString(near, "GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n")
	must.OK(t, err)
	must.OK(t, near.(*net.TCPConn).SetLinger(0))
	must.OK(t, near.Close())
	for tcp.Reset(far) == nil {
		time.Sleep(time.Millisecond)
	}
	must.OK(t, l.listener.adopt(far, sandboxAddr, to))
	e := l.await(1)[0]
	if len(asked) > 0 || e.Unmapped.Sallyport.Decision == string(policy.Allow) {
		t.Errorf("asked %d times, and recorded %+v", len(asked), e)
	}
}

// A connection that ended with its sandbox before it is taken is on record, and not under the name of
// the sandbox that has the address by now, however many connections that has.
func TestEndedWithItsSandbox(t *testing.T) {
	must.Root(t) // who may end another's connection
	for name, limit := range map[string]int{"room for more": 2, "at its limit": 1} {
		t.Run(name, func(t *testing.T) {
			l := newEnv(t, func(o *gateway.Options) { o.ConnectionsPerSandbox = limit })
			l.policy(allow)
			to := netip.AddrPortFrom(l.name("api.example.test"), 80)
			l.raw(to.String()) // of the next sandbox
			must.Soon(t, "it is taken", func() bool { return l.gauge("sallyport_gateway_connections") == 1 })
			near, err := net.Dial("tcp", l.listener.Addr().String())
			must.OK(t, err)
			defer near.Close()
			far, err := l.listener.Listener.Accept()
			must.OK(t, err)
			_, err = io.WriteString(near, halfHead)
			must.OK(t, err)
			must.Soon(t, "it is there", func() bool { return tcp.Heard(far.(*net.TCPConn)) })
			must.OK(t, netlink.SocketDestroy(far.LocalAddr(), far.RemoteAddr()))
			must.OK(t, l.listener.adopt(far, sandboxAddr, to))
			e := l.await(1)[0]
			if x := e.Unmapped.Sallyport; x.Sandbox != "" || e.Rule == nil || e.Rule.Name != "unknown-sandbox" || e.Source.Port != near.LocalAddr().(*net.TCPAddr).Port {
				t.Errorf("recorded %+v %+v, of sandbox %q", e, e.Rule, x.Sandbox)
			}
		})
	}
}
