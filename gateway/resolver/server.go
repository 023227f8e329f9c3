// Package resolver is the sandboxes' DNS server.
//
// It forwards nothing: no question of a sandbox, nor anything made from one,
// leaves the host, so DNS is no tunnel. A name that some rule could allow gets a
// synthetic address that stands for it in that sandbox; any other name gets the
// one refusal address, at which the gateway says why.
//
// It guarantees that an answered pair of name and address is durable, that an
// address never stands for two names of one sandbox, and that only sandboxes get
// answers. It does not guarantee that a question by UDP which waits to be read when its sandbox
// ends is not taken for one of the next sandbox with the address.
//
// Package upstream resolves a name really, after the decision to connect.
package resolver

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"sallyport/audit"
	"sallyport/gateway/tcp"
	"sallyport/internal/connlimit"
	"sallyport/policy"
)

// Bounds.
const (
	// Questions of one sandbox in a second, in the long run: two for each connection
	// of most clients. Those about names that have no address yet cost more, and are
	// fewer.
	queryRate   = 2000
	queryBurst  = 4000
	newRate     = 100
	newBurst    = 500
	maxLimiters = 4096 // sandboxes whose rates are remembered

	maxWorkers        = 64   // UDP questions being answered
	maxPacket         = 4096 // bytes of a question
	maxConns          = 256
	maxConnsOfSandbox = 16
	connTimeout       = 10 * time.Second // for each message of a TCP connection
)

// Recorder is the audit log.
type Recorder interface {
	Enqueue(*audit.Event) error
}

// Names gives addresses to names; a [NameTable] is one.
type Names interface {
	// Assign returns the address that stands for a name, which is durable then.
	Assign(sandboxID, name string) (netip.Addr, error)
	// Assigned tells whether Assign has that address at hand.
	Assigned(sandboxID, name string) bool
	// Name is its inverse.
	Name(sandboxID string, addr netip.Addr) (string, bool)
}

// Options of a Server. All but Logger and Metrics are needed.
type Options struct {
	Table Names
	// Identify finds the sandbox of an address, which the datapath vouches for.
	Identify func(netip.Addr) (policy.Sandbox, bool)
	// Decide is the policy; it is asked in policy.PhaseDNS.
	Decide   func(context.Context, policy.Input) policy.Decision
	Recorder Recorder
	Logger   *slog.Logger          // default: slog.Default()
	Metrics  prometheus.Registerer // default: none
}

// Server answers the sandboxes' questions.
type Server struct {
	o        Options
	metrics  *metrics
	refusals *refusals
	conns    *connlimit.Limit // TCP connections by sandbox
	complain rate.Sometimes   // about a table that cannot be written

	mu       sync.Mutex
	limiters *simplelru.LRU[string, limits]
}

// limits are those of one sandbox's questions: all of them, and of them those about
// names without an address.
type limits struct{ all, names *rate.Limiter }

// NewServer returns a server. Call Serve next.
func NewServer(o Options) *Server {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &Server{
		o:        o,
		metrics:  newMetrics(o.Metrics),
		complain: rate.Sometimes{First: 1, Interval: 10 * time.Second},
		conns:    connlimit.New(maxConns, maxConnsOfSandbox, nil),
	}
	s.refusals = newRefusals(s.record)
	// The size is a positive constant, the only thing that can be wrong.
	s.limiters, _ = simplelru.NewLRU[string, limits](maxLimiters, nil)
	return s
}

// Serve answers on both sockets, which it closes, until ctx is done, and then records the
// refused names. It returns an error if a socket fails.
func (s *Server) Serve(ctx context.Context, pc net.PacketConn, l net.Listener) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-ctx.Done()
		return errors.Join(pc.Close(), l.Close())
	})
	g.Go(func() error { return s.servePackets(ctx, pc) })
	g.Go(func() error { return s.serveConns(ctx, l) })
	g.Go(func() error { s.refusals.run(ctx); return nil })
	err := g.Wait()
	s.refusals.flush(time.Now().Add(holdFor)) // all there is
	return err
}

// Denied tells that the denial of a connection to name is recorded, so that the look-up
// before it need not be.
func (s *Server) Denied(sandboxID, name string) { s.refusals.drop(sandboxID, name) }

func (s *Server) servePackets(ctx context.Context, pc net.PacketConn) error {
	var workers errgroup.Group
	defer workers.Wait()
	workers.SetLimit(maxWorkers)
	buf := make([]byte, maxPacket)
	for {
		n, from, err := pc.ReadFrom(buf)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			s.o.Logger.Warn("reading a DNS question", slog.Any("error", err))
			pause(ctx)
			continue
		}
		addr := addressOf(from)
		who, ok := s.o.Identify(addr)
		if !ok {
			s.metrics.count(outcomeUnknown)
			continue
		}
		if !s.limits(who.ID).all.Allow() {
			s.reply(pc, from, s.limited(buf[:n]))
			continue
		}
		packet := append([]byte(nil), buf[:n]...)
		workers.Go(func() error {
			s.reply(pc, from, s.answer(ctx, who, addr, packet))
			return nil
		})
	}
}

// reply sends an answer if there is one. One that cannot be sent is lost, as any
// datagram may be; the client asks again.
func (s *Server) reply(pc net.PacketConn, to net.Addr, answer []byte) {
	if answer != nil {
		_, _ = pc.WriteTo(answer, to)
	}
}

func (s *Server) serveConns(ctx context.Context, l net.Listener) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			s.o.Logger.Warn("accepting a DNS connection", slog.Any("error", err))
			pause(ctx)
			continue
		}
		addr := addressOf(c.RemoteAddr())
		who, ok := s.o.Identify(addr)
		if !ok {
			s.metrics.count(outcomeUnknown)
			c.Close()
			continue
		}
		leave := s.conns.Enter(who.ID, func() { c.Close() })
		conns.Go(func() {
			defer leave()
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			defer c.Close()
			s.serveConn(ctx, c, who.ID, addr)
		})
	}
}

// serveConn answers one message of a sandbox after the other (RFC 7766) until either side is
// done with it. Each is of the sandbox as it is then.
func (s *Server) serveConn(ctx context.Context, c net.Conn, id string, addr netip.Addr) {
	var length [2]byte
	for {
		if err := c.SetDeadline(time.Now().Add(connTimeout)); err != nil {
			return
		}
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(length[:]))
		if n > maxPacket {
			return
		}
		packet := make([]byte, n)
		if _, err := io.ReadFull(c, packet); err != nil {
			return
		}
		who, ok := s.o.Identify(addr)
		if !ok || who.ID != id || tcp.Reset(c) != nil { // the sandbox has ended: the address may be the next one's
			return
		}
		var answer []byte
		if s.limits(id).all.Allow() {
			answer = s.answer(ctx, who, addr, packet)
		} else {
			answer = s.limited(packet)
		}
		if answer == nil {
			return
		}
		framed := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(answer)), uint16(len(answer)))
		if _, err := c.Write(append(framed, answer...)); err != nil {
			return
		}
	}
}

// limits say whether a sandbox may ask now.
func (s *Server) limits(id string) limits {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.limiters.Get(id)
	if !ok {
		l = limits{rate.NewLimiter(queryRate, queryBurst), rate.NewLimiter(newRate, newBurst)}
		s.limiters.Add(id, l)
	}
	return l
}

func addressOf(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// pause keeps a failing socket from spinning.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
}
