package gateway

import (
	"cmp"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sallyport/audit"
	"sallyport/gateway/form"
	"sallyport/gateway/live"
	"sallyport/policy"
)

// record has the decision about a request on disk before anything of it leaves. The
// answer that it returns is for a request that may not leave.
func (q *request) record(r *http.Request, d policy.Decision) *answer {
	g := q.gateway
	e := q.event(r, d)
	if err := g.recorder.Append(r.Context(), e); err != nil {
		if gone := r.Context().Err(); gone != nil && errors.Is(err, gone) {
			if !errors.Is(err, audit.ErrWithdrawn) {
				q.allowed, q.err = e, errClient // it may be in the log: say how it ended
				if a := q.revoked(); a != nil {
					return a
				}
			}
			return failed(errClient, e.ID())
		}
		g.metrics.auditFailures.Inc()
		g.logger.Error("refusing a request that cannot be recorded", "sandbox", q.identity.Name, "error", err)
		return failed(errAudit, e.ID())
	}
	q.allowed = e
	g.metrics.decision(policy.PhaseRequest, d)
	return q.revoked()
}

// event describes the request for the audit.
func (q *request) event(r *http.Request, d policy.Decision) *audit.Event {
	e := connectionEvent(&q.events, q.peer, q.target, audit.ClassHTTP, audit.HTTPActivity(r.Method), policy.PhaseRequest, d)
	q.events.URL = audit.URL{
		Scheme:   q.form.seen.Scheme,
		Hostname: q.host,
		Port:     int(q.port),
		Path:     clip(q.form.seen.Path, maxAuditPath),
	}
	q.events.Request = audit.HTTPRequest{
		Method:  clip(r.Method, maxAuditMethod),
		Version: r.Proto,
		URL:     &q.events.URL,
		Length:  max(r.ContentLength, 0),
	}
	e.HTTPRequest = &q.events.Request
	s := &e.Unmapped.Sallyport
	s.HeaderNames, s.QueryKeys = clipAll(q.form.names.Headers), clipAll(q.form.names.Query)
	s.Unsized, s.Clipped = r.ContentLength < 0, clipped(q.form.seen.Path, r.Method, q.form.names)
	return e
}

// deny records a denial and returns the answer to the sandbox.
func (q *request) deny(r *http.Request, d policy.Decision) *answer {
	d.Revision = cmp.Or(d.Revision, q.gateway.revision())
	e := q.event(r, d)
	id := q.gateway.denial(q.peer, q.target, e)
	q.gateway.metrics.decision(policy.PhaseRequest, d)
	return denied(d, id, r.Method+" "+q.scheme()+"://"+q.authority)
}

// refuse records a request that is refused for its form.
func (q *request) refuse(r *http.Request, m *form.Error) *answer {
	a := q.deny(r, floor(policy.Decision{}, m.Rule, m.Reason))
	a.Status = m.Status
	return a
}

// denial queues the one event of a denial, or has it counted in another, and returns
// the id of that. Nothing left, so that nothing has to wait for the disk; an event that
// cannot be queued denies all the same.
func (g *Gateway) denial(p *peer, t target, e *audit.Event) (id string) {
	if t.refused && t.host != "" {
		g.names.Denied(p.identity.ID, t.host)
	}
	return g.denials.Add(t.host, e)
}

func (g *Gateway) enqueue(e *audit.Event) {
	if err := g.recorder.Enqueue(e); err != nil {
		g.metrics.auditFailures.Inc()
		g.logger.Error("an event was lost", "event", e.ID(), "error", err)
	}
}

// rejection counts a refused connection and makes its event.
func (g *Gateway) rejection(p *peer, t target, phase policy.Phase, d policy.Decision) *audit.Event {
	g.metrics.decision(phase, d)
	d.Revision = cmp.Or(d.Revision, g.revision())
	e := connectionEvent(new(audit.Exchange), p, t, audit.ClassNetwork, audit.NetworkRefuse, phase, d)
	e.Connection = overTCP()
	return e
}

// unfinished records a connection that nothing was decided about. Those of unknown
// peers are alike by the address that they come from.
func (g *Gateway) unfinished(p *peer, t target, rule, reason string) {
	g.denials.Add(cmp.Or(t.host, text(p.source.Addr())), g.rejection(p, t, policy.PhaseConnect, floor(policy.Decision{}, rule, reason)))
}

// overTCP describes a connection that a sandbox has opened.
func overTCP() *audit.Connection {
	return &audit.Connection{ProtocolName: "tcp", ProtocolNum: 6, Direction: 2}
}

// connectionEvent makes the decision of x one about a connection, or a request on it.
func connectionEvent(x *audit.Exchange, p *peer, t target, class audit.Class, activity int, phase policy.Phase, d policy.Decision) *audit.Event {
	e := x.Decide(class, activity)
	e.Source, e.Destination = p.from, &x.Destination
	x.Destination = audit.Endpoint{Port: int(t.port)}
	switch {
	case t.host == "":
		x.Destination.IP = text(t.dialled)
	case t.bare():
		x.Destination.IP = t.host
	default:
		x.Destination.Hostname = t.host
	}
	if t.sni != "" {
		x.TLS = audit.TLS{SNI: t.sni}
		e.TLS = &x.TLS
	}
	s := &e.Unmapped.Sallyport
	s.Sandbox, s.SandboxID, s.Session, s.Tags = p.identity.Name, p.identity.ID, p.identity.Session, p.identity.Tags
	if phase == policy.PhaseConnect {
		s.Protocol = string(t.protocol)
	}
	recordDecision(x, phase, d)
	return e
}

// recordDecision writes a decision into an event.
func recordDecision(x *audit.Exchange, phase policy.Phase, d policy.Decision) {
	e := &x.Decision
	s := &e.Unmapped.Sallyport
	s.Phase, s.Decision, s.Reason = string(phase), string(d.Action), d.Reason
	if d.Rule != "" {
		x.Rule = audit.Rule{Name: d.Rule, Type: d.RuleType}
		e.Rule = &x.Rule
	}
	if d.Revision != "" {
		x.Policy = audit.Policy{Version: d.Revision}
		e.Policy = &x.Policy
	}
	s.Limits = limitsOf(d)
	for _, i := range d.Inject {
		s.Credentials = append(s.Credentials, audit.CredentialUse{Name: i.Credential})
	}
	if a := d.Approval; a != nil {
		s.Approval = &audit.Approval{ID: a.ID, Operator: a.Operator, UID: a.UID, Login: a.Login, Span: a.Span}
	}
	if d.Err != nil {
		e.Detail = d.Err.Error()
	}
	if o := d.Observed; o != nil {
		e.SeverityID = audit.SeverityLow
		s.Observed = &audit.Observed{Decision: string(o.Action), Rule: o.Rule, RuleType: o.RuleType, Reason: o.Reason}
	}
	switch d.Action {
	case policy.Allow, policy.Tunnel:
		e.Action, e.Disposition = audit.ActionAllowed, audit.DispositionAllowed
	default:
		e.Action, e.Disposition = audit.ActionDenied, audit.DispositionBlocked
		e.StatusID, e.SeverityID = audit.StatusFailure, audit.SeverityMedium
	}
}

// completion follows the allowed decision of x to its end.
func completion(x *audit.Exchange, activity int, err error) *audit.Event {
	c := x.Complete(activity)
	if err != nil {
		c.StatusID, c.Disposition, c.SeverityID = audit.StatusFailure, audit.DispositionError, audit.SeverityLow
		c.Detail = explain(err)
	}
	var gone *live.Revoked
	if errors.As(err, &gone) {
		recordRevoked(c, gone)
	}
	return c
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// recordRevoked writes into a completion that the policy has ended it: its rule and
// revision are those of the policy as it is now, the decision's are of before.
func recordRevoked(c *audit.Event, e *live.Revoked) {
	d := e.Decision
	c.Message = "ended by a change of the policy"
	c.Action, c.Disposition, c.SeverityID = audit.ActionDenied, audit.DispositionBlocked, audit.SeverityMedium
	c.Rule, c.Policy = nil, nil
	if d.Rule != "" {
		c.Rule = &audit.Rule{Name: d.Rule, Type: d.RuleType}
	}
	if d.Revision != "" {
		c.Policy = &audit.Policy{Version: d.Revision}
	}
	c.Unmapped.Sallyport.Decision, c.Unmapped.Sallyport.Reason = string(policy.Deny), d.Reason
}

// Bounds of what one request can write into the audit. Policy sees it all.
const (
	maxAuditPath   = 8 << 10 // bytes, as much as policy takes
	maxAuditNames  = 128
	maxAuditName   = 256 // bytes
	maxAuditMethod = 64  // bytes
)

// clip shortens s to n bytes and says by how many.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "… (" + strconv.Itoa(len(s)-n) + " more bytes)"
}

// clipAll bounds a list of names and says how many were left out.
func clipAll(names []string) []string {
	long := func(s string) bool { return len(s) > maxAuditName }
	if len(names) <= maxAuditNames && !slices.ContainsFunc(names, long) {
		return names
	}
	kept := slices.Clone(names[:min(len(names), maxAuditNames)])
	for i, s := range kept {
		kept[i] = clip(s, maxAuditName)
	}
	if n := len(names) - len(kept); n > 0 {
		kept = append(kept, "… ("+strconv.Itoa(n)+" more)")
	}
	return kept
}

// clipped lists the fields of an event that hold less than was decided on. Bytes that
// are not UTF-8 are replaced in the log, which is less too.
func clipped(path, method string, names form.Names) (fields []string) {
	if len(path) > maxAuditPath {
		fields = append(fields, "path")
	}
	if len(method) > maxAuditMethod {
		fields = append(fields, "method")
	}
	less := func(names []string) bool {
		return len(names) > maxAuditNames || slices.ContainsFunc(names, func(s string) bool { return len(s) > maxAuditName || !utf8.ValidString(s) })
	}
	if less(names.Headers) {
		fields = append(fields, "header_names")
	}
	if less(names.Query) {
		fields = append(fields, "query_keys")
	}
	return fields
}
