package gateway

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"time"

	"sallyport/gateway/tcp"
)

// ServeTransparent takes the connections that the datapath steers to ln until
// ctx is done or Shutdown. A connection's LocalAddr is what the sandbox
// dialled, its RemoteAddr the sandbox, which the datapath vouches for. It
// returns nil at a regular end.
func (g *Gateway) ServeTransparent(ctx context.Context, ln net.Listener) error {
	if g.identities == nil {
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
			g.logger.Warn("accepting a connection", "error", err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(wait):
			}
			wait = min(2*wait, longest)
			continue
		}
		tcp.SetStallTimeout(c, g.stall)
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

// transparent finds out who dialled what.
func (g *Gateway) transparent(c net.Conn) {
	f := newFlow(addrPort(c.RemoteAddr()))
	local := addrPort(c.LocalAddr())
	f.dialled, f.port = local.Addr(), local.Port()
	identity, known := g.identities.ByAddress(f.source.Addr())
	if !known {
		f.host = text(f.dialled)
		g.drop(c, f, "unknown-sandbox", "no sandbox has the address that this connection comes from")
		return
	}
	f.identity = identity
	f.valid = func() bool { // one that sleeps has none, and keeps its connections
		now, known := g.identities.ByAddress(f.source.Addr())
		return !known || now.ID == identity.ID && maps.Equal(now.Tags, identity.Tags)
	}
	f.refused = f.dialled == g.refusal
	if name, ok := g.names.Name(identity.ID, f.dialled); ok {
		f.host = name
	} else if !f.refused {
		f.host = f.dialled.String()
	}
	c = g.suspended.Hold(c, f.source.Addr())
	o, err := g.enter(c, f)
	if err != nil {
		g.drop(c, f, "connections", err.Error())
		return
	}
	g.follow(o)
}

// drop records and closes a connection that is not even looked at.
func (g *Gateway) drop(c net.Conn, f *flow, rule, reason string) {
	g.unfinished(f, rule, reason)
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
