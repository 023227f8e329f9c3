package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"sallyport/gateway/answer"
	"sallyport/gateway/bodies"
	"sallyport/gateway/event"
	"sallyport/gateway/grpc"
	"sallyport/gateway/live"
	"sallyport/gateway/sniff"
	"sallyport/internal/quota"
	"sallyport/policy"
	"sallyport/policy/approval"
)

var (
	errHeld    = errors.New("too many requests wait for approval")
	errUnasked = errors.New("no operator can be asked now")
)

// pollAfter is how long a client waits before it sends a request again, in seconds.
const pollAfter = 5

// hold is one request or connection that needs approval.
type hold struct {
	gateway  *Gateway
	peer     *peer
	decide   func(context.Context) policy.Decision
	subject  func(policy.Decision) approval.Subject
	expires  time.Time
	gone     <-chan struct{} // closed when the client may have gone; if nil, the context tells
	broken   func() bool     // reports whether the client has gone
	settings policy.Approvals
	poll     bool
	epoch    uint64 // of the last decision
}

func (g *Gateway) hold(p *peer, d policy.Decision) *hold {
	h := &hold{gateway: g, peer: p}
	if d.Approvals != nil {
		h.settings = *d.Approvals
	}
	h.settings = h.settings.Defaulted()
	h.poll = h.settings.Answer == policy.AnswerPoll
	h.expires = time.Now().Add(time.Duration(h.settings.Timeout))
	return h
}

// wait asks operators until one answers, the client goes or the question expires. It
// returns the policy's decision of that moment. If the policy no longer requires an
// approval, the verdict is zero.
func (h *hold) wait(ctx context.Context, d policy.Decision) (policy.Decision, approval.Verdict, error) {
	g := h.gateway
	g.metrics.Held.Inc()
	defer g.metrics.Held.Dec()
	var id string
	var woken <-chan struct{}
	stop := func() {}
	drop := func() {
		stop()
		if id != "" {
			g.Approvals.Withdraw(h.peer.identity.ID, id)
		}
		id, woken, stop = "", nil, func() {}
	}
	defer func() { drop() }()
	for {
		changed := g.holds.changed() // before the decision, so that no change is missed
		h.epoch = g.live.Epoch()
		if now := h.decide(ctx); now.Action != policy.Approve {
			return now, approval.Verdict{}, ctx.Err()
		} else {
			if now.Revision != d.Revision || now.Rule != d.Rule || !reflect.DeepEqual(now.Inject, d.Inject) {
				drop()
			}
			d = now // a rule may depend on the time of day
		}
		v, err := g.Approvals.Ask(ctx, approval.Question{
			Subject: h.subject(d), Reason: d.Reason, ID: id, Held: !h.poll, Timeout: max(time.Until(h.expires), 0),
		})
		if err != nil {
			return d, v, err
		}
		if v.State != approval.Pending || h.poll {
			id = "" // nothing is left to withdraw
			return d, v, nil
		}
		if v.ID != id {
			drop()
			id = v.ID
			woken, stop = g.Approvals.Watch(id)
			continue // it may have been answered before it was watched
		}
		late := time.NewTimer(min(max(time.Until(v.Expires), 0)+10*time.Millisecond, heldFallback*time.Second))
		select {
		case <-woken:
		case <-changed:
		case <-late.C:
		case <-h.gone:
			h.gone = nil
			if h.broken() {
				err = errClient
			}
		case <-g.holds.over:
			err = errClosed
		case <-ctx.Done():
			err = ctx.Err()
		}
		late.Stop()
		if err != nil {
			return d, approval.Verdict{}, err
		}
	}
}

// approved is the decision on a request that an operator approved.
func approved(d policy.Decision, v approval.Verdict, action policy.Action) policy.Decision {
	span := string(v.Span)
	if span == "" {
		span = "once"
	}
	d.Action, d.Approval = action, &policy.Approval{ID: v.ID, Operator: v.Operator.Name, UID: v.Operator.UID, Login: v.Operator.Login, Span: span}
	d.Reason = "approved by " + v.Operator.Name + " (" + span + "): " + d.Reason
	return d
}

// unapproved is the denial of a request that no operator approved.
func (h *hold) unapproved(d policy.Decision, v approval.Verdict, err error) policy.Decision {
	d.Action, d.Inject, d.Upstream = policy.Deny, nil, nil
	if v.ID != "" {
		d.Approval = &policy.Approval{ID: v.ID, Operator: v.Operator.Name, UID: v.Operator.UID, Login: v.Operator.Login}
	}
	switch {
	case err != nil:
		d.Reason += "; " + errUnasked.Error()
	case v.State == approval.Denied:
		d.Reason += "; denied by " + v.Operator.Name
		if v.Reason != "" {
			d.Reason += ": " + v.Reason
		}
	case v.State == approval.Expired:
		d.Reason += "; no operator has approved it in " + time.Duration(h.settings.Timeout).String()
	case v.State == approval.Refused:
		d.Reason += "; " + v.Reason
	}
	return d
}

// approvalOf combines a connection's decision with that of a request that is allowed.
func approvalOf(connection, request policy.Decision) policy.Decision {
	switch connection.Action {
	case policy.Allow:
		return request
	case policy.Approve:
		request.Action, request.Rule, request.RuleType = policy.Approve, connection.Rule, connection.RuleType
		request.Reason, request.Approvals = connection.Reason, connection.Approvals
		return request
	}
	return connection
}

// approve holds a request until an operator has answered, or tells the client to send it
// again later. If the request must not leave, approve returns the answer for the client.
func (q *request) approve(r *http.Request, d policy.Decision) (policy.Decision, *answer.Answer) {
	g := q.gateway
	if len(d.Inject) > 0 && !q.tls() {
		return d, q.deny(r, floor(d, "plain-credential", "a credential goes over TLS only: use https"))
	}
	h := g.hold(q.peer, d)
	if !g.holds.places.Enter(q.identity.ID, q.identity.Owner) {
		return d, q.deny(r, h.unapproved(d, approval.Verdict{State: approval.Refused, Reason: errHeld.Error()}, nil))
	}
	defer g.holds.places.Leave(q.identity.ID, q.identity.Owner)
	ctx, cancel := context.WithDeadline(r.Context(), h.expires.Add(time.Second)) // the store itself ends the question
	defer cancel()
	if within, ok := grpc.Timeout(r); ok {
		ctx, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	query, body, length := "", bodies.Digest(nil), int64(0)
	if r.URL.RawQuery != "" || r.URL.ForceQuery {
		query = bodies.Digest([]byte(r.URL.RawQuery))
	}
	h.decide = func(ctx context.Context) policy.Decision {
		if q.valid != nil && !q.valid() {
			return floor(d, "client", "the client's token is no longer good")
		}
		return q.ask(ctx)
	}
	h.subject = func(d policy.Decision) approval.Subject {
		s := q.target.subject(q.peer, d)
		s.Method, s.Path, s.Target, s.QueryKeys, s.Query = r.Method, q.form.seen.Path, q.pathSent(r, d), event.ClipAll(q.form.names.Query), query
		s.Body, s.Length = body, length
		return s
	}
	var v approval.Verdict
	var err error
	switch {
	case q.form.body != nil: // already read; the same bytes are sent
		body, length = q.form.body.Digest()
	case q.sent.ReadCloser != nil:
		body, length = "", -1
		// If an approval for a period covers the request, its body is not read ahead.
		h.epoch = g.live.Epoch()
		if now := h.decide(ctx); now.Action == policy.Approve {
			d = now
			v, err = g.Approvals.Ask(ctx, approval.Question{Subject: h.subject(d), Peek: true})
		}
		if err == nil && v.State != approval.Approved {
			body, length, err = q.readAhead(ctx, h)
			delete(r.Header, "Expect") // the client has been told to continue
		}
	}
	if err == nil && v.State != approval.Approved {
		d, v, err = h.wait(ctx, d)
	}
	switch {
	case err == nil && v.State == "":
		if d.Action == policy.Allow {
			d = q.askPolicy(r.Context())
		}
		return d, nil // no approval is needed any more
	case err == nil && v.State == approval.Approved:
		grpc.SetTimeout(ctx, r)
		return q.enterApproved(r.Context(), approved(d, v, policy.Allow), h.epoch), nil
	case err == nil && v.State == approval.Pending:
		return d, q.later(r, d, v)
	case r.Context().Err() != nil, errors.Is(err, bodies.ErrBroken), errors.Is(err, errClient):
		return d, failed(errClient, "")
	case errors.Is(err, errClosed):
		return d, failed(errClosed, "")
	case errors.Is(err, context.DeadlineExceeded):
		v, err = approval.Verdict{State: approval.Expired}, nil
	}
	if err != nil {
		g.Logger.Warn("no operator could be asked", "sandbox", q.identity.Name, "error", err)
	}
	a := q.deny(r, h.unapproved(d, v, err))
	a.Late = ctx.Err() != nil && grpc.IsCall(r)
	return d, a
}

// subject describes a connection to the operator. A request adds its own fields.
func (t target) subject(p *peer, d policy.Decision) approval.Subject {
	protocol := t.protocol
	if protocol.IsOther() && len(d.Inject) == 0 {
		protocol = policy.ProtocolOther // bytes are approved whatever they look like
	}
	s := approval.Subject{
		Sandbox: p.identity.Name, SandboxID: p.identity.ID, Session: p.identity.Session,
		Protocol: string(protocol), Host: t.host, Port: t.port,
		Rule: d.Rule, RuleType: d.RuleType, Policy: d.Revision,
	}
	for _, i := range d.Inject {
		s.Credentials = append(s.Credentials, i.Credential)
	}
	slices.Sort(s.Credentials)
	return s
}

// readAhead reads the body up to the limit within which an approval covers its content.
func (q *request) readAhead(ctx context.Context, h *hold) (string, int64, error) {
	ahead := bodies.NewReadAhead(q.sent.ReadCloser, int(h.settings.Body), q.gateway.bodies, q.identity.ID)
	q.grant.ahead, q.sent.ReadCloser = ahead, ahead
	h.gone, h.broken = ahead.Done, ahead.Broken
	return ahead.Whole(ctx)
}

// later answers that an operator is asked and that the client must send the request again.
func (q *request) later(r *http.Request, d policy.Decision, v approval.Verdict) *answer.Answer {
	d.Inject, d.Upstream = nil, nil
	d.Approval = &policy.Approval{ID: v.ID}
	a := q.deny(r, d)
	a.Status, a.Retry = http.StatusPreconditionRequired, pollAfter
	a.Remedy = fmt.Sprintf("An operator has been asked. Send the same request again every %d seconds or more, until the answer changes. If no operator answers before %s, the request is denied.",
		pollAfter, v.Expires.UTC().Format(time.RFC3339))
	return a
}

// tunnelApproved tunnels a connection after an operator has approved it.
func (g *Gateway) tunnelApproved(ctx context.Context, c *connection, d policy.Decision) {
	d, epoch := g.approveConnection(ctx, c, d)
	var t *tunnel
	g.live.Decide(epoch, func() (*live.Handle, live.Revocable) {
		if t != nil { // the policy has changed since
			if why := live.Compare(g.connect(ctx, c.peer, c.target), d); why != nil {
				d = why.Decision
				if d.Action == policy.Approve || d.Action == policy.Tunnel {
					d = floor(d, "changed", "the policy has changed meanwhile: try again")
				}
			}
		}
		if d.Action != policy.Tunnel {
			return nil, nil
		}
		t = &tunnel{connection: c, decision: d, seen: c.target}
		return &t.handle, t
	})
	switch d.Action {
	case policy.Tunnel:
		g.tunnel(ctx, t)
	case "":
		_ = c.Close()
	default:
		g.deny(c, d)
	}
}

// enterApproved registers an approved request as live, unless the policy has changed since.
func (q *request) enterApproved(ctx context.Context, d policy.Decision, epoch uint64) policy.Decision {
	changed := false
	q.gateway.live.Decide(epoch, func() (*live.Handle, live.Revocable) {
		if changed {
			now := q.ask(ctx)
			switch {
			case now.Action == policy.Allow:
				d = q.askPolicy(ctx)
				return nil, nil // askPolicy has registered it
			case now.Action != policy.Approve || now.Revision != d.Revision || now.Rule != d.Rule || !reflect.DeepEqual(now.Inject, d.Inject):
				d = now
				return nil, nil
			}
		}
		changed = true
		q.grant.decision = d
		return &q.grant.handle, q
	})
	return d
}

// approveConnection holds a connection that is not read until an operator has answered.
// It returns the decision and its policy epoch, both zero if the client has gone.
func (g *Gateway) approveConnection(ctx context.Context, c *connection, d policy.Decision) (policy.Decision, uint64) {
	h := g.hold(c.peer, d)
	h.poll = false // no answer can be sent on it
	if !g.holds.places.Enter(c.identity.ID, c.identity.Owner) {
		return h.unapproved(d, approval.Verdict{State: approval.Refused, Reason: errHeld.Error()}, nil), 0
	}
	defer g.holds.places.Leave(c.identity.ID, c.identity.Owner)
	ctx, cancel := context.WithDeadline(ctx, h.expires.Add(time.Second))
	defer cancel()
	h.decide = func(ctx context.Context) policy.Decision { return g.connect(ctx, c.peer, c.target) }
	h.subject = func(d policy.Decision) approval.Subject { return c.target.subject(c.peer, d) }
	ended := make(chan struct{})
	var broken bool
	go func() {
		defer close(ended)
		var err error
		for err == nil {
			err = c.More()
		}
		// A client may close its sending side after the first bytes and still wait.
		broken = !errors.Is(err, sniff.ErrTooLong) && !(errors.Is(err, io.EOF) && len(c.Seen) > 0)
	}()
	h.gone, h.broken = ended, func() bool { return broken }
	d, v, err := h.wait(ctx, d)
	_ = c.SetReadDeadline(time.Unix(1, 0))
	<-ended
	_ = c.SetReadDeadline(time.Time{})
	switch {
	case err == nil && v.State == "":
		return d, h.epoch
	case err == nil && v.State == approval.Approved:
		return approved(d, v, policy.Tunnel), h.epoch
	case errors.Is(err, errClient), errors.Is(err, errClosed), errors.Is(err, context.Canceled):
		return policy.Decision{}, 0
	case errors.Is(err, context.DeadlineExceeded):
		v, err = approval.Verdict{State: approval.Expired}, nil
	}
	return h.unapproved(d, v, err), 0
}

// Limits of requests and connections that wait for operators. The approval store limits
// its questions separately. Held bodies count against the budget in package bodies.
const (
	maxHeld      = 32  // requests and connections of a sandbox
	maxHeldAll   = 512 // of all
	leastHeld    = 2   // of a sandbox, whatever the others hold
	heldFallback = 30  // seconds between questions to the store without a change
)

// holds counts the requests and connections that wait.
type holds struct {
	places *quota.Places

	mu    sync.Mutex
	again chan struct{} // closed when the policy has changed
	over  chan struct{} // closed when the gateway closes
	ended bool
}

func (h *holds) begin() {
	h.places = quota.New(maxHeldAll, maxHeld).Least(leastHeld)
	h.again, h.over = make(chan struct{}), make(chan struct{})
}

// end releases all that wait, without an answer.
func (h *holds) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.ended = true
		close(h.over)
	}
}

// changed returns a channel that is closed at the next change of the policy.
func (h *holds) changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.again
}

// reconsider makes every hold ask the policy again.
func (h *holds) reconsider() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.again)
	h.again = make(chan struct{})
}
