package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"

	"sallyport/audit"
	"sallyport/policy"
)

// tunnel carries a connection unread. Its decision is on disk before the name
// is resolved.
func (g *Gateway) tunnel(ctx context.Context, o *opening, d policy.Decision) {
	f := o.flow
	e := f.event(audit.KindDecision, audit.ClassNetwork, audit.NetworkOpen)
	e.Connection = &audit.Connection{ProtocolName: "tcp", ProtocolNum: 6, Direction: 2}
	judge(e, policy.PhaseConnect, d)
	if err := g.recorder.Append(ctx, e); err != nil {
		g.metrics.auditFailures.Inc()
		g.logger.Error("refusing a connection that cannot be recorded", "sandbox", f.identity.Name, "error", err)
		g.tell(o, failed(errAudit, e.ID()))
		return
	}
	g.metrics.decision(policy.PhaseConnect, d)

	far, err := g.upstreams.Dial(ctx, f.route(d, "", false))
	if err != nil {
		c := f.completion(e, audit.NetworkFail, err)
		if status(err) == http.StatusForbidden {
			c.Action, c.Disposition = audit.ActionDenied, audit.DispositionBlocked
		}
		g.enqueue(c)
		g.tell(o, failed(err, e.ID()))
		return
	}
	out, in, err := splice(o, far)
	c := f.completion(e, audit.NetworkClose, err)
	c.Traffic = &audit.Traffic{BytesIn: in, BytesOut: out}
	g.enqueue(c)
}

// splice copies both ways until both directions have ended or either failed,
// and closes both ends. Between two TCP connections the kernel does it.
func splice(near *opening, far net.Conn) (out, in int64, err error) {
	defer near.Close()
	defer far.Close()
	var n int
	if n, err = far.Write(near.seen); err != nil {
		return int64(n), 0, err
	}
	near.seen = nil
	out = int64(n)

	// How the first direction ended is how the tunnel did: after a regular end
	// peers often reset what is left of the other.
	ends := make(chan error, 2)
	var wg sync.WaitGroup
	wg.Go(func() {
		n, err := io.Copy(far, near.Conn)
		out += n
		ends <- err
		finish(far, near, err)
	})
	wg.Go(func() {
		var err error
		in, err = io.Copy(near.Conn, far)
		ends <- err
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
