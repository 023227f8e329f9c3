package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/elazarl/goproxy"

	"sallyport/audit"
	"sallyport/gateway/credential"
	"sallyport/gateway/form"
	"sallyport/gateway/websocket"
	"sallyport/policy"
)

var errNoRoute = errors.New("requests leave only by the route that their decision gave them")

// newProxy returns a goproxy that carries nothing: what it would use when no
// handler says otherwise refuses. It never sees CONNECT, ends no TLS and signs
// nothing.
func newProxy(logger *slog.Logger) *goproxy.ProxyHttpServer {
	proxy := goproxy.NewProxyHttpServer()
	proxy.Logger = proxyLogger{logger}
	proxy.Verbose = false
	// The exchange decides what goes out. Without this, goproxy would take hop-by-hop
	// headers away a second time, and write each URL for a log that nobody reads.
	proxy.KeepHeader = true
	proxy.AllowHTTP2 = false
	proxy.Tr = &http.Transport{
		Proxy:              nil,
		DialContext:        noDial,
		DialTLSContext:     noDial,
		DisableCompression: true,
	}
	proxy.ConnectDial = nil // it may have come from the environment
	proxy.ConnectDialWithReq = func(*http.Request, string, string) (net.Conn, error) { return nil, errNoRoute }
	proxy.OnRequest().HandleConnectFunc(func(host string, _ *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) {
		return &goproxy.ConnectAction{Action: goproxy.ConnectReject}, host
	})
	return proxy
}

func noDial(context.Context, string, string) (net.Conn, error) { return nil, errNoRoute }

// hang puts policy, write-ahead and injection on the proxy's requests, and
// scrubbing on its responses.
func hang(proxy *goproxy.ProxyHttpServer) {
	proxy.OnRequest().DoFunc(func(r *http.Request, ctx *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		x := r.Context().Value(exchangeKey{}).(*exchange)
		ctx.UserData = x
		if a := x.authorize(r); a != nil {
			return r, a.response(r)
		}
		ctx.RoundTripper = x
		return r, nil
	})
	proxy.OnResponse().DoFunc(func(resp *http.Response, ctx *goproxy.ProxyCtx) *http.Response {
		return ctx.UserData.(*exchange).respond(resp, ctx)
	})
}

// authorize decides on a request and readies it to leave. What it returns is
// the answer when it may not; until it returns nil nothing has left.
func (x *exchange) authorize(r *http.Request) *answer {
	g, f := x.gateway, x.flow
	var mine turn
	mine.begin(g.turns, f.identity.ID)
	defer mine.end()
	d := x.decide(r.Context())
	for d.Action == policy.Approve {
		d = g.spare(f.identity.Sandbox, d, x.request.Size) // nobody is asked about what could not go
		if d.Action != policy.Approve || g.approvals == nil {
			break
		}
		mine.end() // it may take long
		var a *answer
		if d, a = x.approve(r, d); a != nil {
			return a
		}
	}
	upgrade := form.IsWebSocket(r.Header)
	switch {
	case d.Action != policy.Allow:
		if d.Action == policy.Tunnel {
			d = floor(d, "tunnel", "a rule that carries bytes unread cannot carry a request that has been read")
		}
		return x.deny(r, d)
	case len(d.Inject) > 0 && !f.tls():
		return x.deny(r, floor(d, "plain-credential", "a credential goes over TLS only: use https"))
	}
	if d = x.priced(r, d, upgrade); d.Action != policy.Allow {
		return x.deny(r, d)
	}
	if x.meter, d = g.take(f.identity.Sandbox, d, x.request.Size); d.Action != policy.Allow {
		return x.deny(r, d)
	}
	x.sent.meter, x.got.meter, x.out.meter = x.meter, x.meter, x.meter
	x.upgrade = upgrade
	x.count(r)

	e := x.event(r, d)
	if err := g.recorder.Append(r.Context(), e); err != nil {
		if gone := r.Context().Err(); gone != nil && errors.Is(err, gone) {
			if !errors.Is(err, audit.ErrWithdrawn) {
				x.allowed, x.err = e, errClient // it may be in the log: say how it ended
				if a := x.revoked(); a != nil {
					return a
				}
			}
			return failed(errClient, e.ID())
		}
		g.metrics.auditFailures.Inc()
		g.logger.Error("refusing a request that cannot be recorded", "sandbox", f.identity.Name, "error", err)
		return failed(errAudit, e.ID())
	}
	mine.end()
	x.allowed = e
	g.metrics.decision(policy.PhaseRequest, d)
	if a := x.revoked(); a != nil {
		return a
	}

	if err := x.prepare(r); err != nil {
		x.err = err
		if a := x.revoked(); a != nil {
			return a
		}
		g.logger.Warn("an allowed request could not be sent", "sandbox", f.identity.Name, "decision", e.ID(), "error", err)
		return failed(err, e.ID())
	}
	return nil
}

// decide asks about the request until that is by the policy of now, and enters it
// where it is allowed.
func (x *exchange) decide(ctx context.Context) policy.Decision {
	u := &x.gateway.underway
	round := x.flow.round
	if round == 0 {
		round = u.round.Load()
	}
	for {
		d := x.judged(ctx)
		if d.Action != policy.Allow {
			return d
		}
		x.decision = d
		if u.enter(&x.place, x, round) {
			return d
		}
		// The connection may have been decided on in the same round.
		round = u.round.Load()
		if d := x.gateway.connect(ctx, x.flow); !x.flow.readable(d) {
			return d
		}
	}
}

// judged asks the policy about the request, and about its connection where that
// needs approval.
func (x *exchange) judged(ctx context.Context) policy.Decision {
	d := x.ask(ctx)
	if d.RawPath && strings.Contains(x.raw, "//") {
		d = floor(d, "raw-path", "the path has doubled slashes, which some servers make one, and a rule has it sent as it is")
	}
	if x.flow.asks && d.Action == policy.Allow {
		d = x.flow.asked(x.gateway.connect(ctx, x.flow), d)
	}
	return d
}

// input is what policy decides the request on.
func (x *exchange) input() policy.Input {
	return policy.Input{
		Phase:       policy.PhaseRequest,
		Sandbox:     x.flow.identity.Sandbox,
		Destination: policy.Destination{Host: x.flow.host, Port: x.flow.port},
		Protocol:    x.flow.protocol,
		Request:     x.request,
	}
}

// target is the path that leaves, as it leaves.
func (x *exchange) target(r *http.Request, d policy.Decision) string {
	if d.RawPath {
		return x.raw
	}
	return r.URL.EscapedPath()
}

// prepare turns the sandbox's request into the one that leaves.
func (x *exchange) prepare(r *http.Request) error {
	f, d := x.flow, x.decision
	trailers := r.ProtoMajor == 2 && form.HasToken(r.Header["Te"], "trailers")
	form.DropHops(r.Header, x.upgrade)
	if trailers {
		r.Header["Te"] = []string{"trailers"} // gRPC has its status in them
	}
	form.SetPath(r.URL, x.target(r, d))
	r.Host, r.Close = f.authority, false
	r.RequestURI = "" // a client's request has none
	if _, set := r.Header["User-Agent"]; !set {
		r.Header["User-Agent"] = []string{""} // or the transport would add its own
	}
	if x.upgrade {
		// Frames have to be read: what was injected for another request may be in
		// them, or will be before they end.
		delete(r.Header, "Sec-Websocket-Extensions")
	}
	x.got.strict = len(d.Inject) > 0
	if !x.got.strict && f.exposure.Reached(f.host) {
		x.got.strict = true
		askSearchable(r.Header)
	}
	if x.bill != nil {
		askSearchable(r.Header)
	}
	names := make([]string, 0, len(d.Inject))
	if len(d.Inject) > 0 {
		if err := x.inject(r); err != nil {
			return err
		}
		for _, i := range d.Inject {
			names = append(names, i.Credential)
		}
	}
	if d.Governed && len(d.Inject) == 0 {
		// Observe mode lets it pass where rules give credentials: those that the
		// sandbox has of its own are no more welcome for that.
		x.strip(r)
	}
	transport, err := x.gateway.upstreams.RoundTripper(f.route(d, strings.Join(names, ","), f.tls()))
	if err != nil {
		return err
	}
	x.transport = transport
	return nil
}

// unscrubbable are the headers that ask for a part of a response, or for a form
// of it that would have to be undone before it can be searched.
var unscrubbable = []string{
	"Range", "If-Range", "X-Ms-Range", "Grpc-Accept-Encoding", "Connect-Accept-Encoding",
}

// askSearchable asks for a response that can be read whole, and best in the clear.
func askSearchable(h http.Header) {
	h["Accept-Encoding"] = []string{"identity"}
	for _, name := range unscrubbable {
		delete(h, name)
	}
}

// strip removes the sandbox's own credentials.
func (x *exchange) strip(r *http.Request) {
	trailer, cookies := r.Trailer, r.Header["Cookie"]
	credential.StripCarriers(r)
	if x.passesCookies() && len(cookies) > 0 {
		r.Header["Cookie"] = cookies
	}
	if credential.StripTrailers(trailer, nil); len(trailer) > 0 {
		r.Trailer = trailer // the map that the body fills in at its end
	}
	if x.upgrade { // which is of one connection, as all that has just gone
		websocket.KeepPlainProtocols(r.Header)
		r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	}
}

// inject removes the sandbox's own credentials and puts in those that the
// decision names. An account of the sandbox's own at an allowed destination
// would be a way out.
func (x *exchange) inject(r *http.Request) error {
	x.strip(r)
	askSearchable(r.Header)
	to := credential.Binding{Host: x.flow.host, Port: x.flow.port, TLS: x.flow.tls(), Policy: x.decision.Revision}
	for _, i := range x.decision.Inject {
		lease, err := x.gateway.broker.Lease(r.Context(), i.Credential, to)
		if err != nil {
			x.used = append(x.used, audit.CredentialUse{Name: i.Credential})
			return &leaseError{credential: i.Credential, err: err}
		}
		x.used = append(x.used, audit.CredentialUse{Name: lease.Name, Version: lease.Version})
		if err := lease.Apply(r, i.Inject); err != nil {
			return &leaseError{credential: i.Credential, err: err}
		}
		if err := x.expose(lease); err != nil {
			return err
		}
	}
	credential.StripTrailers(r.Trailer, r.Header) // injected ones are among them
	return nil
}

// passesCookies tells whether all rules that put a credential into the request let its cookies
// and those of its answer pass.
func (x *exchange) passesCookies() bool {
	return len(x.decision.Inject) > 0 && x.decision.Cookies
}

// tidy removes from the head or the trailers of an upstream's answer what is not for the sandbox.
func (x *exchange) tidy(h http.Header) {
	form.DropReserved(h)
	delete(h, "Alt-Svc") // names other ways to the upstream, all closed
	if len(x.decision.Inject) > 0 && !x.passesCookies() {
		credential.StripGrants(h)
	}
}

// expose has all answers to the sandbox searched for what is about to leave.
func (x *exchange) expose(lease *credential.Lease) error {
	use, lost, err := x.flow.exposure.Expose(lease)
	if err != nil {
		return &leaseError{credential: lease.Name, err: err}
	}
	x.sentWith = append(x.sentWith, use)
	if len(lost) == 0 {
		return nil
	}
	if x.lost == nil {
		x.lost = make(map[string]int)
	}
	for name, n := range lost {
		x.lost[name] += n
		x.gateway.metrics.forgotten.Add(float64(n))
	}
	x.gateway.logger.Warn("answers to a sandbox are no longer searched for values that were injected long ago",
		"sandbox", x.flow.identity.Name, "credentials", slices.Sorted(maps.Keys(lost)))
	return nil
}

// RoundTrip carries an allowed request for goproxy.
func (x *exchange) RoundTrip(r *http.Request, _ *goproxy.ProxyCtx) (*http.Response, error) {
	if x.bill != nil {
		x.bill.began = time.Now()
	}
	resp, err := x.transport.RoundTrip(r)
	x.informing.Lock()
	x.answered = true
	x.informing.Unlock()
	if err != nil {
		if over := x.meter.err(); over != nil {
			return nil, over
		}
		switch { // whatever the upstream made of that
		case x.sent.silent.Load():
			err = errSilent
		case x.sent.short.Load():
			err = errClient
		}
		return nil, err
	}
	x.sent.heard.Store(true)
	switching := resp.StatusCode == http.StatusSwitchingProtocols
	switch {
	case switching && !x.upgrade:
		_ = resp.Body.Close()
		return nil, errUpgrade
	// To a client of HTTP/2 any status of success would begin a WebSocket.
	case (switching || x.out.tunnel != nil && resp.StatusCode < 300) && !websocket.Accepts(resp, x.key):
		_ = resp.Body.Close()
		return nil, errWebSocket
	}
	if switching {
		if err := x.got.frames(resp); err != nil {
			_ = resp.Body.Close()
			return nil, err
		}
		conn, ok := resp.Body.(io.ReadWriteCloser)
		if !ok {
			_ = resp.Body.Close()
			return nil, errUpgrade
		}
		resp.Body = websocket.Upstream{ReadWriteCloser: conn, End: &x.out.ended} // goproxy needs a body that can be written to
		return resp, nil
	}
	x.got.response = resp
	if x.bill != nil {
		x.bill.answered(resp)
	}
	if resp.Body != http.NoBody {
		x.got.ReadCloser, x.got.raw = resp.Body, resp.Body
		resp.Body = &x.got
	}
	return resp, nil
}

// respond readies a response for the sandbox. resp is nil when the round trip
// failed.
func (x *exchange) respond(resp *http.Response, ctx *goproxy.ProxyCtx) *http.Response {
	switch {
	case resp == nil:
		x.err = ctx.Error
		if a := x.revoked(); a != nil {
			return a.response(ctx.Req)
		}
		if x.err == nil {
			x.err = errPanic
		}
		x.gateway.logger.Info("upstream failed", "sandbox", x.flow.identity.Name, "decision", x.allowed.ID(), "error", explain(x.err))
		return failed(x.err, x.allowed.ID()).response(ctx.Req)
	case x.transport == nil:
		x.out.length = resp.ContentLength
		return resp // the gateway's own
	}
	form.DropHops(resp.Header, x.upgrade)
	x.tidy(resp.Header)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		if err := x.got.scrub(); err != nil {
			x.err = errCoding
			if x.bill != nil && !x.got.searched() {
				x.err = errUnread
			}
			if errors.Is(err, credential.ErrMemory) {
				x.err = credential.ErrMemory
			}
			return failed(x.err, x.allowed.ID()).response(ctx.Req)
		}
		x.got.expect(x.gateway.stall, x.place.cut)
	}
	if resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified {
		// It is the length that another answer would have (RFC 9110, section 8.6). Clients of
		// HTTP/2 wait for so many bytes.
		delete(resp.Header, "Content-Length")
		resp.ContentLength = 0
	}
	x.out.length = resp.ContentLength
	x.out.prompt = resp.ContentLength < 0 && resp.Body != http.NoBody && !x.upgrade && x.got.waiting()
	return resp
}

// proxyLogger takes goproxy's warnings. Their arguments can quote a request,
// so the log gets the kind of warning only.
type proxyLogger struct{ *slog.Logger }

func (l proxyLogger) Printf(format string, _ ...any) {
	l.Debug("goproxy", "warning", strings.TrimSpace(strings.TrimPrefix(format, "[%03d] ")))
}
