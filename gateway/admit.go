package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"sallyport/gateway/bodies"
	"sallyport/gateway/form"
	"sallyport/gateway/grpc"
	"sallyport/gateway/websocket"
	"sallyport/policy"
	reqbody "sallyport/policy/body"
)

// admitted is a request as policy sees it.
type admitted struct {
	seen    *policy.Request
	names   form.Names
	rawPath string // as it came, still encoded
	upgrade bool   // it is a WebSocket's handshake
	key     string // of that

	// Set where the policy has to see the request's body.
	unsuited error            // why it cannot
	body     *bodies.Buffered // nil where that is known without
}

// admit checks the form of a request, whatever the policy says, and makes of it the
// one that may leave. It returns nil where it has answered the request. It ends the
// request's turn before it waits for anything.
func (q *request) admit(w http.ResponseWriter, r *http.Request) *http.Request {
	q.out.ResponseWriter, q.out.in = w, &q.sent.read
	if q.streamed = r.ProtoMajor == 2; q.streamed && grpc.IsCall(r) {
		q.out.messages = new(grpc.Messages)
	}
	if q.answer != nil {
		q.turn.End()
		w.Header().Set("Connection", "close")
		if a := q.refusedWith(r, policy.Decision{Action: policy.Deny, Reason: q.answer.Reason}); a != nil {
			a.Write(w, r)
			return nil
		}
		q.answer.Write(w, r)
		return nil
	}
	q.out.tunnel = websocket.FromHTTP2(w, r)
	form.DropReserved(r.Header)
	form.DropReserved(r.Trailer)
	q.describe(r)
	m := q.check(r)
	q.turn.End()
	if q.valid != nil && !q.valid() {
		// The connection may be older than the client's removal.
		m = &form.Error{Status: http.StatusForbidden, Rule: "client", Reason: errInvalid.Error()}
	}
	if m != nil {
		q.reject(w, r, m)
		return nil
	}
	if q.refused {
		w.Header().Set("Connection", "close")
		d := q.gateway.unlisted(q.Context, q.peer, q.target)
		if a := q.refusedWith(r, d); a != nil {
			a.Write(w, r)
			return nil
		}
		q.deny(r, d).Write(w, r)
		return nil
	}
	r.URL.Scheme, r.URL.Host = q.scheme(), q.authority
	out := r.WithContext(q)
	q.sent.take(r, out)
	q.sent.wait(r, q.gateway.StallTimeout)
	if m := q.readBody(w, out); m != nil {
		q.reject(w, r, m)
		return nil
	}
	return out
}

// reject answers a request that is refused for its form. On HTTP/1.1 its connection
// ends; other streams of HTTP/2 have no part in it.
func (q *request) reject(w http.ResponseWriter, r *http.Request, m *form.Error) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
	q.refuse(r, m).Write(w, r)
}

// describe fills in what policy sees of a request, all but the path.
func (q *request) describe(r *http.Request) {
	q.form.names = form.NamesOf(r)
	q.form.seen = &policy.Request{
		Method:    r.Method,
		Scheme:    q.scheme(),
		Path:      r.URL.Path,
		QueryKeys: q.form.names.Query,
		Headers:   q.form.names.Headers,
		Size:      r.ContentLength,
	}
}

// check checks the form of a request and fills in its path.
func (q *request) check(r *http.Request) *form.Error {
	switch r.Method {
	case http.MethodConnect:
		return &form.Error{Status: http.StatusMethodNotAllowed, Rule: "nested-connect", Reason: "CONNECT inside a connection that is already one"}
	case http.MethodTrace:
		return &form.Error{Status: http.StatusMethodNotAllowed, Rule: "trace", Reason: "TRACE sends a request's headers back, injected ones too"}
	}
	if m := form.Check(r); m != nil {
		return m
	}
	if r.TLS == nil && r.ProtoMajor == 2 && q.tls() {
		return &form.Error{Status: http.StatusMisdirectedRequest, Rule: "scheme", Reason: "the request's scheme is not the connection's"}
	}
	if r.URL.User != nil {
		return &form.Error{Status: http.StatusBadRequest, Rule: "userinfo", Reason: "the request target has user information in it"}
	}
	if m := q.checkHost(r); m != nil {
		return m
	}
	path, raw, m := form.CanonicalTarget(r)
	if m != nil {
		return m
	}
	q.form.rawPath = raw
	if m := q.form.names.Check(r); m != nil {
		return m
	}
	if q.form.upgrade = form.IsWebSocket(r.Header); q.form.upgrade {
		if m := websocket.CheckRequest(r); m != nil {
			return m
		}
		q.form.key = r.Header.Get("Sec-Websocket-Key")
	}
	q.form.seen.Path = path
	return nil
}

// checkHost checks that a request is for the host that the connection is for.
func (q *request) checkHost(r *http.Request) *form.Error {
	if r.URL.Scheme != "" && !strings.EqualFold(r.URL.Scheme, q.scheme()) {
		return &form.Error{Status: http.StatusMisdirectedRequest, Rule: "scheme", Reason: "the request target's scheme is not the connection's"}
	}
	if r.Host == q.authority && r.Host != "" {
		return nil
	}
	host, port, err := form.ParseAuthority(r.Host)
	if err != nil {
		return &form.Error{Status: http.StatusBadRequest, Rule: "host", Reason: "bad Host: " + err.Error()}
	}
	if q.refused && q.host == "" {
		named := *q.session
		named.target = named.target.to(host)
		q.session = &named
		return nil
	}
	if host != q.host || port != 0 && port != q.port {
		return &form.Error{Status: http.StatusMisdirectedRequest, Rule: "host", Reason: fmt.Sprintf("the request is for %s but its connection is for %s", r.Host, form.JoinAuthority(q.host, q.port, q.tls()))}
	}
	return nil
}

// unsuited says why a request has no body that every reader takes for JSON, or nil.
func unsuited(r *http.Request) error {
	return reqbody.Unsuited(r.Header, r.Body == nil || r.Body == http.NoBody)
}

// readBody reads the body of a request where the policy has to see it. The error that
// it returns refuses the request for how the body came: its content is for the policy to
// judge.
func (q *request) readBody(w http.ResponseWriter, r *http.Request) *form.Error {
	g := q.gateway
	if g.bodyPolicy == nil {
		return nil
	}
	need := g.bodyPolicy.Need(q.input())
	if need.Max == 0 {
		return nil
	}
	if q.form.unsuited = unsuited(r); q.form.unsuited != nil {
		return nil
	}
	if r.ContentLength > need.Max {
		q.form.unsuited = policy.TooLong(need.Max)
		return nil
	}
	q.form.body = bodies.NewBuffered(g.bodies, q.identity.ID, &q.sent.read)
	late, stop := deadline(w, r, g.HandshakeTimeout)
	err := q.form.body.Fill(r.Body, need.Max)
	stop()
	switch {
	case err == nil:
	case errors.Is(err, bodies.ErrSandboxFull):
		w.Header().Set("Retry-After", "1")
		return &form.Error{Status: http.StatusTooManyRequests, Rule: "bodies", Reason: err.Error()}
	case errors.Is(err, bodies.ErrFull):
		w.Header().Set("Retry-After", "1")
		return &form.Error{Status: http.StatusServiceUnavailable, Rule: "bodies", Reason: err.Error()}
	case late.Load() || errors.Is(err, os.ErrDeadlineExceeded):
		return &form.Error{Status: http.StatusRequestTimeout, Rule: "slow-body", Reason: "the body, which the policy has to see, did not come in time"}
	default:
		return &form.Error{Status: http.StatusBadRequest, Rule: "body", Reason: "the body, which the policy has to see, broke off or is not framed as it should be"}
	}
	q.sent.read.Store(0) // from here on by what leaves
	body := r.Body
	r.Body = q.form.body
	delete(r.Header, "Expect") // it is here
	if int64(len(q.form.body.Bytes())) > need.Max {
		q.form.unsuited = policy.TooLong(need.Max) // where that is not enforced, all of it leaves
		q.form.body.Continue(body)
		return nil
	}
	if r.Trailer == nil {
		r.ContentLength = int64(len(q.form.body.Bytes()))
	}
	q.form.seen.Size = int64(len(q.form.body.Bytes()))
	return nil
}

// deadline breaks the reading of a body off, and says that it has, unless it is
// stopped before d is over.
func deadline(w http.ResponseWriter, r *http.Request, d time.Duration) (late *atomic.Bool, stop func()) {
	late = new(atomic.Bool)
	if r.ProtoMajor == 2 {
		control := http.NewResponseController(w)
		if control.SetReadDeadline(time.Now().Add(d)) == nil {
			return late, func() { _ = control.SetReadDeadline(time.Time{}) }
		}
	}
	body := r.Body
	t := time.AfterFunc(d, func() {
		late.Store(true)
		_ = body.Close()
	})
	return late, func() { t.Stop() }
}
