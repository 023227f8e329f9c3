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
	strangersAll  = 512 // of whom nothing is known yet
	strangersEach = 128 // of one source
	callersAll    = 1024
	callersEach   = 512  // of one tenant, of one of the host's own keys, or of one of its users
	rootMost      = 4096 // of root, on the socket
)

// lobby counts connections. Who has not shown a key yet is there for a moment, by the
// rule of package connlimit: whoever holds connections open without a key keeps nobody
// out who has one.
type lobby struct {
	strangers *connlimit.Limit
	callers   *quota.Places
}

func newLobby(begins func(source string)) *lobby {
	return &lobby{strangers: connlimit.New(strangersAll, strangersEach, begins), callers: quota.New(callersAll, callersEach)}
}

// guest is a connection in a lobby.
type guest struct {
	net.Conn
	lobby *lobby
	known func() // gives a stranger's place back

	mu     sync.Mutex // guards what follows
	closed bool
	who    string // empty while it is not known
}

// lobbyListener accepts into a lobby.
type lobbyListener struct {
	net.Listener
	lobby *lobby
}

func (l lobbyListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &guest{Conn: c, lobby: l.lobby}
	g.known = l.lobby.strangers.Enter(connlimit.Source(c.RemoteAddr()), func() { _ = c.Close() })
	return g, nil
}

// admit makes a connection a caller's.
func (g *guest) admit(p Principal) error {
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
	if !g.lobby.callers.Enter(who, who) {
		return fmt.Errorf("%w: too many connections are open, of this caller or of all", errBusy)
	}
	g.who = who
	return nil
}

// leave takes a connection out of the callers'. g.mu is held.
func (g *guest) leave() {
	if g.who != "" {
		g.lobby.callers.Leave(g.who, g.who)
		g.who = ""
	}
}

func (g *guest) Close() error {
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
