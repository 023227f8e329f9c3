package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/bodies"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/scrub"
	"sallyport/gateway/credential/sent"
	"sallyport/gateway/event"
	"sallyport/gateway/form"
	"sallyport/gateway/limits"
	"sallyport/gateway/live"
	"sallyport/gateway/upstream"
	"sallyport/gateway/wire"
	"sallyport/policy"
	"sallyport/policy/approval"
)

// speak has a connection's protocol spoken, for which an egressAuth rule logs in.
func (g *Gateway) speak(ctx context.Context, c *connection) {
	defer c.Close()
	h := g.Handlers[c.protocol]
	if h == nil {
		g.deny(c, floor(policy.Decision{}, "protocol", "the gateway does not speak "+string(c.protocol)))
		return
	}
	h.Serve(ctx, spoken{c})
}

// spoken is a connection whose protocol a wire.Handler speaks.
type spoken struct{ *connection }

// Destination implements wire.Conn.
func (s spoken) Destination() policy.Destination {
	return policy.Destination{Host: s.host, Port: s.port}
}

// Sandbox implements wire.Conn.
func (s spoken) Sandbox() string { return s.identity.ID }

// InTLS implements wire.Conn.
func (s spoken) InTLS() bool { return s.within }

// Secure implements wire.Conn.
func (s spoken) Secure(protocols ...string) (net.Conn, error) {
	if inside := s.gateway.endTLS(s.connection, protocols...); inside != nil {
		return inside, nil
	}
	return nil, errClient
}

// HandshakeTimeout implements wire.Conn.
func (s spoken) HandshakeTimeout() time.Duration { return s.gateway.HandshakeTimeout }

// Reserve implements wire.Conn.
func (s spoken) Reserve(n int64) (func(), error) {
	id := s.identity.ID
	if err := s.gateway.bodies.Take(id, n); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { s.gateway.bodies.Give(id, n) }), nil
}

// Go implements wire.Conn.
func (s spoken) Go(work *sync.WaitGroup, f func()) {
	work.Go(func() {
		defer s.survive()
		f()
	})
}

// Refuse implements wire.Conn.
func (s spoken) Refuse(r wire.Request, rule, reason string) *wire.Denied {
	return s.ask(s.life.ctx, r).deny(floor(policy.Decision{Revision: s.gateway.Revision()}, rule, reason))
}

// Ask implements wire.Conn.
func (s spoken) Ask(ctx context.Context, r wire.Request) (wire.Grant, error) {
	q := s.ask(ctx, r)
	g := s.gateway
	d, epoch := q.decide(ctx), uint64(0)
	if d.Action == policy.Approve && g.Approvals != nil {
		if d, epoch = q.approve(ctx, d); d.Action == "" {
			q.cancel()
			return nil, cmp.Or(ctx.Err(), errClient)
		}
		d = q.enter(ctx, d, epoch)
	}
	if d.Action == policy.Allow {
		q.meter, d = g.takeLimits(s.identity.Sandbox, g.unpricedTunnel(d), -1)
	}
	if d.Action != policy.Allow {
		g.live.Leave(&q.handle)
		return nil, q.deny(d)
	}
	q.meter.Unreadable()
	return q.record(ctx, d)
}

// exchange is one request on a connection whose protocol is spoken, from its decision to
// its completion.
type exchange struct {
	spoken
	asked    wire.Request
	seen     *policy.Request
	ctx      context.Context
	cancel   context.CancelFunc
	started  time.Time
	events   audit.Exchange
	decision policy.Decision
	handle   live.Handle
	meter    *limits.Meter
	allowed  *audit.Event
	used     []audit.CredentialUse
	sentWith []*sent.Use
	lost     map[string]int
	leased   leased
	in, out  atomic.Int64
	finds    finds

	mu    sync.Mutex
	ended error // that the gateway has ended it with
	far   net.Conn
}

func (s spoken) ask(ctx context.Context, r wire.Request) *exchange {
	q := &exchange{spoken: s, asked: r, started: time.Now()}
	q.finds.on, q.finds.from = s.gateway, &s.session
	q.seen = &policy.Request{Method: r.Method, Scheme: string(s.protocol), Path: r.Path, Size: -1}
	q.ctx, q.cancel = context.WithCancel(ctx)
	return q
}

// judge decides on the request by the policy of now.
func (q *exchange) judge(ctx context.Context) policy.Decision {
	g := q.gateway
	connection := g.connect(ctx, q.peer, q.target)
	if !q.readable(connection) {
		return policy.Decision{Action: policy.Deny, Rule: connection.Rule, RuleType: connection.RuleType, Reason: connection.Reason, Revision: connection.Revision}
	}
	if q.valid != nil && !q.valid() {
		return floor(policy.Decision{Revision: g.Revision()}, "client", errInvalid.Error())
	}
	d := g.decide(ctx, policy.Input{
		Phase: policy.PhaseRequest, Sandbox: q.identity.Sandbox, Destination: q.Destination(), Protocol: q.protocol, Request: q.seen,
	})
	if (d.Action == policy.Allow || d.Action == policy.Approve) && len(d.Inject) != 1 {
		return floor(d, "login", "no egressAuth rule logs in for this, and the gateway cannot carry it without")
	}
	if q.asks && d.Action == policy.Allow {
		d = approvalOf(connection, d)
	}
	return d
}

// decide decides on the request, and enters it where it is allowed.
func (q *exchange) decide(ctx context.Context) (d policy.Decision) {
	set := &q.gateway.live
	set.Decide(set.Epoch(), func() (*live.Handle, live.Revocable) {
		if d = q.judge(ctx); d.Action != policy.Allow {
			return nil, nil
		}
		q.decision = d
		return &q.handle, q
	})
	return d
}

// enter enters a request that an operator has approved, unless the policy has changed.
func (q *exchange) enter(ctx context.Context, d policy.Decision, epoch uint64) policy.Decision {
	if d.Action != policy.Allow {
		return d
	}
	first := true
	q.gateway.live.Decide(epoch, func() (*live.Handle, live.Revocable) {
		if !first {
			if why := live.Compare(q.judge(ctx), d); why != nil {
				d = floor(why.Decision, "changed", "the policy has changed meanwhile: try again")
				return nil, nil
			}
		}
		first = false
		q.decision = d
		return &q.handle, q
	})
	return d
}

// maxShown bounds what an operator is shown of a command, in bytes.
const maxShown = 2 << 10

// approve holds the request until an operator has answered. A zero decision: the sandbox
// has gone.
func (q *exchange) approve(ctx context.Context, d policy.Decision) (policy.Decision, uint64) {
	g := q.gateway
	if d = g.checkLimits(q.identity.Sandbox, d, -1); d.Action != policy.Approve {
		return d, 0
	}
	h := g.hold(q.peer, d)
	h.poll = false // the client waits, or leaves
	if !g.holds.places.Enter(q.identity.ID, q.identity.Owner) {
		return h.unapproved(d, approval.Verdict{State: approval.Refused, Reason: errHeld.Error()}, nil), 0
	}
	defer g.holds.places.Leave(q.identity.ID, q.identity.Owner)
	within, cancel := context.WithDeadline(ctx, h.expires.Add(time.Second))
	defer cancel()
	h.decide = q.judge
	h.subject = func(d policy.Decision) approval.Subject {
		s := q.target.subject(q.peer, d)
		s.Method, s.Path, s.Target = q.asked.Method, q.asked.Path, q.asked.Path
		if q.asked.Command != "" {
			s.Target = q.asked.Command[:min(len(q.asked.Command), maxShown)]
		}
		// The bytes on the channel are no part of the question, all of the command is.
		s.Body = bodies.Digest([]byte(q.asked.Command))
		return s
	}
	d, v, err := h.wait(within, d)
	switch {
	case err == nil && v.State == "":
		return d, h.epoch // which asks for no operator any more
	case err == nil && v.State == approval.Approved:
		return approved(d, v, policy.Allow), h.epoch
	case ctx.Err() != nil, errors.Is(err, errClient), errors.Is(err, errClosed):
		return policy.Decision{}, 0
	case errors.Is(err, context.DeadlineExceeded):
		v, err = approval.Verdict{State: approval.Expired}, nil
	}
	return h.unapproved(d, v, err), 0
}

// event describes the request for the audit.
func (q *exchange) event(d policy.Decision) *audit.Event {
	e := decision(&q.events, q.peer, q.target, audit.ClassHTTP, audit.HTTPActivity(q.asked.Method), policy.PhaseRequest, d)
	url := audit.URL{Scheme: q.seen.Scheme, Hostname: q.host, Port: int(q.port)}
	event.Request(&q.events, e, url, q.asked.Path, q.asked.Method, "", -1, form.Names{})
	return e
}

// deny records a denial.
func (q *exchange) deny(d policy.Decision) *wire.Denied {
	q.cancel()
	d.Revision = cmp.Or(d.Revision, q.gateway.Revision())
	id := q.gateway.denial(q.peer, q.target, q.event(d))
	q.gateway.metrics.Decided(policy.PhaseRequest, d)
	return &wire.Denied{ID: id, Reason: d.Reason}
}

// record has the decision on disk before anything is done about it.
func (q *exchange) record(ctx context.Context, d policy.Decision) (wire.Grant, error) {
	g := q.gateway
	e := q.event(d)
	err := g.Recorder.Append(ctx, e)
	if err == nil {
		q.allowed = e
		q.recorded.Store(true)
		g.metrics.Decided(policy.PhaseRequest, d)
		return q, nil
	}
	if gone := ctx.Err(); gone != nil && errors.Is(err, gone) {
		if !errors.Is(err, auditlog.ErrWithdrawn) {
			q.allowed = e // it may be in the log: say how it ended
			q.recorded.Store(true)
		}
		q.End(errClient)
		return nil, errClient
	}
	q.End(err)
	g.metrics.Unrecorded()
	g.Logger.Error("refusing a request that cannot be recorded", "sandbox", q.identity.Name, "error", err)
	return nil, &wire.Denied{ID: e.ID(), Reason: "the decision could not be recorded"}
}

// ID implements wire.Grant.
func (q *exchange) ID() string { return q.allowed.ID() }

// Context implements wire.Grant.
func (q *exchange) Context() context.Context { return q.ctx }

// Injection implements wire.Grant.
func (q *exchange) Injection() policy.Injection { return q.decision.Inject[0] }

// Lease implements wire.Grant.
func (q *exchange) Lease(ctx context.Context) (map[string]credential.Secret, error) {
	i := q.Injection()
	if err := q.secrets.Load(ctx); err != nil {
		return nil, &leaseError{credential: i.Credential, err: err}
	}
	// Verified: the handler sends nothing of it before it has verified the server.
	to := credential.Binding{Host: q.host, Port: q.port, Verified: true, Sandbox: q.identity.ID, Policy: q.decision.Revision}
	lease, err := q.gateway.Broker.Lease(ctx, i.Credential, to)
	if err != nil {
		q.used = append(q.used, audit.CredentialUse{Name: i.Credential})
		return nil, &leaseError{credential: i.Credential, err: err}
	}
	q.used = append(q.used, audit.CredentialUse{Lease: lease.Accessor, Name: lease.Name, Version: lease.Version})
	fields, err := lease.LogIn(i.Inject)
	if err != nil {
		return nil, &leaseError{credential: i.Credential, err: err}
	}
	use, lost, err := q.secrets.Add(ctx, lease)
	if err != nil {
		return nil, &leaseError{credential: i.Credential, err: err}
	}
	q.sentWith = append(q.sentWith, use)
	q.lost = lost
	q.leased = leased{i.Credential, lease.Version, to, lease.Material().Expires}
	for _, n := range lost {
		q.gateway.metrics.Forgotten.Add(float64(n))
	}
	return fields, nil
}

// Dial implements wire.Grant.
func (q *exchange) Dial(ctx context.Context) (net.Conn, error) {
	far, err := q.gateway.Upstreams.Dial(ctx, q.route(q.peer, q.decision, "", false))
	if err != nil {
		return nil, err
	}
	if err := q.reach(far); err != nil {
		return nil, err
	}
	return far, nil
}

// reach takes the far end, unless the request has been ended meanwhile.
func (q *exchange) reach(far net.Conn) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if why := q.handle.Revoked(); why != nil {
		_ = far.Close()
		return why
	}
	q.far = far
	return nil
}

// DialTLS implements wire.Grant.
func (q *exchange) DialTLS(ctx context.Context, at netip.Addr, ask func(net.Conn) error) (*tls.Conn, error) {
	far, err := q.gateway.Upstreams.DialTLS(ctx, q.route(q.peer, q.decision, "", true), at, ask)
	if err != nil {
		return nil, err
	}
	if err := q.reach(far); err != nil {
		return nil, err
	}
	return far, nil
}

// Sent implements wire.Grant.
func (q *exchange) Sent(n int) error {
	q.out.Add(int64(n))
	return q.meter.Spend(n)
}

// Received implements wire.Grant.
func (q *exchange) Received(n int) error {
	q.in.Add(int64(n))
	return q.meter.Spend(n)
}

// Scrub implements wire.Grant.
func (q *exchange) Scrub(dst io.Writer, pause time.Duration) *scrub.Writer {
	return q.secrets.Scrubber().Writer(dst, pause, q.finds.hit)
}

// Texts implements wire.Grant.
func (q *exchange) Texts() *scrub.Texts { return q.secrets.Scrubber().Texts(q.finds.hit) }

// Recheck implements live.Revocable.
func (q *exchange) Recheck(ctx context.Context) *live.Revoked {
	return live.Compare(q.judge(ctx), q.decision)
}

// Stop implements live.Revocable.
func (q *exchange) Stop(*live.Revoked) { q.Cut() }

// Cut implements live.Revocable.
func (q *exchange) Cut() {
	q.cancel()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.far != nil {
		_ = q.far.Close()
	}
}

// End implements wire.Grant.
func (q *exchange) End(err error) string {
	g := q.gateway
	g.live.Leave(&q.handle)
	q.Cut()
	q.meter.End()
	for _, u := range q.sentWith {
		q.secrets.Release(u)
	}
	q.mu.Lock()
	if q.ended != nil {
		err = q.ended
	}
	q.mu.Unlock()
	if over := q.meter.Err(); over != nil {
		err = over
	}
	if why := q.handle.Revoked(); why != nil {
		err = why
	}
	if q.allowed == nil {
		return ""
	}
	c := completion(&q.events, q.allowed.ActivityID, err)
	s := &c.Unmapped.Sallyport
	s.Credentials = q.used
	if err != nil && status(err) == http.StatusForbidden {
		c.Action, c.Disposition = audit.ActionDenied, audit.DispositionBlocked
	}
	g.blocked(c, err)
	q.mu.Lock()
	defer q.mu.Unlock()
	kind := q.finds.tell(c)
	if len(q.lost) > 0 {
		also(c, forgotten(q.lost))
	}
	if q.far != nil && c.Proxy == nil {
		event.Reached(&q.events, c, upstream.RemoteOf(q.far))
	}
	c.SetTokens(g.charged(q.meter.Unread(q.out.Load(), q.in.Load())))
	event.Finished(&q.events, c, time.Since(q.started), 0, q.in.Load(), q.out.Load(), 0)
	g.enqueue(c)
	if errors.Is(err, wire.ErrImpostor) {
		g.enqueue(grave(audit.FindingImpostor, c))
	} else if kind != "" {
		g.enqueue(finding(kind, c))
	}
	if err == nil {
		return ""
	}
	return explain(err)
}

// errExpired ends a session whose login is no longer good.
var errExpired = errors.New("the lease of the credential that the session logged in with has ended: connect again")

// leased is what a request logged in with.
type leased struct {
	name, version string
	to            credential.Binding
	expires       time.Time // zero: no lease
}

// Hold implements wire.Grant.
func (q *exchange) Hold() (stop func()) {
	if q.leased.expires.IsZero() {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer q.survive()
		for expires := q.leased.expires; ; {
			wait := time.NewTimer(time.Until(expires))
			select {
			case <-done:
				wait.Stop()
				return
			case <-wait.C:
			}
			// A lease that was renewed is the same one, for longer.
			now, err := q.gateway.Broker.Lease(q.ctx, q.leased.name, q.leased.to)
			if err == nil && now.Version == q.leased.version && now.Material().Expires.After(expires) {
				expires = now.Material().Expires
				continue
			}
			q.mu.Lock()
			q.ended = errExpired
			q.mu.Unlock()
			q.Cut()
			return
		}
	}()
	return func() { close(done) }
}
