package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/audit"
	"sallyport/gateway/form"
	"sallyport/gateway/http1"
	"sallyport/gateway/live"
	"sallyport/gateway/websocket"
	"sallyport/policy"
)

// inboundRequest is one request to a sandbox and what becomes of it.
type inboundRequest struct {
	context.Context
	gateway   *Gateway
	conn      *inboundConn
	peer      *peer
	target    target
	exposure  Exposure
	authority string // the exposure's, as its URL has it
	started   time.Time
	request   *policy.Request
	names     form.Names
	events    audit.Exchange
	upgrade   bool
	key       string // of a WebSocket's handshake

	// Set once the request is allowed.
	decision policy.Decision
	allowed  *audit.Event
	handle   live.Handle
	cancel   context.CancelFunc
	status   int
	in, out  atomic.Int64 // bytes to the sandbox, and from it
	err      error        // what ended it, nil for success
	switched bool
	closing  sync.Once
}

// event describes the request for the audit.
func (v *inboundRequest) event(d policy.Decision) *audit.Event {
	q := v.request
	e := connectionEvent(&v.events, v.peer, v.target, audit.ClassHTTP, audit.HTTPActivity(q.Method), policy.PhaseInbound, d)
	port, _ := strconv.Atoi(v.gateway.inbound.port)
	v.events.URL = audit.URL{Scheme: "http", Hostname: v.exposure.Host(), Port: port, Path: clip(q.Path, maxAuditPath)}
	v.events.Request = audit.HTTPRequest{Method: clip(q.Method, maxAuditMethod), Version: "HTTP/1.1", URL: &v.events.URL, Length: max(q.Size, 0)}
	e.HTTPRequest, e.Connection = &v.events.Request, inboundTCP()
	s := &e.Unmapped.Sallyport
	s.HeaderNames, s.QueryKeys = clipAll(v.names.Headers), clipAll(v.names.Query)
	s.Unsized, s.Clipped = q.Size < 0, clipped(q.Path, q.Method, v.names)
	return e
}

// judged asks the policy.
func (v *inboundRequest) judged(ctx context.Context, of policy.Sandbox) policy.Decision {
	d := v.gateway.decide(ctx, policy.Input{
		Phase: policy.PhaseInbound, Sandbox: of, Protocol: policy.ProtocolHTTP,
		Destination: policy.Destination{Host: v.exposure.Sandbox, Port: v.exposure.Port}, Request: v.request,
	})
	if d.Action != policy.Allow && d.Action != policy.Deny {
		d = floor(d, "inbound", "what comes in is allowed or denied")
	}
	return d
}

// Recheck implements live.Revocable.
func (v *inboundRequest) Recheck(ctx context.Context) *live.Revoked {
	if e, ok := v.gateway.inbound.exposures.Exposed(v.exposure.Host()); !ok || e.Digest != v.exposure.Digest || !e.live() {
		return &live.Revoked{Decision: floor(policy.Decision{Revision: v.gateway.revision()}, "inbound-expired", errUnexposed.Error())}
	}
	// Its tags may be others by now.
	asked, over := context.WithTimeout(ctx, reachWithin)
	defer over()
	now, err := v.gateway.inbound.waker.Whose(asked, v.exposure.SandboxID)
	if err != nil {
		now = v.peer.identity.Sandbox // what has gone has no exposure
	}
	return live.Compare(v.judged(ctx, now), v.decision)
}

// Stop implements live.Revocable.
func (v *inboundRequest) Stop(*live.Revoked) { v.cancel() }

// Cut implements live.Revocable.
func (v *inboundRequest) Cut() { _ = v.conn.lifetime.conn.Close() }

// decide asks the policy, and enters what is allowed.
func (v *inboundRequest) decide(ctx context.Context) (d policy.Decision) {
	set := &v.gateway.live
	set.Decide(set.Epoch(), func() (*live.Handle, live.Revocable) {
		if d = v.judged(ctx, v.peer.identity.Sandbox); d.Action != policy.Allow {
			return nil, nil
		}
		v.decision = d
		return &v.handle, v
	})
	return d
}

// carry decides on a request, has that written down, and takes it to the sandbox.
func (v *inboundRequest) carry(w http.ResponseWriter, r *http.Request) {
	g := v.gateway
	ctx, cancel := context.WithDeadline(v.Context, v.exposure.Expires)
	defer cancel()
	v.cancel = cancel
	asked, over := context.WithTimeout(ctx, wakeWithin)
	defer over()
	sandbox, err := g.inbound.waker.Whose(asked, v.exposure.SandboxID)
	if err != nil || sandbox.ID != v.exposure.SandboxID || sandbox.Name != v.exposure.Sandbox {
		v.refuse(w, r, http.StatusServiceUnavailable, "inbound-sandbox", "the sandbox is not there")
		return
	}
	v.peer = v.peer.is(Identity{Sandbox: sandbox})
	d := v.decide(ctx)
	defer g.live.Leave(&v.handle)
	if d.Action != policy.Allow {
		a := denied(d, v.record(d), "")
		if d.RuleType == "" {
			a.Remedy = "An operator can add an expose rule for it, and will want the decision id."
		}
		a.write(w, r)
		return
	}
	e := v.event(d)
	if err := g.recorder.Append(ctx, e); err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			if !errors.Is(err, audit.ErrWithdrawn) {
				v.allowed, v.err = e, errInboundClient
				v.end()
			}
			panic(http.ErrAbortHandler)
		}
		g.metrics.auditFailures.Inc()
		g.logger.Error("refusing a request that cannot be recorded", "sandbox", sandbox.Name, "error", err)
		failed(errAudit, e.ID()).write(w, r)
		return
	}
	v.allowed = e
	g.metrics.decision(policy.PhaseInbound, d)
	defer v.end()
	far, err := v.reach(asked)
	if err != nil {
		v.fail(w, r, err)
		return
	}
	over()
	defer far.Close()
	// The end of the request ends both connections: that to the client too where
	// it has been taken over.
	stop := context.AfterFunc(ctx, func() { _ = far.Close() })
	defer stop()
	v.roundTrip(ctx, far, w, r)
}

// fail says that an allowed request could not be carried, while that can be said.
func (v *inboundRequest) fail(w http.ResponseWriter, r *http.Request, err error) {
	if v.err == nil {
		v.err = err
	}
	if v.handle.Revoked() == nil && v.Err() != nil {
		panic(http.ErrAbortHandler) // nobody is there
	}
	a := &answer{Status: http.StatusBadGateway, Reason: err.Error(), Decision: v.allowed.ID(), Remedy: "Look at what runs in the sandbox: it must listen on this port, on 0.0.0.0, 127.0.0.1 or ::1, and speak HTTP/1.1."}
	switch {
	case v.handle.Revoked() != nil:
		a.Status, a.Reason, a.Remedy = http.StatusForbidden, v.handle.Revoked().Error(), remedies["inbound-expired"]
	case errors.Is(err, errAsleep):
		a.Status, a.Remedy = http.StatusServiceUnavailable, "Try again, or ask an operator to look at Sallyport's log."
	case errors.Is(err, errWakes):
		a.Status, a.Retry, a.Remedy = http.StatusServiceUnavailable, busyRetry, "Wait until others have started, then try again."
	case errors.Is(err, ErrInsideBusy):
		a.Status, a.Retry = http.StatusServiceUnavailable, busyRetry
		a.Remedy = "Send fewer requests at once, or have the program in the sandbox listen on 0.0.0.0."
	case errors.Is(err, ErrInsideEarlier), errors.Is(err, errInside):
		a.Remedy = "Have the program in the sandbox listen on 0.0.0.0, or stop the sandbox and use it again."
	}
	w.Header().Set("Connection", "close")
	v.status = a.Status
	a.write(w, r)
}

// wake runs a sandbox, once for all requests to it meanwhile. A sandbox that takes its
// time does not hold up others', nor do many of one owner.
func (g *Gateway) wake(ctx context.Context, e Exposure) (Identity, error) {
	in, id := g.inbound, e.SandboxID
	woken := in.waking.DoChan(id, func() (any, error) {
		ctx, over := context.WithTimeout(g.life, wakeWithin)
		defer over()
		// It waits for others of its owner: an owner without a share left holds up nobody else.
		for !in.wakes.Enter(id, e.Owner) {
			select {
			case <-ctx.Done():
				return Identity{}, errWakes
			case <-time.After(wakeLook):
			}
		}
		defer in.wakes.Leave(id, e.Owner)
		return in.waker.Wake(ctx, id)
	})
	select {
	case got := <-woken:
		return got.Val.(Identity), got.Err
	case <-ctx.Done():
		return Identity{}, errAsleep
	}
}

// roundTrip sends the request and passes the answer on.
func (v *inboundRequest) roundTrip(ctx context.Context, far net.Conn, w http.ResponseWriter, r *http.Request) {
	trailers := !v.upgrade && form.HasToken(r.Header["Te"], "trailers")
	form.DropHops(r.Header, v.upgrade)
	if trailers {
		r.Header["Te"], r.Header["Connection"] = []string{"trailers"}, []string{"TE"} // RFC 9110, section 10.1.4
	}
	if _, said := r.Header["User-Agent"]; !said {
		r.Header["User-Agent"] = nil // or net/http would name itself
	}
	out := r.WithContext(ctx)
	out.URL.Scheme, out.URL.Host = "http", v.authority
	out.Close, out.Trailer = !v.upgrade, nil
	if r.Body != nil && r.Body != http.NoBody {
		body := &pacedBody{ReadCloser: r.Body, count: &v.in, within: v.gateway.stall, late: v.cancel, from: r}
		body.trailer = sentTrailers(r)
		out.Trailer = body.trailer
		defer body.rest()
		out.Body = body
	}
	conn := http1.NewClientConn(far, http1.ClientOptions{HeadTimeout: headWithin})
	resp, err := conn.RoundTrip(out, func(code int, h http.Header) {
		cleanResponse(h, false)
		maps.Copy(w.Header(), h)
		w.WriteHeader(code)
		clear(w.Header())
	})
	if err != nil {
		v.fail(w, r, errUnanswered)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		if !v.upgrade || !websocket.Accepts(resp, v.key) {
			v.fail(w, r, errUnswitched)
			return
		}
		v.websocket(ctx, w, resp)
		return
	}
	cleanResponse(resp.Header, false)
	maps.Copy(w.Header(), resp.Header)
	announceTrailers(w.Header(), resp)
	v.status = resp.StatusCode
	w.WriteHeader(resp.StatusCode)
	v.pass(w, resp)
}

// pass copies the answer's body and trailers, and what comes without a length as it
// comes. One that breaks off is broken off.
func (v *inboundRequest) pass(w http.ResponseWriter, resp *http.Response) {
	flush := func() error { return nil }
	if resp.ContentLength < 0 {
		flush = http.NewResponseController(w).Flush
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			v.out.Add(int64(n))
			_, werr := w.Write(buf[:n])
			if werr == nil {
				werr = flush()
			}
			if werr != nil {
				v.err = errInboundClient
				panic(http.ErrAbortHandler)
			}
		}
		switch {
		case err == io.EOF && sendTrailers(w, resp) != nil:
			v.err = errInboundClient
			panic(http.ErrAbortHandler)
		case err == io.EOF:
			return
		case err != nil:
			v.err = errUnanswered
			if v.Err() != nil {
				v.err = errInboundClient
			}
			panic(http.ErrAbortHandler)
		}
	}
}

// websocket turns both connections over to each other.
func (v *inboundRequest) websocket(ctx context.Context, w http.ResponseWriter, resp *http.Response) {
	far := resp.Body.(io.ReadWriteCloser)
	near, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		v.err = errInboundClient
		return
	}
	defer near.Close()
	stop := context.AfterFunc(ctx, func() { _ = near.Close() })
	defer stop()
	v.switched, v.status = true, resp.StatusCode
	cleanResponse(resp.Header, true)
	fmt.Fprintf(rw, "HTTP/1.1 101 %s\r\n", http.StatusText(resp.StatusCode))
	_ = resp.Header.Write(rw) // a buffer: Flush has the error
	_, _ = io.WriteString(rw, "\r\n")
	if err := rw.Flush(); err != nil {
		v.err = errInboundClient
		return
	}
	var both sync.WaitGroup
	copying := func(to io.Writer, from io.Reader, count *atomic.Int64) {
		_, _ = io.Copy(struct{ io.Writer }{to}, &countingReader{from, count})
		// The other direction has a moment for its goodbye.
		v.closing.Do(func() { time.AfterFunc(settleTime, v.cancel) })
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}
	client, server := websocket.NewReader(rw.Reader, true), websocket.NewReader(far, false)
	both.Go(func() { copying(far, client, &v.in) })
	both.Go(func() { copying(near, server, &v.out) })
	both.Wait()
	if client.Frames.Bad || server.Frames.Bad {
		v.err = websocket.ErrFrames
	}
}

// countingReader counts what is read.
type countingReader struct {
	io.Reader
	count *atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.count.Add(int64(n))
	return n, err
}

// pacedBody is a request's body of which something has to come from time to time.
type pacedBody struct {
	io.ReadCloser
	count  *atomic.Int64
	within time.Duration
	late   func()

	from    *http.Request // whose trailers the connection fills in at the end
	trailer http.Header   // what of them goes to the sandbox

	mu    sync.Mutex
	timer *time.Timer
}

func (p *pacedBody) Read(b []byte) (int, error) {
	p.mu.Lock()
	if p.timer == nil {
		p.timer = time.AfterFunc(p.within, p.late)
	} else {
		p.timer.Reset(p.within)
	}
	p.mu.Unlock()
	n, err := p.ReadCloser.Read(b)
	p.rest()
	p.count.Add(int64(n))
	if err == io.EOF {
		for name := range p.trailer {
			p.trailer[name] = p.from.Trailer[name]
		}
	}
	return n, err
}

func (p *pacedBody) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
}

// end writes the completion of an allowed request.
func (v *inboundRequest) end() {
	err := v.err
	if why := v.handle.Revoked(); why != nil && (err != nil || v.switched) {
		err = why
	} else if err == nil && !time.Now().Before(v.exposure.Expires) && v.switched {
		err = &live.Revoked{Decision: floor(policy.Decision{Revision: v.gateway.revision()}, "inbound-expired", errUnexposed.Error())}
	}
	c := completion(&v.events, v.allowed.ActivityID, err)
	for _, known := range append([]error{errAsleep, errWakes, errUnanswered, errUnswitched, errInboundClient, websocket.ErrFrames}, reachFaults...) {
		if errors.Is(err, known) {
			c.Detail = known.Error()
		}
	}
	c.Duration = time.Since(v.started).Milliseconds()
	if v.status != 0 {
		v.events.Response = audit.HTTPResponse{Code: v.status, Length: v.out.Load()}
		c.HTTPResponse = &v.events.Response
	}
	v.events.Traffic = audit.Traffic{BytesIn: v.in.Load(), BytesOut: v.out.Load()}
	c.Traffic = &v.events.Traffic
	v.gateway.enqueue(c)
	v.gateway.metrics.finished(v.status, time.Since(v.started))
}

// Trailers of what a sandbox and an inbound client say to each other come after a body
// in chunks (RFC 9112, section 7.1.2). The readers of heads bound how many there are.

// sentTrailers are the names of the trailers that go to a sandbox: those that were announced,
// which the policy has seen, and are none of ours. Nil: none.
func sentTrailers(r *http.Request) (t http.Header) {
	for _, name := range form.Announced(r) {
		if name == "Cookie" {
			continue
		}
		if t == nil {
			t = http.Header{}
		}
		t[name] = nil
	}
	return t
}

// passesTrailer says whether an answer of a sandbox may have a field after its body: one that
// tidy would take from the head, or look into, does not get by it there.
func passesTrailer(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Alt-Svc", "Set-Cookie":
		return false
	}
	return !form.Reserved(name) && form.AllowedTrailer(name)
}

// announceTrailers says in an answer's head what of its trailers will be passed on.
func announceTrailers(h http.Header, resp *http.Response) {
	names := slices.Sorted(maps.Keys(resp.Trailer))
	if names = slices.DeleteFunc(names, func(name string) bool { return !passesTrailer(name) }); len(names) > 0 {
		h["Trailer"] = []string{strings.Join(names, ", ")}
	}
}

// sendTrailers passes on the trailers of an answer that has been read to its end, those too
// that it had not announced. The head has been sent before, so that nothing of it
// is taken for one of them.
func sendTrailers(w http.ResponseWriter, resp *http.Response) error {
	if len(resp.Trailer) == 0 {
		return nil
	}
	err := http.NewResponseController(w).Flush()
	h := w.Header()
	clear(h)
	for name, values := range resp.Trailer {
		if passesTrailer(name) && len(values) > 0 {
			h[http.TrailerPrefix+name] = values
		}
	}
	return err
}
