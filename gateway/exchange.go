package gateway

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/gateway/credential"
	"sallyport/gateway/form"
	"sallyport/gateway/http1"
	"sallyport/gateway/upstream"
	"sallyport/gateway/websocket"
	"sallyport/policy"
)

// exchange is one request and what becomes of it. It is the request's context,
// so that goproxy's handlers find it.
type exchange struct {
	context.Context
	gateway *Gateway
	flow    *flow
	started time.Time
	request *policy.Request
	names   form.Names
	raw     string // the path as it came, still encoded
	record  audit.Exchange
	out     writer      // towards the sandbox
	sent    requestBody // from the sandbox
	got     body        // from the upstream
	heads   headBudget  // for large heads

	// Set where the policy has to see the request's body.
	unsuited error // why it cannot
	kept     *kept // the body, nil where that is known without

	// Set once the request is allowed.
	decision  policy.Decision
	meter     *limitMeter // nil where no limit bounds it
	bill      *bill       // nil where no limit bounds tokens
	allowed   *audit.Event
	spool     *spool // nil unless the body was read to be approved
	used      []audit.CredentialUse
	sentWith  []*credential.Use
	lost      map[string]int // values no longer looked for, by credential
	transport http.RoundTripper
	upgrade   bool
	key       string // of a WebSocket's handshake
	err       error  // what ended it, nil for success

	place    entry              // once it is allowed
	cancel   context.CancelFunc // of all that the exchange waits for, and on HTTP/1.1 of its connection
	streamed bool               // by HTTP/2

	informing sync.Mutex
	answered  bool // no 1xx response may follow
}

type exchangeKey struct{}

// Value implements context.Context.
func (x *exchange) Value(key any) any {
	switch key {
	case exchangeKey{}:
		return x
	case upstream.InformationalKey:
		return upstream.Informational(x.inform)
	case http1.BudgetKey:
		return http1.Budget(&x.heads)
	}
	return x.Context.Value(key)
}

// inform passes a 1xx response on. It can come from another goroutine than the
// exchange's, while that waits for the response.
func (x *exchange) inform(code int, h http.Header) {
	x.informing.Lock()
	defer x.informing.Unlock()
	if x.answered {
		return
	}
	form.DropHops(h, false)
	x.tidy(h)
	x.got.scrubber.Header(h, x.got.hit)
	header := x.out.Header()
	maps.Copy(header, h)
	x.out.WriteHeader(code)
	clear(header)
}

func (g *Gateway) exchange(ctx context.Context, cancel context.CancelFunc, f *flow) *exchange {
	x := &exchange{Context: ctx, cancel: cancel, gateway: g, flow: f, started: time.Now()}
	x.heads.of, x.heads.id = g.room, f.identity.ID
	x.got.exchange = x
	x.got.host, x.got.exposure, x.got.scrubber = f.host, f.exposure, f.exposure.Scrubber()
	x.got.stray = func() { g.stray(f) }
	return x
}

// admit checks the form of a request and fills in what policy sees of it.
func (x *exchange) admit(r *http.Request) *form.Error {
	switch r.Method {
	case http.MethodConnect:
		return &form.Error{Status: http.StatusMethodNotAllowed, Rule: "nested-connect", Reason: "CONNECT inside a connection that is already one"}
	case http.MethodTrace:
		return &form.Error{Status: http.StatusMethodNotAllowed, Rule: "trace", Reason: "TRACE sends a request's headers back, injected ones too"}
	}
	if m := form.Check(r); m != nil {
		return m
	}
	if r.TLS == nil && r.ProtoMajor == 2 && x.flow.tls() {
		return &form.Error{Status: http.StatusMisdirectedRequest, Rule: "scheme", Reason: "the request's scheme is not the connection's"}
	}
	if r.URL.User != nil {
		return &form.Error{Status: http.StatusBadRequest, Rule: "userinfo", Reason: "the request target has user information in it"}
	}
	if m := x.direct(r); m != nil {
		return m
	}
	path, raw, m := form.CanonicalTarget(r)
	if m != nil {
		return m
	}
	x.raw = raw
	if m := x.names.Check(r); m != nil {
		return m
	}
	if form.IsWebSocket(r.Header) {
		if m := websocket.CheckRequest(r); m != nil {
			return m
		}
		x.key = r.Header.Get("Sec-Websocket-Key")
	}
	x.request.Path = path
	return nil
}

// direct checks that a request is for the host that the connection is for.
func (x *exchange) direct(r *http.Request) *form.Error {
	f := x.flow
	if r.URL.Scheme != "" && !strings.EqualFold(r.URL.Scheme, f.scheme()) {
		return &form.Error{Status: http.StatusMisdirectedRequest, Rule: "scheme", Reason: "the request target's scheme is not the connection's"}
	}
	if r.Host == f.authority && r.Host != "" {
		return nil
	}
	host, port, err := form.ParseAuthority(r.Host)
	if err != nil {
		return &form.Error{Status: http.StatusBadRequest, Rule: "host", Reason: "bad Host: " + err.Error()}
	}
	if f.refused && f.host == "" {
		named := *f
		named.host, named.authority = host, form.JoinAuthority(host, f.port, f.tls())
		x.flow = &named
		return nil
	}
	if host != f.host || port != 0 && port != f.port {
		return &form.Error{Status: http.StatusMisdirectedRequest, Rule: "host", Reason: fmt.Sprintf("the request is for %s but its connection is for %s", r.Host, form.JoinAuthority(f.host, f.port, f.tls()))}
	}
	return nil
}

// describe fills in what policy sees of a request, all but the path.
func (x *exchange) describe(r *http.Request) {
	x.names = form.NamesOf(r)
	x.request = &policy.Request{
		Method:    r.Method,
		Scheme:    x.flow.scheme(),
		Path:      r.URL.Path,
		QueryKeys: x.names.Query,
		Headers:   x.names.Headers,
		Size:      r.ContentLength,
	}
}

// event describes the request for the audit.
func (x *exchange) event(r *http.Request, d policy.Decision) *audit.Event {
	e := x.flow.event(&x.record, audit.ClassHTTP, audit.HTTPActivity(r.Method), policy.PhaseRequest, d)
	x.record.URL = audit.URL{
		Scheme:   x.request.Scheme,
		Hostname: x.flow.host,
		Port:     int(x.flow.port),
		Path:     clip(x.request.Path, maxAuditPath),
	}
	x.record.Request = audit.HTTPRequest{
		Method:  clip(r.Method, maxAuditMethod),
		Version: r.Proto,
		URL:     &x.record.URL,
		Length:  max(r.ContentLength, 0),
	}
	e.HTTPRequest = &x.record.Request
	s := &e.Unmapped.Sallyport
	s.HeaderNames, s.QueryKeys = clipAll(x.names.Headers), clipAll(x.names.Query)
	s.Unsized, s.Clipped = r.ContentLength < 0, cut(x.request.Path, r.Method, x.names)
	return e
}

// deny records a denial and returns what the sandbox is told.
func (x *exchange) deny(r *http.Request, d policy.Decision) *answer {
	d.Revision = cmp.Or(d.Revision, x.gateway.revision())
	e := x.event(r, d)
	id := x.gateway.denial(x.flow, e)
	x.gateway.metrics.decision(policy.PhaseRequest, d)
	return denied(d, id, r.Method+" "+x.flow.scheme()+"://"+x.flow.authority)
}

// refuse records a misuse.
func (x *exchange) refuse(r *http.Request, m *form.Error) *answer {
	a := x.deny(r, floor(policy.Decision{}, m.Rule, m.Reason))
	a.Status = m.Status
	return a
}

// end writes the completion of an allowed request. It runs once, when the last
// byte has gone to the sandbox or whatever stopped that has happened.
func (x *exchange) end() {
	x.gateway.underway.leave(&x.place)
	for _, u := range x.sentWith {
		x.flow.exposure.Release(u)
	}
	if x.spool != nil {
		_ = x.spool.Close()
	}
	if x.allowed == nil {
		return
	}
	used := x.charge()
	outcome := x.outcome()
	c := completion(&x.record, x.allowed.ActivityID, outcome)
	s := &c.Unmapped.Sallyport
	s.Credentials, s.Tokens = x.used, used
	if x.err != nil && status(x.err) == http.StatusForbidden {
		c.Action, c.Disposition = audit.ActionDenied, audit.DispositionBlocked
	}
	x.gateway.blocked(c, outcome)
	names, n, strays := x.got.found()
	if n > 0 {
		c.Message = held(names, n, s.Credentials)
		c.SeverityID = audit.SeverityMedium
		for _, name := range names {
			s.Found = append(s.Found, audit.CredentialUse{Name: name})
		}
		x.gateway.metrics.scrubbed.Add(float64(n))
	}
	if strays > 0 {
		c.Message += "; a host that it was never sent to answered with it: somebody may be guessing"
		c.SeverityID = audit.SeverityHigh
	}
	if len(x.lost) > 0 {
		c.Message = strings.TrimPrefix(c.Message+"; "+forgotten(x.lost), "; ")
		c.SeverityID = audit.SeverityMedium
	}
	c.Duration = time.Since(x.started).Milliseconds()
	if x.out.status != 0 {
		x.record.Response = audit.HTTPResponse{Code: x.out.status, Length: x.out.written.Load()}
		c.HTTPResponse = &x.record.Response
	}
	x.record.Traffic = audit.Traffic{BytesIn: x.out.written.Load(), BytesOut: x.sent.read.Load()}
	c.Traffic = &x.record.Traffic
	x.gateway.enqueue(c)
	x.gateway.metrics.finished(x.out.status, time.Since(x.started))
}

// held says what a response held.
func held(names []string, n int, sent []audit.CredentialUse) string {
	own := !slices.ContainsFunc(names, func(name string) bool {
		return !slices.ContainsFunc(sent, func(u audit.CredentialUse) bool { return u.Name == name })
	})
	if own {
		return fmt.Sprintf("the response held the injected credential %d times; each was overwritten", n)
	}
	return fmt.Sprintf("the response held a credential of the sandbox's other requests: %s, %d times; each was overwritten", strings.Join(names, ", "), n)
}

// forgotten says what answers are no longer searched for.
func forgotten(lost map[string]int) string {
	return "too much was injected for this sandbox: answers are no longer searched for old values of " + strings.Join(slices.Sorted(maps.Keys(lost)), ", ")
}

// outcome is what ended the exchange, nil for success.
func (x *exchange) outcome() error {
	err := x.err
	if over := x.meter.err(); over != nil {
		err = over // whatever came of it
	}
	why := x.place.revoked.Load()
	switch {
	case why != nil && (err != nil || x.got.err != nil || x.out.failed || x.out.status == http.StatusSwitchingProtocols):
		return why
	case err != nil:
	case x.got.err != nil && x.out.status != http.StatusSwitchingProtocols:
		if err = x.got.err; x.Err() != nil {
			err = errClient // which broke the response off
		}
	case x.out.failed:
		err = errClient
	case x.out.taken.Load() != nil:
		if err = x.out.ended.Err(); err != nil && x.streamed && x.Err() != nil {
			err = errClient // whose stream's end has ended the upstream's connection
		}
	}
	if err != nil && x.gateway.life.Err() != nil && explain(err) == errClient.Error() {
		err = errClosed
	}
	return err
}
