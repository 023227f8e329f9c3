package upstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// DialTLS opens a connection to the route's destination, and TLS on it once ask has asked
// the upstream for that in the way of its protocol; nil: TLS begins at once. The certificate
// is verified for the route's host. With a valid at, only that address is connected to, by
// way of the route's proxy if there is one: a destination can have several. The caller closes
// the connection. Its errors are *Error.
func (p *Pool) DialTLS(ctx context.Context, r Route, at netip.Addr, ask func(net.Conn) error) (*tls.Conn, error) {
	r.Host, r.TLS = normal(r.Host), true
	t, err := p.sandbox(r)
	if err != nil {
		return nil, err
	}
	d, err := p.destination(t, r)
	if err != nil {
		return nil, err
	}
	roots, err := r.trusted(p)
	if err != nil {
		return nil, err
	}
	if at.IsValid() && d.hop == nil {
		d.at = netip.AddrPortFrom(at, r.Port)
	}
	c, err := d.secure(ctx, clientTLS(r.Host, roots), ask)
	if err != nil {
		return nil, d.fail(err)
	}
	return c, nil
}

// secure opens a connection, and TLS on it.
func (d *destination) secure(ctx context.Context, config *tls.Config, ask func(net.Conn) error) (*tls.Conn, error) {
	raw, err := d.dial(ctx)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, d.pool.o.HandshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(limited, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if ask != nil {
		err = ask(raw)
	}
	secure := tls.Client(raw, config)
	if err == nil {
		err = secure.HandshakeContext(limited)
	}
	if err == nil && !stop() {
		err = limited.Err()
	}
	if err != nil {
		_ = raw.Close()
		if ended := limited.Err(); ended != nil {
			err = fmt.Errorf("%w: %w", ended, err)
		}
		return nil, err
	}
	return secure, nil
}
