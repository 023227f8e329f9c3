package inbound

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/access"
	"sallyport/gateway/answer"
	"sallyport/gateway/event"
	"sallyport/gateway/form"
	"sallyport/gateway/live"
	"sallyport/gateway/websocket"
	"sallyport/policy"
)

// Errors that end a request.
var (
	errAsleep     = errors.New("the sandbox could not be started")
	errWakes      = errors.New("too many sandboxes are started at once for requests to them")
	errUnanswered = errors.New("the sandbox gave no answer that could be read")
	errUnswitched = errors.New("the sandbox did not begin a WebSocket")
	errClient     = errors.New("the client went away")
	errExpired    = errors.New("the port is no longer exposed")
	errUnrouted   = errors.New("the client may not ask this sandbox any more")
)

// request is one request to a sandbox, from its head to its completion. It is the
// request's context.
type request struct {
	context.Context
	server    *Server
	conn      *conn
	routed    *routed // nil for a published port
	started   time.Time
	port      access.Port
	authority string // the port's, as its URL has it
	sandbox   policy.Sandbox
	seen      *policy.Request // nil before its form has been checked
	names     form.Names
	upgrade   bool
	key       string // of a WebSocket's handshake
	events    audit.Exchange

	// Set once the request is allowed.
	decision policy.Decision
	allowed  *audit.Event
	handle   live.Handle
	cancel   context.CancelFunc
	client   context.Context // of the connection
	far      net.Conn        // of the sandbox
	writer   *writer
	body     *pacedBody
	status   int
	in, out  atomic.Int64 // bytes to the sandbox, and from it
	err      error        // what ended it, nil for success
	switched bool
	bad      atomic.Bool // what came was not in frames of a WebSocket
	ending   sync.Once   // of one
}

// serve answers the request.
func (q *request) serve(w http.ResponseWriter, r *http.Request) {
	s := q.server
	if s.Router != nil {
		q.serveRouted(w, r)
		return
	}
	tokens := takeTokens(r)
	p, ok := q.find(w, r)
	if !ok {
		return
	}
	q.port, q.authority = p, p.Host()+":"+q.conn.port
	q.sandbox = policy.Sandbox{Name: p.Sandbox, ID: p.SandboxID}
	switch {
	case !p.Live():
		q.refuse(w, r, http.StatusForbidden, "inbound-expired", "the exposure has expired")
		return
	case !tokens.any():
		q.refuse(w, r, http.StatusUnauthorized, "inbound-token", "the exposure's token is missing")
		return
	case !p.Accepts(slices.Concat(tokens.header, tokens.cookie)) && !p.Accepts(tokens.query):
		q.refuse(w, r, http.StatusUnauthorized, "inbound-token", "the token is not this exposure's")
		return
	}
	if !q.conn.countFor(s.conns, p) {
		w.Header().Set("Retry-After", strconv.Itoa(busyRetry))
		q.refuse(w, r, http.StatusServiceUnavailable, "inbound-connections", "there are too many connections to this sandbox, or to those of its owner")
		return
	}
	program := p.Accepts(tokens.header)
	q.upgrade = form.IsWebSocket(r.Header)
	if len(tokens.query) > 0 && !program {
		if r.Method != http.MethodGet && r.Method != http.MethodHead || q.upgrade || !p.Accepts(tokens.query) {
			q.refuse(w, r, http.StatusUnauthorized, "inbound-token", "a token in the URL is for a browser's first visit, by GET")
			return
		}
		if origin := r.Header["Origin"]; len(origin) > 0 {
			q.refuse(w, r, http.StatusForbidden, "inbound-origin", "a first visit is not made by a script of another origin")
			return
		}
		setCookie(w, r, p, tokens.query[0], q.authority)
		return
	}
	if m := q.admit(r, program); m != nil {
		q.refuse(w, r, m.Status, m.Rule, m.Reason)
		return
	}
	if !s.enter(p.Host()) {
		q.refuse(w, r, http.StatusTooManyRequests, "inbound-rate", "too many requests to this exposure, or too many at once")
		return
	}
	defer s.leave(p.Host())
	q.carry(w, r)
}

// find is the port that a request names: by its Host alone, in exactly the
// form that its URL has, so that a page of another name cannot be this one
// (DNS rebinding).
func (q *request) find(w http.ResponseWriter, r *http.Request) (access.Port, bool) {
	if r.Method == http.MethodConnect || r.URL.Host != "" || r.URL.Scheme != "" || r.URL.User != nil || r.RequestURI == "" || r.RequestURI[0] != '/' {
		q.refuse(w, r, http.StatusBadRequest, "inbound-target", "this is a server and no proxy: the request target must be a path")
		return access.Port{}, false
	}
	host, port, _ := strings.Cut(r.Host, ":")
	p, ok := q.server.Ports.Published(host)
	if !ok || port != q.conn.port {
		q.refuse(w, r, http.StatusMisdirectedRequest, "inbound-host", "nothing is exposed under this Host")
		return access.Port{}, false
	}
	return p, true
}

// admit checks the form of a request and fills in what policy sees of it. program says
// that its token is in a header.
func (q *request) admit(r *http.Request, program bool) *form.Error {
	if r.Method == http.MethodTrace {
		return &form.Error{Status: http.StatusMethodNotAllowed, Rule: "trace", Reason: "TRACE sends a request's headers back"}
	}
	if m := form.Check(r); m != nil {
		return m
	}
	// A browser says where a request comes from. A client with the token in a header is
	// none, or could have left the origin out.
	// So is a router's client.
	origins := r.Header["Origin"]
	if own := "http://" + q.authority; q.routed == nil && (len(origins) > 1 || len(origins) == 1 && origins[0] != own || len(origins) == 0 && q.upgrade && !program) {
		return &form.Error{Status: http.StatusForbidden, Rule: "inbound-origin", Reason: "the request comes from a page of another origin"}
	}
	// Pages of the same host name at another port are of the same site, and get a
	// cookie of SameSite=Strict sent; not every request says its origin.
	if site := r.Header.Get("Sec-Fetch-Site"); !program && (site == "same-site" || site == "cross-site") {
		return &form.Error{Status: http.StatusForbidden, Rule: "inbound-origin", Reason: "the request comes from a page of another origin"}
	}
	path, _, m := form.CanonicalTarget(r)
	if m != nil {
		return m
	}
	names := form.NamesOf(r)
	if m := names.Check(r); m != nil {
		return m
	}
	if q.upgrade {
		if m := websocket.CheckRequest(r); m != nil {
			return m
		}
		q.key = r.Header.Get("Sec-Websocket-Key")
	}
	if strings.Contains(r.Header.Get("Referer"), access.Mark) {
		delete(r.Header, "Referer")
	}
	q.names = names
	q.seen = &policy.Request{
		Method: r.Method, Scheme: "http", Path: path, QueryKeys: names.Query, Headers: names.Headers, Size: r.ContentLength,
	}
	return nil
}

// event describes the request, or its connection where its form is not known, for the audit.
func (q *request) event(d policy.Decision) *audit.Event {
	class, activity := audit.ClassNetwork, audit.NetworkRefuse
	if q.seen != nil {
		class, activity = audit.ClassHTTP, audit.HTTPActivity(q.seen.Method)
	}
	to := event.To{Host: q.port.Sandbox, Port: q.port.Port}
	e := event.Decision(&q.events, q.conn.from, q.sandbox, to, class, activity, policy.PhaseInbound, d)
	e.Connection = event.TCP(event.Inbound)
	if q.routed != nil && q.routed.client.Name != "" {
		e.By(q.routed.client.Name)
	}
	if q.seen != nil {
		port, _ := strconv.Atoi(q.conn.port)
		url := audit.URL{Scheme: "http", Hostname: q.port.Host(), Port: port}
		if q.routed != nil {
			url.Hostname, url.Port = q.routed.host(), int(q.routed.Port)
		}
		event.Request(&q.events, e, url, q.seen.Path, q.seen.Method, "HTTP/1.1", q.seen.Size, q.names)
	}
	return e
}

// record writes a denial, or has it counted in another, and returns its id.
func (q *request) record(d policy.Decision) string {
	s := q.server
	s.Metrics.Decided(policy.PhaseInbound, d)
	d.Revision = cmp.Or(d.Revision, s.Revision())
	return s.Denials.Add(cmp.Or(q.port.Sandbox, q.conn.from.IP), q.event(d))
}

// refuse answers and records what no policy can allow.
func (q *request) refuse(w http.ResponseWriter, r *http.Request, status int, rule, reason string) {
	id := q.record(floor("", rule, reason))
	w.Header().Set("Connection", "close")
	if !q.server.refusals.Allow() {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	(&answer.Answer{Status: status, Reason: reason, Rule: rule, Decision: id, Remedy: cmp.Or(remedies[rule], "Change the request as the reason says."), Denied: true}).Write(w, r)
}

// remedies say what the client can do.
var remedies = map[string]string{
	"inbound-host":     "Use the URL that `sallyport sandbox expose` has printed, as it is.",
	"inbound-token":    "Open the URL that `sallyport sandbox expose` has printed, or send its token as Authorization: Bearer. Exposing the port again makes a new one.",
	"inbound-expired":  "An operator can expose the port again: sallyport sandbox expose",
	"inbound-origin":   "Open the exposed URL itself. Pages elsewhere cannot use it.",
	"router-token":     "Send the token of a client of pods.router, as Authorization: Bearer, or as the password in the router's URL.",
	"router-target":    "Name the sandbox as agent-sandbox's router is told: X-Sandbox-ID, X-Sandbox-Namespace and X-Sandbox-Port.",
	"router-sandbox":   "Wait until the sandbox is ready, and try again.",
	"router-node":      "Try again, or ask an operator to look at Sallyport's log on this node and that one.",
	"router-namespace": "An operator can add the namespace to the client's in pods.router.clients.",
	"inbound-rate":     "Wait, and send fewer requests at once.",

	"inbound-connections": "Close connections that are not used, and try again.",
}

// floor is a denial that no policy can lift.
func floor(revision, rule, reason string) policy.Decision {
	return policy.Decision{Action: policy.Deny, Rule: rule, RuleType: "floor", Reason: reason, Revision: revision}
}

// judge asks the policy.
func (q *request) judge(ctx context.Context, of policy.Sandbox) policy.Decision {
	d := q.server.Decide(ctx, policy.Input{
		Phase: policy.PhaseInbound, Sandbox: of, Protocol: policy.ProtocolHTTP,
		Destination: policy.Destination{Host: q.port.Sandbox, Port: q.port.Port}, Request: q.seen,
	})
	if d.Action != policy.Allow && d.Action != policy.Deny {
		d = floor(d.Revision, "inbound", "what comes in is allowed or denied")
	}
	return d
}

// Recheck implements live.Revocable.
func (q *request) Recheck(ctx context.Context) *live.Revoked {
	if !q.stands() {
		return q.expired()
	}
	// Its tags may be others by now.
	asked, over := context.WithTimeout(ctx, reachWithin)
	defer over()
	now, err := q.server.Waker.Whose(asked, q.port.SandboxID)
	if err != nil && q.routed != nil {
		return q.expired()
	}
	if err != nil {
		now = q.sandbox // what has gone has no published port
	}
	return live.Compare(q.judge(ctx, now), q.decision)
}

// stands reports whether the port is exposed as it was, or the client the router's.
func (q *request) stands() bool {
	if q.routed != nil {
		return q.port.Live() && q.server.Router.Client(q.routed.token).MayAsk(q.port.Owner)
	}
	p, ok := q.server.Ports.Published(q.port.Host())
	return ok && p.Digest == q.port.Digest && p.Live()
}

func (q *request) expired() *live.Revoked {
	return &live.Revoked{Decision: floor(q.server.Revision(), "inbound-expired", q.ended().Error())}
}

func (q *request) ended() error {
	if q.routed != nil {
		return errUnrouted
	}
	return errExpired
}

// Stop implements live.Revocable.
func (q *request) Stop(*live.Revoked) { q.cancel() }

// Cut implements live.Revocable.
func (q *request) Cut() { _ = q.conn.Close() }

// decide asks whose the port is and then the policy, and enters what is allowed. The sandbox's
// tags are of the epoch, too: others begin a new one. An error says that it is not there.
func (q *request) decide(asked context.Context) (d policy.Decision, err error) {
	set := q.server.Live
	set.Decide(set.Epoch(), func() (*live.Handle, live.Revocable) {
		var now policy.Sandbox
		if now, err = q.server.Waker.Whose(asked, q.port.SandboxID); err != nil {
			return nil, nil
		}
		if now.ID != q.port.SandboxID || now.Name != q.port.Sandbox {
			err = errAsleep
			return nil, nil
		}
		q.sandbox = now
		if d = q.judge(q, q.sandbox); d.Action != policy.Allow {
			return nil, nil
		}
		q.decision = d
		return &q.handle, q
	})
	return d, err
}

// carry decides on a request, has that written down, and takes it to the sandbox.
func (q *request) carry(w http.ResponseWriter, r *http.Request) {
	s := q.server
	q.client = q.Context
	q.Context, q.cancel = context.WithDeadline(q.client, q.port.Expires)
	defer q.cancel()
	asked, over := context.WithTimeout(q, wakeWithin)
	defer over()
	d, err := q.decide(asked)
	defer s.Live.Leave(&q.handle)
	if err != nil {
		q.refuse(w, r, http.StatusServiceUnavailable, "inbound-sandbox", "the sandbox is not there")
		return
	}
	if d.Action != policy.Allow {
		a := answer.Denied(d, q.record(d), "")
		if d.RuleType == "" {
			a.Remedy = "An operator can add an expose rule for it, and will want the decision id."
		}
		a.Write(w, r)
		return
	}
	e := q.event(d)
	if err := s.Recorder.Append(q, e); err != nil {
		if q.Err() != nil && errors.Is(err, q.Err()) {
			if !errors.Is(err, auditlog.ErrWithdrawn) {
				q.allowed, q.err = e, errClient
				q.complete()
			}
			panic(http.ErrAbortHandler)
		}
		s.Metrics.Unrecorded()
		s.Logger.Error("refusing a request that cannot be recorded", "sandbox", q.sandbox.Name, "error", err)
		answer.Unrecorded(e.ID()).Write(w, r)
		return
	}
	q.allowed = e
	s.Metrics.Decided(policy.PhaseInbound, d)
	defer q.complete()
	if q.far, err = q.reach(asked); err != nil {
		q.fail(w, r, err)
		return
	}
	over()
	defer q.far.Close()
	defer context.AfterFunc(q, func() { _ = q.far.Close() })()
	q.forward(w, r)
}

// fail says that an allowed request could not be carried, while that can be said.
func (q *request) fail(w http.ResponseWriter, r *http.Request, err error) {
	if q.err == nil {
		q.err = err
	}
	if q.handle.Revoked() == nil && q.client.Err() != nil {
		panic(http.ErrAbortHandler) // nobody is there
	}
	a := &answer.Answer{Status: http.StatusBadGateway, Reason: err.Error(), Decision: q.allowed.ID(), Remedy: "Look at what runs in the sandbox: it must listen on this port, on 0.0.0.0, 127.0.0.1 or ::1, and speak HTTP/1.1."}
	switch {
	case q.handle.Revoked() != nil:
		a.Status, a.Reason, a.Remedy = http.StatusForbidden, q.handle.Revoked().Error(), remedies["inbound-expired"]
		if q.routed != nil {
			a.Remedy = remedies["router-namespace"]
		}
	case errors.Is(err, errAsleep):
		a.Status, a.Remedy = http.StatusServiceUnavailable, "Try again, or ask an operator to look at Sallyport's log."
	case errors.Is(err, errWakes):
		a.Status, a.Retry, a.Remedy = http.StatusServiceUnavailable, busyRetry, "Wait until others have started, then try again."
	case errors.Is(err, ErrLoopbackBusy):
		a.Status, a.Retry = http.StatusServiceUnavailable, busyRetry
		a.Remedy = "Send fewer requests at once, or have the program in the sandbox listen on 0.0.0.0."
	case errors.Is(err, ErrLoopbackEarlier), errors.Is(err, errLoopback):
		a.Remedy = "Have the program in the sandbox listen on 0.0.0.0, or stop the sandbox and use it again."
	}
	w.Header().Set("Connection", "close")
	q.status = a.Status
	a.Write(w, r)
}

// complete writes the completion of an allowed request.
func (q *request) complete() {
	err := q.err
	if q.bad.Load() {
		err = websocket.ErrFrames
	}
	if why := q.handle.Revoked(); why != nil && (err != nil || q.switched) {
		err = why
	} else if err == nil && q.switched && !q.port.Live() {
		err = q.expired()
	}
	c := event.Completion(&q.events, q.allowed.ActivityID, err, explain(err))
	event.Finished(&q.events, c, time.Since(q.started), q.status, q.in.Load(), q.out.Load(), q.out.Load())
	q.server.Enqueue(c)
	q.server.Metrics.Finished(q.status, time.Since(q.started))
}

// explain says what ended a request in words of our own.
func explain(err error) string {
	if gone, ok := errors.AsType[*live.Revoked](err); ok {
		return gone.Error()
	}
	for _, known := range append([]error{errAsleep, errWakes, errUnanswered, errUnswitched, errClient, websocket.ErrFrames}, reachFaults...) {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return "the connection broke"
}
