package gateway

import (
	"errors"
	"net/netip"

	"sallyport/audit"
	"sallyport/gateway/credential"
	"sallyport/gateway/form"
	"sallyport/gateway/upstream"
	"sallyport/policy"
)

// flow is one connection of a sandbox: who asks, for where, and how it speaks.
// It does not change once the connection is handed to the HTTP server.
type flow struct {
	identity Identity
	source   netip.AddrPort
	// dialled is the address that the sandbox connected to, zero for a client
	// of the explicit proxy.
	dialled netip.Addr
	// host is what policy decides on: the name behind a synthetic address, the
	// host of a CONNECT, or a bare IP address. It is empty when the refusal
	// address was dialled and nothing has named a host yet.
	host string
	port uint16
	// refused says that the refusal address was dialled: nothing on this
	// connection is ever carried.
	refused  bool
	protocol policy.Protocol
	sni      string
	// authority is how host and port appear in a Host header.
	authority string
	// valid says whether a client of the explicit proxy may still use what it
	// connected with; nil for a sandbox.
	valid func() bool
	// line is the connection that it is on.
	line *line
	// round is that in which a connection was decided on that holds a single
	// request, 0 for others: see underway.
	round uint64
	// from is source as events have it; all of a connection's share one.
	from *audit.Endpoint
	// exposure is what went to upstreams for the sandbox.
	exposure *credential.Exposure
	// asks says that a rule wants approval for the connection: each of its requests
	// is asked about.
	asks bool
	// answer, when set, is all that a request on this connection is told.
	answer *answer
}

// bare tells whether the destination is an address rather than a name.
func (f *flow) bare() bool { return form.IsAddress(f.host) }

func (f *flow) tls() bool { return f.protocol == policy.ProtocolTLS }

func (f *flow) scheme() string {
	if f.tls() {
		return "https"
	}
	return "http"
}

// leaf is the name that the sandbox expects in a certificate.
func (f *flow) leaf() string {
	switch {
	case f.sni != "":
		return f.sni
	case f.host != "":
		return f.host
	}
	return f.dialled.String()
}

// input is what policy decides this connection on.
func (f *flow) input() policy.Input {
	return policy.Input{
		Phase:       policy.PhaseConnect,
		Sandbox:     f.identity.Sandbox,
		Destination: policy.Destination{Host: f.host, Port: f.port},
		Protocol:    f.protocol,
	}
}

// route is how a connection or request of this flow goes out.
func (f *flow) route(d policy.Decision, credential string, tls bool) upstream.Route {
	return upstream.Route{
		Sandbox:    f.identity.ID,
		Credential: credential,
		Host:       f.host,
		Port:       f.port,
		TLS:        tls,
		Upstream:   d.Upstream,
	}
}

// newFlow is a connection that comes from source.
func newFlow(source netip.AddrPort) *flow {
	return &flow{source: source, from: &audit.Endpoint{IP: text(source.Addr()), Port: int(source.Port())}}
}

// event makes the decision of x one on this connection.
func (f *flow) event(x *audit.Exchange, class audit.Class, activity int, phase policy.Phase, d policy.Decision) *audit.Event {
	e := x.Decide(class, activity)
	e.Source, e.Destination = f.from, &x.Destination
	x.Destination = audit.Endpoint{Port: int(f.port)}
	switch {
	case f.host == "":
		x.Destination.IP = text(f.dialled)
	case f.bare():
		x.Destination.IP = f.host
	default:
		x.Destination.Hostname = f.host
	}
	if f.sni != "" {
		x.TLS = audit.TLS{SNI: f.sni}
		e.TLS = &x.TLS
	}
	s := &e.Unmapped.Sallyport
	s.Sandbox, s.SandboxID, s.Session, s.Tags = f.identity.Name, f.identity.ID, f.identity.Session, f.identity.Tags
	if phase == policy.PhaseConnect {
		s.Protocol = string(f.protocol)
	}
	judge(x, phase, d)
	return e
}

// judge writes a decision into an event.
func judge(x *audit.Exchange, phase policy.Phase, d policy.Decision) {
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
	var gone *revokedError
	if errors.As(err, &gone) {
		gone.judge(c)
	}
	return c
}

// floor is a denial that no policy can lift.
func floor(d policy.Decision, rule, reason string) policy.Decision {
	return policy.Decision{Action: policy.Deny, Rule: rule, RuleType: "floor", Reason: reason, Revision: d.Revision}
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
