package api

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"sallyport/internal/connlimit"
	"sallyport/internal/quota"
)

// Bounds of connections to the API's listeners.
const (
	unauthenticatedAll  = 512 // that have not shown a key
	unauthenticatedEach = 128 // of one source
	callersAll          = 1024
	callersEach         = 512  // of one tenant, of one of the host's own keys, or of one of its users
	rootMost            = 4096 // of root, on the socket
)

// connLimit bounds connections. Those that have not shown a key are bounded by the rule of
// package connlimit, where the oldest goes: connections without a key keep out no caller
// that has one.
type connLimit struct {
	unknown *connlimit.Limit
	callers *quota.Places
}

func newConnLimit(begins func(source string)) *connLimit {
	return &connLimit{unknown: connlimit.New(unauthenticatedAll, unauthenticatedEach, begins), callers: quota.New(callersAll, callersEach)}
}

// limitedConn is a connection that a connLimit counts.
type limitedConn struct {
	net.Conn
	limit *connLimit
	known func() // ends that it counts as unauthenticated

	mu     sync.Mutex // guards what follows
	closed bool
	who    string // empty while it is not known
}

// limitListener accepts connections that a connLimit counts.
type limitListener struct {
	net.Listener
	limit *connLimit
}

func (l limitListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &limitedConn{Conn: c, limit: l.limit}
	g.known = l.limit.unknown.Enter(connlimit.Source(c.RemoteAddr()), func() { _ = c.Close() })
	return g, nil
}

// admit makes a connection a caller's.
func (g *limitedConn) admit(p Principal) error {
	who := p.Owner()
	g.known()
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return net.ErrClosed
	case g.who == who:
		return nil
	}
	g.leave()
	if !g.limit.callers.Enter(who, who) {
		return fmt.Errorf("%w: too many connections are open, of this caller or of all", errBusy)
	}
	g.who = who
	return nil
}

// leave takes a connection out of the callers'. g.mu is held.
func (g *limitedConn) leave() {
	if g.who != "" {
		g.limit.callers.Leave(g.who, g.who)
		g.who = ""
	}
}

func (g *limitedConn) Close() error {
	g.known()
	g.mu.Lock()
	g.closed = true
	g.leave()
	g.mu.Unlock()
	return g.Conn.Close()
}

// socketListener accepts on the control socket, where the kernel says who calls: root
// has places of its own, which no other user takes.
type socketListener struct {
	net.Listener
	root, users *quota.Places
}

func newSocketListener(l net.Listener) socketListener {
	return socketListener{l, quota.New(2*rootMost, rootMost), quota.New(callersAll, callersEach)}
}

func (l socketListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		u, ok := c.(*net.UnixConn)
		if !ok {
			return c, nil
		}
		cred, err := credentials(u)
		if err != nil {
			_ = c.Close()
			continue
		}
		places, who := l.users, strconv.FormatUint(uint64(cred.Uid), 10)
		if cred.Uid == 0 {
			places = l.root
		}
		if !places.Enter(who, who) {
			overfull(c)
			continue
		}
		return &socketConn{UnixConn: u, leave: sync.OnceFunc(func() { places.Leave(who, who) })}, nil
	}
}

// overfull tells a caller why its connection ends.
func overfull(c net.Conn) {
	const text = `{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"this user has too many connections to the control socket: close some"}`
	_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	_, _ = io.WriteString(c, fmt.Sprintf("HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%s",
		http.StatusServiceUnavailable, http.StatusText(http.StatusServiceUnavailable), len(text), text))
	_ = c.Close()
}

// socketConn is a connection to the control socket.
type socketConn struct {
	*net.UnixConn
	leave func()
}

func (c *socketConn) Close() error {
	c.leave()
	return c.UnixConn.Close()
}
