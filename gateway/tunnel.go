package gateway

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"

	"sallyport/audit"
	"sallyport/gateway/sniff"
	"sallyport/gateway/tcp"
	"sallyport/policy"
)

// tunnelling is a connection that is carried unread.
type tunnelling struct {
	*connection
	place    entry
	decision policy.Decision

	mu    sync.Mutex
	input flow     // what it is by what has been seen of it
	far   net.Conn // nil before it is dialled
}

// judge is a carrier's.
func (t *tunnelling) judge(ctx context.Context) *revokedError {
	t.mu.Lock()
	f := t.input
	t.mu.Unlock()
	if f.valid != nil && !f.valid() {
		return &revokedError{decision: floor(policy.Decision{Revision: t.gateway.revision()}, "client", errInvalid.Error())}
	}
	return compare(t.gateway.connect(ctx, &f), t.decision)
}

// stop is a carrier's: TCP has no last words.
func (t *tunnelling) stop(*revokedError) {
	t.line.cancel()
	t.cut()
}

func (t *tunnelling) cut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.far != nil {
		_ = t.far.Close()
		_ = t.Conn.Close()
	}
}

// reach takes the far end, unless the tunnel has been ended meanwhile.
func (t *tunnelling) reach(far net.Conn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if why := t.place.revoked.Load(); why != nil {
		_ = far.Close()
		return why
	}
	t.far = far
	return nil
}

// tunnel carries a connection unread. Its decision is on disk before the name
// is resolved.
func (g *Gateway) tunnel(ctx context.Context, t *tunnelling) {
	defer g.underway.leave(&t.place)
	o, f, d := t.connection, t.flow, t.decision
	d = g.readable(d)
	var m *limitMeter
	if d.Action == policy.Tunnel {
		m, d = g.take(f.identity.Sandbox, d, -1)
	}
	if d.Action != policy.Tunnel {
		g.deny(o, d)
		return
	}
	defer m.end()
	m.unreadable()
	x := new(audit.Exchange)
	e := f.event(x, audit.ClassNetwork, audit.NetworkOpen, policy.PhaseConnect, d)
	e.Connection = overTCP()
	if err := g.recorder.Append(ctx, e); err != nil {
		if gone := ctx.Err(); gone != nil && errors.Is(err, gone) {
			if !errors.Is(err, audit.ErrWithdrawn) {
				g.enqueue(completion(x, audit.NetworkFail, t.outcome(errClosed))) // it may be in the log: say how it ended
			}
			_ = o.Close()
			return
		}
		g.metrics.auditFailures.Inc()
		g.logger.Error("refusing a connection that cannot be recorded", "sandbox", f.identity.Name, "error", err)
		g.tell(o, failed(errAudit, e.ID()))
		return
	}
	g.metrics.decision(policy.PhaseConnect, d)

	far, err := g.upstreams.Dial(ctx, f.route(d, "", false))
	if err == nil {
		err = t.reach(far)
	}
	if err != nil {
		err = t.outcome(err)
		c := completion(x, audit.NetworkFail, err)
		if status(err) == http.StatusForbidden {
			c.Action, c.Disposition = audit.ActionDenied, audit.DispositionBlocked
		}
		g.enqueue(c)
		g.tell(o, failed(err, e.ID()))
		return
	}
	out, in, err := splice(o, far, func() error { return g.late(ctx, t) }, m)
	if over := m.err(); over != nil {
		err = over
	}
	err = t.outcome(err)
	c := completion(x, audit.NetworkClose, err)
	g.blocked(c, err)
	x.Traffic = audit.Traffic{BytesIn: in, BytesOut: out}
	c.Traffic = &x.Traffic
	c.Unmapped.Sallyport.Tokens = g.unreported(m, out, in)
	g.enqueue(c)
}

// late looks at what a client that was silent opens with after all: TLS must be
// what a rule lets pass unread, under the name that it would have needed at
// once, or waiting would be a way round being read.
func (g *Gateway) late(ctx context.Context, t *tunnelling) error {
	o := t.connection
	if !o.silent {
		return nil
	}
	for len(o.Seen) == 0 || len(o.Seen) == 1 && o.Seen[0] == 0x16 {
		if err := o.More(); err != nil {
			return nil // the copy meets it again
		}
	}
	if protocol, _ := sniff.Classify(o.Seen); protocol != policy.ProtocolTLS {
		return nil
	}
	protocol, sni, err := o.ReadClientHello()
	switch {
	case errors.Is(err, sniff.ErrTooLong), errors.Is(err, sniff.ErrClientHello):
		return errLate
	case err != nil || protocol != policy.ProtocolTLS:
		return nil
	}
	f := *o.flow
	f.protocol = protocol
	misuse := f.agree(sni)
	t.mu.Lock()
	t.input = f // before it is decided on: who looks from now on sees this
	t.mu.Unlock()
	if misuse != "" || g.connect(ctx, &f).Action != policy.Tunnel {
		return errLate
	}
	return nil
}

// outcome is what ended a tunnel.
func (t *tunnelling) outcome(err error) error {
	if why := t.place.revoked.Load(); why != nil {
		return why
	}
	return err
}

// splice copies both ways until both directions have ended or either failed,
// and closes both ends. What check refuses does not go out. Between two TCP
// connections the kernel copies, unless bytes are limited.
func splice(near *connection, far net.Conn, check func() error, m *limitMeter) (out, in int64, err error) {
	defer near.Close()
	defer far.Close()
	// How the first direction ended is how the tunnel did: after a regular end
	// peers often reset what is left of the other.
	ends := make(chan error, 2)
	var wg sync.WaitGroup
	wg.Go(func() {
		var n int
		var rest int64
		err := check()
		if err == nil {
			err = m.spend(len(near.Seen))
		}
		if err == nil {
			n, err = far.Write(near.Seen)
			near.Seen = nil
		}
		if err == nil {
			rest, err = io.Copy(far, m.through(near.Conn.Conn))
		}
		out = int64(n) + rest
		ends <- cmp.Or(err, tcp.Reset(near.Conn.Conn))
		finish(far, near, err)
	})
	wg.Go(func() {
		var err error
		in, err = io.Copy(near.Conn.Conn, m.through(far))
		ends <- cmp.Or(err, tcp.Reset(far))
		finish(near, far, err)
	})
	wg.Wait()
	return out, in, <-ends
}

// finish passes the end of one direction on. After an error there is nothing
// to wait for in the other either.
func finish(dst, src net.Conn, err error) {
	if half, ok := dst.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	_ = dst.Close()
	_ = src.Close()
}
