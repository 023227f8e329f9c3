package gateway

import (
	"cmp"
	"errors"
	"net/http"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/answer"
	"sallyport/gateway/event"
	"sallyport/gateway/form"
	"sallyport/gateway/placeholder"
	"sallyport/policy"
)

// record has the decision about a request on disk before anything of it leaves. The
// answer that it returns is for a request that may not leave.
func (q *request) record(r *http.Request, d policy.Decision) *answer.Answer {
	g := q.gateway
	e := q.event(r, d)
	if err := g.Recorder.Append(r.Context(), e); err != nil {
		if gone := r.Context().Err(); gone != nil && errors.Is(err, gone) {
			if !errors.Is(err, auditlog.ErrWithdrawn) {
				q.allowed, q.err = e, errClient // it may be in the log: say how it ended
				q.recorded.Store(true)
				if a := q.revoked(); a != nil {
					return a
				}
			}
			return failed(errClient, e.ID())
		}
		g.metrics.Unrecorded()
		g.Logger.Error("refusing a request that cannot be recorded", "sandbox", q.identity.Name, "error", err)
		return answer.Unrecorded(e.ID())
	}
	q.allowed = e
	q.recorded.Store(true)
	g.metrics.Decided(policy.PhaseRequest, d)
	return q.revoked()
}

// event describes the request for the audit.
func (q *request) event(r *http.Request, d policy.Decision) *audit.Event {
	e := decision(&q.events, q.peer, q.target, audit.ClassHTTP, audit.HTTPActivity(r.Method), policy.PhaseRequest, d)
	url := audit.URL{Scheme: q.form.seen.Scheme, Hostname: q.host, Port: int(q.port)}
	event.Request(&q.events, e, url, q.form.seen.Path, r.Method, r.Proto, r.ContentLength, q.form.names)
	return e
}

// deny records a denial and returns the answer to the sandbox.
func (q *request) deny(r *http.Request, d policy.Decision) *answer.Answer {
	d.Revision = cmp.Or(d.Revision, q.gateway.Revision())
	e := q.event(r, d)
	id := q.gateway.denial(q.peer, q.target, e)
	q.gateway.metrics.Decided(policy.PhaseRequest, d)
	return denied(d, id, r.Method+" "+q.scheme()+"://"+q.authority)
}

// refuse records a request that is refused for its form.
func (q *request) refuse(r *http.Request, m *form.Error) *answer.Answer {
	a := q.deny(r, floor(policy.Decision{}, m.Rule, m.Reason))
	a.Status = m.Status
	return a
}

// denial queues the one event of a denial, or has it counted in another, and returns
// the id of that. Nothing left, so that nothing has to wait for the disk; an event that
// cannot be queued denies all the same.
func (g *Gateway) denial(p *peer, t target, e *audit.Event) (id string) {
	if t.refused && t.host != "" {
		g.Names.Denied(p.identity.ID, t.host)
	}
	p.recorded.Store(true)
	return g.denials.Add(t.host, e)
}

func (g *Gateway) enqueue(e *audit.Event) {
	if err := g.Recorder.Enqueue(e); err != nil {
		g.metrics.Unrecorded()
		g.Logger.Error("an event was lost", "event", e.ID(), "error", err)
	}
}

// enqueueDenial also reports an attempt to send a placeholder somewhere.
func (g *Gateway) enqueueDenial(e *audit.Event) {
	g.enqueue(e)
	if e.Rule != nil && e.Rule.Name == placeholder.Rule && len(e.Unmapped.Sallyport.Found) > 0 {
		g.enqueue(Exfiltration(e))
	}
}

// Exfiltration is the finding of an event that shows a placeholder where it may not leave.
func Exfiltration(of *audit.Event) *audit.Event {
	return grave(audit.FindingExfiltration, of)
}

// rejection counts a refused connection and makes its event.
func (g *Gateway) rejection(p *peer, t target, phase policy.Phase, d policy.Decision) *audit.Event {
	g.metrics.Decided(phase, d)
	d.Revision = cmp.Or(d.Revision, g.Revision())
	e := decision(new(audit.Exchange), p, t, audit.ClassNetwork, audit.NetworkRefuse, phase, d)
	e.Connection = event.TCP(event.Outbound)
	return e
}

// unfinished records a connection that nothing was decided about. Those of unknown
// peers are alike by the address that they come from.
func (g *Gateway) unfinished(p *peer, t target, rule, reason string) {
	p.recorded.Store(true)
	g.denials.Add(cmp.Or(t.host, event.Text(p.source.Addr())), g.rejection(p, t, policy.PhaseConnect, floor(policy.Decision{}, rule, reason)))
}

// undecided records a connection that has sent bytes, unless an event of it is recorded.
func (g *Gateway) undecided(p *peer, t target, reason string) {
	if p.recorded.CompareAndSwap(false, true) {
		g.denials.Add(t.host, event.Undecided(p.from, p.identity.Sandbox, to(t), reason))
	}
}

func to(t target) event.To {
	return event.To{Host: t.host, Address: t.dialled, Port: t.port, SNI: t.sni, Protocol: t.protocol}
}

// decision makes the decision of x one about a connection, or a request on it.
func decision(x *audit.Exchange, p *peer, t target, class audit.Class, activity int, phase policy.Phase, d policy.Decision) *audit.Event {
	return event.Decision(x, p.from, p.identity.Sandbox, to(t), class, activity, phase, d)
}

// completion follows the allowed decision of x to its end.
func completion(x *audit.Exchange, activity int, err error) *audit.Event {
	if err == nil {
		return event.Completion(x, activity, nil, "")
	}
	return event.Completion(x, activity, err, explain(err))
}
