package gateway

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"time"

	"sallyport/gateway/event"
	"sallyport/gateway/tcp"
)

// ServeTransparent takes the connections that the datapath steers to ln until
// ctx is done or Shutdown. A connection's LocalAddr is what the sandbox
// dialled, its RemoteAddr the sandbox, which the datapath vouches for. It
// returns nil at a regular end.
func (g *Gateway) ServeTransparent(ctx context.Context, ln net.Listener) error {
	if g.Identities == nil {
		_ = ln.Close()
		return errors.New("gateway: transparent connections need identities")
	}
	release, ok := g.listen(ctx, ln)
	if !ok {
		return nil
	}
	defer release()
	return g.accept(ctx, ln, g.transparent)
}

// accept hands each connection to a goroutine of its own. Errors that pass,
// such as too many open files, are waited out.
func (g *Gateway) accept(ctx context.Context, ln net.Listener, serve func(net.Conn)) error {
	const shortest, longest = 5 * time.Millisecond, time.Second
	wait := shortest
	for {
		c, err := ln.Accept()
		switch {
		case err == nil:
			wait = shortest
		case errors.Is(err, net.ErrClosed):
			return nil
		default:
			g.Logger.Warn("accepting a connection", "error", err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(wait):
			}
			wait = min(2*wait, longest)
			continue
		}
		tcp.SetStallTimeout(c, g.StallTimeout)
		g.mu.Lock()
		if g.closing {
			g.mu.Unlock()
			_ = c.Close()
			return nil
		}
		g.work.Go(func() { serve(c) })
		g.mu.Unlock()
	}
}

// transparent carries a connection that the datapath has steered here.
func (g *Gateway) transparent(conn net.Conn) {
	if c := g.steered(conn); c != nil {
		c.account = g.keepAccount(c)
		if tcp.Reset(conn) == nil {
			g.follow(c)
		} else { // when its sandbox was looked up, it may have been the next with the address
			g.metrics.Aborted.Inc()
			_ = c.Close()
		}
		c.account.end()
	}
}

// steered finds out which sandbox dialled which destination. It returns nil where it has
// dropped the connection. The stack that it takes is not kept while a connection idles.
//
//go:noinline
func (g *Gateway) steered(conn net.Conn) *connection {
	p := unknownPeer(addrPort(conn.RemoteAddr()))
	local := addrPort(conn.LocalAddr())
	t := target{dialled: local.Addr(), port: local.Port()}
	identity, known := g.Identities.ByAddress(p.source.Addr())
	if !known || tcp.Aborted(conn) { // its sandbox has ended: the one that was looked up may be the next with the address
		t.host = event.Text(t.dialled)
		g.drop(conn, p, t, "unknown-sandbox", "no sandbox has the address that this connection comes from, or the one that had it has ended")
		return nil
	}
	p = p.is(identity)
	p.secrets = g.secrets.Of(identity.ID)
	p.valid = func() bool { // a sandbox that sleeps has no address, and keeps its connections
		now, known := g.Identities.ByAddress(p.source.Addr())
		return !known || now.ID == identity.ID && maps.Equal(now.Tags, identity.Tags)
	}
	t.refused = t.dialled == g.Refusal
	if name, ok := g.Names.Name(identity.ID, t.dialled); ok {
		t.host = name
	} else if !t.refused {
		t.host = t.dialled.String()
	}
	conn = g.suspended.Hold(conn, p.source.Addr())
	c, err := g.enter(conn, p, t)
	if err != nil {
		g.drop(conn, p, t, "connections", err.Error())
		return nil
	}
	return c
}

// drop records and closes a connection that is not even looked at.
func (g *Gateway) drop(c net.Conn, p *peer, t target, rule, reason string) {
	g.unfinished(p, t, rule, reason)
	_ = c.Close()
}

func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		p := t.AddrPort()
		return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
	}
	return netip.AddrPort{}
}

// Sleep holds the connections of the sandbox at a, which still runs: see
// [suspend.Set.Freeze].
func (g *Gateway) Sleep(ctx context.Context, a netip.Addr) { g.suspended.Freeze(ctx, a) }

// Wake lets go of the connections that Sleep holds: see [suspend.Set.Thaw].
func (g *Gateway) Wake(a netip.Addr) { g.suspended.Thaw(a) }

// End resets the connections of a sandbox that will not wake.
func (g *Gateway) End(a netip.Addr) { g.suspended.Reset(a) }
