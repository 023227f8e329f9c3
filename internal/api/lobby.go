package api

import (
	"container/list"
	"fmt"
	"net"
	"net/netip"
	"sync"
)

// Bounds of connections to a listener that others reach.
const (
	strangersAll  = 512 // of whom nothing is known yet
	strangersEach = 128 // of one source
	callersAll    = 1024
	callersEach   = 512 // of one tenant, or of one of the host's own keys
)

// lobby counts connections. Who has not shown a key yet is there for a moment, and
// where there are too many the one that has been for the longest goes: whoever
// holds connections open without a key keeps nobody out who has one.
type lobby struct {
	mu        sync.Mutex
	strangers *list.List // of *guest, the oldest first
	from      map[netip.Prefix]int
	callers   int
	by        map[string]int
}

func newLobby() *lobby {
	return &lobby{strangers: list.New(), from: map[netip.Prefix]int{}, by: map[string]int{}}
}

// guest is a connection in a lobby.
type guest struct {
	net.Conn
	lobby  *lobby
	source netip.Prefix

	// Guarded by lobby.mu.
	place *list.Element // nil of one that is known, or gone
	who   string        // empty while it is not known
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
	g := &guest{Conn: c, lobby: l.lobby, source: source(c.RemoteAddr())}
	l.lobby.enter(g)
	return g, nil
}

func (l *lobby) enter(g *guest) {
	l.mu.Lock()
	var gone *guest
	if l.from[g.source] >= strangersEach || l.strangers.Len() >= strangersAll {
		for e := l.strangers.Front(); e != nil && gone == nil; e = e.Next() {
			if o := e.Value.(*guest); o.source == g.source || l.from[g.source] < strangersEach {
				gone = o
				l.leave(o)
			}
		}
	}
	g.place = l.strangers.PushBack(g)
	l.from[g.source]++
	l.mu.Unlock()
	if gone != nil {
		_ = gone.Conn.Close()
	}
}

// leave takes a connection out of the counts. The caller holds mu.
func (l *lobby) leave(g *guest) {
	if g.place != nil {
		l.strangers.Remove(g.place)
		g.place = nil
		if l.from[g.source]--; l.from[g.source] == 0 {
			delete(l.from, g.source)
		}
	}
	if g.who != "" {
		l.callers--
		if l.by[g.who]--; l.by[g.who] == 0 {
			delete(l.by, g.who)
		}
		g.who = ""
	}
}

// admit makes a connection a caller's.
func (g *guest) admit(p Principal) error {
	who := p.ID
	if p.Tenant != "" {
		who = "tenant:" + p.Tenant
	}
	l := g.lobby
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case g.who == who:
		return nil
	case g.place == nil && g.who == "":
		return net.ErrClosed
	case l.by[who] >= callersEach, l.callers >= callersAll && g.who == "":
		return fmt.Errorf("%w: %d connections are open, of this caller %d", errBusy, l.callers, l.by[who])
	}
	l.leave(g)
	g.who = who
	l.callers++
	l.by[who]++
	return nil
}

func (g *guest) Close() error {
	g.lobby.mu.Lock()
	g.lobby.leave(g)
	g.lobby.mu.Unlock()
	return g.Conn.Close()
}
