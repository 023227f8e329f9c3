package upstream

import (
	"context"
	"net"
	"net/netip"
)

// reachedKey is the type of ReachedKey.
type reachedKey struct{}

// Reached is told which address a request goes to, before RoundTrip returns; a request that
// is sent again may go to another. It is the value of a request's context under ReachedKey,
// and is not called where only a proxy knows the address.
type Reached func(netip.Addr)

// ReachedKey is the key of a Reached.
var ReachedKey any = reachedKey{}

func reached(ctx context.Context, addr netip.Addr) {
	if f, ok := ctx.Value(ReachedKey).(Reached); ok && addr.IsValid() {
		f(addr)
	}
}

// RemoteOf is the address that a connection leads to, the zero Addr for none.
func RemoteOf(c net.Conn) netip.Addr {
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return a.AddrPort().Addr().Unmap()
}
