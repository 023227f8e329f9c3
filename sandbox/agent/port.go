package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/sandbox/agent/wire"
)

const (
	// maxPorts bounds the connections to ports that there are at a time.
	maxPorts = 64
	// portTimeout is for a program to take a connection, at all of its addresses.
	portTimeout = 5 * time.Second
)

// ports connects the host to programs that listen inside, also those that only the
// sandbox itself can reach.
type ports chan struct{} // has a place for each connection

func newPorts() ports { return make(ports, maxPorts) }

func (p ports) register(mux *http.ServeMux) { mux.HandleFunc("GET /ports/{port}", p.serve) }

var (
	errNoPort = errors.New("that is no port of a program's")
	errPorts  = fmt.Errorf("%d connections to ports are open", maxPorts)
)

// serve turns a connection of the host's into one to a port.
func (p ports) serve(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 || port == wire.Port || r.Header.Get("Upgrade") != wire.PortProtocol {
		refuse(w, http.StatusBadRequest, errNoPort)
		return
	}
	done := p.place(w)
	if done == nil {
		return
	}
	defer done()
	to, status, err := dial(r, r.URL.Query().Get("host"), uint16(port))
	if err != nil {
		refuse(w, status, err)
		return
	}
	defer to.Close()
	upgrade(w, wire.PortProtocol, func(from *net.TCPConn) { join(from, to) })
}

// upgrade switches a connection of the host's to another protocol, which f speaks to its
// end.
func upgrade(w http.ResponseWriter, protocol string, f func(*net.TCPConn)) {
	c, ahead, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err)
		return
	}
	defer c.Close()
	from, ok := c.(*net.TCPConn)
	// The host does not speak before it is spoken to.
	if !ok || ahead.Reader.Buffered() > 0 || c.SetDeadline(time.Time{}) != nil {
		return
	}
	if _, err := io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n"); err != nil {
		return
	}
	f(from)
}

// place has one of the places for connections until done is called, or refuses.
func (p ports) place(w http.ResponseWriter) (done func()) {
	select {
	case p <- struct{}{}:
		return func() { <-p }
	default:
		refuse(w, http.StatusTooManyRequests, errPorts)
		return nil
	}
}

// dial connects to a port of one of our own addresses, and says by a status what
// came of it.
func dial(r *http.Request, host string, port uint16) (*net.TCPConn, int, error) {
	own := ""
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		own = at.IP.String()
	}
	hosts := []string{host}
	switch host {
	case wire.HostOwn:
		hosts = []string{own}
	case wire.HostLocal:
		hosts = []string{wire.HostLoopback, wire.HostLoopback6, own}
	case wire.HostLoopback, wire.HostLoopback6:
	default:
		return nil, http.StatusBadRequest, fmt.Errorf("%q is no address of the sandbox's own", host)
	}
	ctx, cancel := context.WithTimeout(r.Context(), portTimeout)
	defer cancel()
	var errs []error
	for _, h := range hosts {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(h, strconv.Itoa(int(port))))
		if err == nil {
			return c.(*net.TCPConn), http.StatusSwitchingProtocols, nil
		}
		if !nobody(err) {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		errs = append(errs, fmt.Errorf("nothing listens on port %d", port))
	}
	return nil, http.StatusBadGateway, errors.Join(errs...)
}

// nobody tells whether nobody listens, or could: a sandbox need not have IPv6.
func nobody(err error) bool {
	return slices.ContainsFunc([]error{syscall.ECONNREFUSED, syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT, syscall.ENETUNREACH, syscall.EHOSTUNREACH},
		func(e error) bool { return errors.Is(err, e) })
}

// join carries bytes between the host and a program until both directions have
// ended. A connection that breaks off on one side does so on the other.
func join(host, program *net.TCPConn) {
	var answered, gone atomic.Bool
	// A program that takes no more may have said why, and closed: what the host
	// sends still is read on for a while, or the answer is lost (RFC 9112, section 9.6).
	deaf := func() {
		if answered.Load() && gone.Load() {
			_ = host.SetReadDeadline(time.Now().Add(linger))
		}
	}
	var both sync.WaitGroup
	both.Go(func() {
		heard, said := carry(&wanted{program, host}, host)
		if said != nil {
			gone.Store(true)
			deaf()
			_, heard = io.Copy(io.Discard, readOnly{host})
		}
		if heard != nil {
			breakOff(program)
		}
	})
	both.Go(func() {
		heard, said := carry(host, program)
		switch {
		case said != nil:
			breakOff(program)
		case heard != nil:
			breakOff(host)
		default:
			answered.Store(true)
			deaf()
		}
	})
	both.Wait()
}

// carry copies until the end, which it passes on; heard is why nothing more was
// read, said why nothing more was written.
func carry(to half, from *net.TCPConn) (heard, said error) {
	buf := frames.Get().(*[]byte)
	defer frames.Put(buf)
	for {
		n, err := from.Read(*buf)
		if n > 0 {
			if _, err := to.Write((*buf)[:n]); err != nil {
				return nil, err
			}
		}
		if errors.Is(err, io.EOF) {
			_ = to.CloseWrite() // who is gone needs no end
			return nil, nil
		}
		if err != nil {
			return err, nil
		}
	}
}

// half is one direction.
type half interface {
	io.Writer
	CloseWrite() error
}

// wanted writes to a program as long as the host is there: one that takes nothing
// would else keep its place for ever, as nobody reads what the host says meanwhile.
type wanted struct {
	*net.TCPConn
	host *net.TCPConn
}

func (w *wanted) Write(p []byte) (done int, err error) {
	for {
		if err := w.SetWriteDeadline(time.Now().Add(aliveEvery)); err != nil {
			return done, err
		}
		n, err := w.TCPConn.Write(p[done:])
		done += n
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return done, err
		}
		if broken(w.host) {
			return done, syscall.ECONNRESET
		}
	}
}

// broken tells whether the other side has broken off.
func broken(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	is := false
	err = raw.Control(func(fd uintptr) {
		state := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(state, 0)
		is = err == nil && n > 0 && state[0].Revents&unix.POLLERR != 0
	})
	return err != nil || is
}

// breakOff closes a connection so that the other side does not take that for an end.
func breakOff(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
