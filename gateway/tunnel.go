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
	"sallyport/audit/auditlog"
	"sallyport/gateway/answer"
	"sallyport/gateway/event"
	"sallyport/gateway/limits"
	"sallyport/gateway/live"
	"sallyport/gateway/sniff"
	"sallyport/gateway/tcp"
	"sallyport/gateway/upstream"
	"sallyport/policy"
)

// tunnel is a connection that is carried unread.
type tunnel struct {
	*connection
	handle   live.Handle
	decision policy.Decision

	mu   sync.Mutex
	seen target   // by what has been seen of it
	far  net.Conn // nil before it is dialled
}

// Recheck implements live.Revocable.
func (t *tunnel) Recheck(ctx context.Context) *live.Revoked {
	t.mu.Lock()
	to := t.seen
	t.mu.Unlock()
	if t.valid != nil && !t.valid() {
		return &live.Revoked{Decision: floor(policy.Decision{Revision: t.gateway.Revision()}, "client", errInvalid.Error())}
	}
	return live.Compare(t.gateway.connect(ctx, t.peer, to), t.decision)
}

// Stop implements live.Revocable: TCP has no last words.
func (t *tunnel) Stop(*live.Revoked) {
	t.lifetime.cancel()
	t.Cut()
}

// Cut implements live.Revocable.
func (t *tunnel) Cut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.far != nil {
		_ = t.far.Close()
		_ = t.Conn.Close()
	}
}

// reach takes the far end, unless the tunnel has been ended meanwhile.
func (t *tunnel) reach(far net.Conn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if why := t.handle.Revoked(); why != nil {
		_ = far.Close()
		return why
	}
	t.far = far
	return nil
}

// tunnel carries a connection unread. Its decision is on disk before the name is
// resolved.
func (g *Gateway) tunnel(ctx context.Context, t *tunnel) {
	defer g.live.Leave(&t.handle)
	c := t.connection
	d := g.unpricedTunnel(t.decision)
	var m *limits.Meter
	if d.Action == policy.Tunnel {
		m, d = g.takeLimits(c.identity.Sandbox, d, -1)
	}
	if d.Action != policy.Tunnel {
		g.deny(c, d)
		return
	}
	defer m.End()
	m.Unreadable()
	x := new(audit.Exchange)
	e := decision(x, c.peer, c.target, audit.ClassNetwork, audit.NetworkOpen, policy.PhaseConnect, d)
	e.Connection = event.TCP(event.Outbound)
	if err := g.Recorder.Append(ctx, e); err != nil {
		if gone := ctx.Err(); gone != nil && errors.Is(err, gone) {
			if !errors.Is(err, auditlog.ErrWithdrawn) {
				c.recorded.Store(true)
				g.enqueue(completion(x, audit.NetworkFail, t.outcome(errClosed))) // it may be in the log: say how it ended
			}
			_ = c.Close()
			return
		}
		g.metrics.Unrecorded()
		g.Logger.Error("refusing a connection that cannot be recorded", "sandbox", c.identity.Name, "error", err)
		g.tell(c, answer.Unrecorded(e.ID()))
		return
	}
	c.recorded.Store(true)
	g.metrics.Decided(policy.PhaseConnect, d)

	far, err := g.Upstreams.Dial(ctx, c.route(c.peer, d, "", false))
	if err == nil {
		err = t.reach(far)
	}
	if err != nil {
		err = t.outcome(err)
		done := completion(x, audit.NetworkFail, err)
		if status(err) == http.StatusForbidden {
			done.Action, done.Disposition = audit.ActionDenied, audit.DispositionBlocked
		}
		g.enqueue(done)
		g.tell(c, failed(err, e.ID()))
		return
	}
	out, in, err := splice(c, far, func() error { return g.checkLateTLS(ctx, t) }, m)
	if over := m.Err(); over != nil {
		err = over
	}
	err = t.outcome(err)
	done := completion(x, audit.NetworkClose, err)
	g.blocked(done, err)
	x.Traffic = audit.Traffic{BytesIn: in, BytesOut: out}
	done.Traffic = &x.Traffic
	if done.Proxy == nil {
		event.Reached(x, done, upstream.RemoteOf(far))
	}
	done.SetTokens(g.charged(m.Unread(out, in)))
	g.enqueue(done)
}

// checkLateTLS looks at the first bytes of a client that was silent. TLS must be what a
// rule lets pass unread, under the name that it would have needed at once, or waiting
// would be a way round being read.
func (g *Gateway) checkLateTLS(ctx context.Context, t *tunnel) error {
	c := t.connection
	if !c.silent {
		return nil
	}
	for len(c.Seen) == 0 || len(c.Seen) == 1 && c.Seen[0] == 0x16 {
		if err := c.More(); err != nil {
			return nil // the copy meets it again
		}
	}
	if protocol, _ := sniff.Classify(c.Seen); protocol != policy.ProtocolTLS {
		return nil
	}
	protocol, sni, err := c.ReadClientHello()
	switch {
	case errors.Is(err, sniff.ErrTooLong), errors.Is(err, sniff.ErrClientHello):
		return errLate
	case err != nil || protocol != policy.ProtocolTLS:
		return nil
	}
	to := c.target
	to.protocol = protocol
	to, problem := to.checkSNI(sni)
	t.mu.Lock()
	t.seen = to // before it is decided on: a check from now on sees this
	t.mu.Unlock()
	if problem != "" || g.connect(ctx, c.peer, to).Action != policy.Tunnel {
		return errLate
	}
	return nil
}

// outcome is the error that ended a tunnel.
func (t *tunnel) outcome(err error) error {
	if why := t.handle.Revoked(); why != nil {
		return why
	}
	return err
}

// splice copies both ways until both directions have ended or either failed,
// and closes both ends. Nothing goes out where check fails. Between two TCP
// connections the kernel copies, unless bytes are limited.
func splice(near *connection, far net.Conn, check func() error, m *limits.Meter) (out, in int64, err error) {
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
			err = m.Spend(len(near.Seen))
		}
		if err == nil {
			n, err = far.Write(near.Seen)
			near.Seen = nil
		}
		if err == nil {
			rest, err = io.Copy(far, m.Through(near.Conn.Conn))
		}
		out = int64(n) + rest
		ends <- cmp.Or(err, tcp.Reset(near.Conn.Conn))
		finish(far, near, err)
	})
	wg.Go(func() {
		var err error
		in, err = io.Copy(near.Conn.Conn, m.Through(far))
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
