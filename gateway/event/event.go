// Package event makes the audit's events about connections and requests: one for each
// decision, before anything leaves, and one for the end of what was allowed.
package event

import (
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sallyport/audit"
	"sallyport/gateway/form"
	"sallyport/gateway/live"
	"sallyport/policy"
)

// Directions of a connection, as a sandbox sees them (OCSF, direction_id).
const (
	Inbound  = 1
	Outbound = 2
)

// TCP describes a connection.
func TCP(direction int) *audit.Connection {
	return &audit.Connection{ProtocolName: "tcp", ProtocolNum: 6, Direction: direction}
}

// To is where a connection or request goes, as the policy knows it.
type To struct {
	Host     string     // a name or an address; empty where nothing has named one yet
	Address  netip.Addr // that was dialled, for an empty Host
	Port     uint16
	SNI      string
	Protocol policy.Protocol
}

// Decision makes the decision of x one about a connection of a sandbox, or a request on it.
func Decision(x *audit.Exchange, from *audit.Endpoint, sandbox policy.Sandbox, to To, class audit.Class, activity int, phase policy.Phase, d policy.Decision) *audit.Event {
	e := x.Decide(class, activity)
	e.Source = from
	if to.Host != "" || to.Address.IsValid() {
		e.Destination = &x.Destination
	}
	x.Destination = audit.Endpoint{Port: int(to.Port)}
	switch {
	case to.Host == "":
		x.Destination.IP = Text(to.Address)
	case form.IsAddress(to.Host):
		x.Destination.IP = to.Host
	default:
		x.Destination.Hostname = to.Host
	}
	if to.SNI != "" {
		x.TLS = audit.TLS{SNI: to.SNI}
		e.TLS = &x.TLS
	}
	s := &e.Unmapped.Sallyport
	s.Sandbox, s.SandboxID, s.Session, s.Tags, s.Owner = sandbox.Name, sandbox.ID, sandbox.Session, sandbox.Tags, sandbox.Owner
	if phase == policy.PhaseInbound && sandbox.ID != "" {
		x.Container = audit.Container{Name: sandbox.Name, UID: sandbox.ID}
		x.Destination.Container = &x.Container
	}
	if phase == policy.PhaseConnect {
		s.Protocol = string(to.Protocol)
	}
	decide(x, phase, d)
	return e
}

// decide writes a decision into its event.
func decide(x *audit.Exchange, phase policy.Phase, d policy.Decision) {
	e := &x.Decision
	s := &e.Unmapped.Sallyport
	s.Phase, s.Decision, s.Reason = string(phase), string(d.Action), d.Reason
	if d.Rule != "" {
		x.Rule = audit.Rule{Name: d.Rule, Type: d.RuleType}
		e.Rule = &x.Rule
	}
	if d.Revision != "" {
		x.Policy = audit.Policy{Name: audit.PolicyName, Version: d.Revision}
		e.Policy = &x.Policy
	}
	if d.Upstream != nil && d.Upstream.Proxy != "" {
		through(e, d.Upstream.Proxy)
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

// through says which proxy a decision leads by. Policy has checked the URL.
func through(e *audit.Event, proxy string) {
	u, err := url.Parse(proxy)
	if err != nil {
		return
	}
	port, _ := strconv.Atoi(u.Port())
	e.Through(u.Hostname(), port)
}

// Undecided describes a connection that has sent bytes about which nothing is decided.
func Undecided(from *audit.Endpoint, sandbox policy.Sandbox, to To, reason string) *audit.Event {
	e := Decision(new(audit.Exchange), from, sandbox, to, audit.ClassNetwork, audit.NetworkTraffic, policy.PhaseConnect, policy.Decision{Reason: reason})
	e.Connection = TCP(Outbound)
	e.Action, e.Disposition, e.StatusID, e.SeverityID = audit.ActionUnknown, audit.DispositionUnknown, audit.StatusUnknown, audit.SeverityInformational
	e.Unmapped.Sallyport.Kind, e.Unmapped.Sallyport.Decision = audit.KindConnection, ""
	return e
}

// Completion follows the allowed decision of x to its end. err is what ended it, nil for
// success, and detail that in words of our own.
func Completion(x *audit.Exchange, activity int, err error, detail string) *audit.Event {
	c := x.Complete(activity)
	if err != nil {
		c.StatusID, c.Disposition, c.SeverityID = audit.StatusFailure, audit.DispositionError, audit.SeverityLow
		c.Detail = detail
	}
	if gone, ok := errors.AsType[*live.Revoked](err); ok {
		revoked(c, gone.Decision)
	}
	return c
}

// Text is an address as events have it, empty for none.
func Text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// revoked writes into a completion that the policy has ended it: its rule and revision are
// those of the policy as it is now, the decision's are of before.
func revoked(c *audit.Event, d policy.Decision) {
	c.Message = "ended by a change of the policy"
	c.Action, c.Disposition, c.SeverityID = audit.ActionDenied, audit.DispositionBlocked, audit.SeverityMedium
	c.Rule, c.Policy = nil, nil
	if d.Rule != "" {
		c.Rule = &audit.Rule{Name: d.Rule, Type: d.RuleType}
	}
	if d.Revision != "" {
		c.Policy = audit.Revision(d.Revision)
	}
	c.Unmapped.Sallyport.Decision, c.Unmapped.Sallyport.Reason = string(policy.Deny), d.Reason
}

// Request adds the request that the decision e of x is about. path is as the policy sees
// it; url.Path is set here.
func Request(x *audit.Exchange, e *audit.Event, url audit.URL, path, method, version string, length int64, names form.Names) {
	x.URL = url
	x.URL.Path = clip(path, maxPath)
	x.Request = audit.HTTPRequest{Version: version, Length: max(length, 0)}
	if path != "" { // which a CONNECT has not
		x.Request.URL = &x.URL
	}
	e.HTTPRequest = &x.Request
	e.SetMethod(clip(method, maxMethod))
	s := &e.Unmapped.Sallyport
	s.HeaderNames, s.QueryKeys = ClipAll(names.Headers), ClipAll(names.Query)
	s.Unsized, s.Clipped = length < 0, clipped(path, method, names)
}

// Finished adds to a completion how its request ended: how long it took, its status (0: it
// had no answer), and the bytes of bodies that went to the sandbox and came from it.
func Finished(x *audit.Exchange, c *audit.Event, took time.Duration, status int, in, out, answered int64) {
	c.Duration = took.Milliseconds()
	if status != 0 {
		x.Response = audit.HTTPResponse{Code: status, Length: answered}
		c.HTTPResponse = &x.Response
	}
	x.Traffic = audit.Traffic{BytesIn: in, BytesOut: out}
	c.Traffic = &x.Traffic
}

// Reached adds to a completion the address that its destination's name led to.
func Reached(x *audit.Exchange, c *audit.Event, addr netip.Addr) {
	if !addr.IsValid() || c.Destination == nil || c.Destination.IP != "" {
		return
	}
	x.Reached = *c.Destination // the decision has been made without
	x.Reached.IP = addr.String()
	c.Destination = &x.Reached
}

// Bounds of what one request can write into the audit. Policy sees it all.
const (
	maxPath   = 8 << 10 // bytes, as much as policy takes
	maxNames  = 128
	maxName   = 256 // bytes
	maxMethod = 64  // bytes
)

// clip shortens s to n bytes and says by how many.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "… (" + strconv.Itoa(len(s)-n) + " more bytes)"
}

// ClipAll bounds a list of names and says how many were left out.
func ClipAll(names []string) []string {
	long := func(s string) bool { return len(s) > maxName }
	if len(names) <= maxNames && !slices.ContainsFunc(names, long) {
		return names
	}
	kept := slices.Clone(names[:min(len(names), maxNames)])
	for i, s := range kept {
		kept[i] = clip(s, maxName)
	}
	if n := len(names) - len(kept); n > 0 {
		kept = append(kept, "… ("+strconv.Itoa(n)+" more)")
	}
	return kept
}

// clipped lists the fields of an event that hold less than was decided on. Bytes that
// are not UTF-8 are replaced in the log, which is less too.
func clipped(path, method string, names form.Names) (fields []string) {
	if len(path) > maxPath {
		fields = append(fields, "path")
	}
	if len(method) > maxMethod {
		fields = append(fields, "method")
	}
	less := func(names []string) bool {
		return len(names) > maxNames || slices.ContainsFunc(names, func(s string) bool { return len(s) > maxName || !utf8.ValidString(s) })
	}
	if less(names.Headers) {
		fields = append(fields, "header_names")
	}
	if less(names.Query) {
		fields = append(fields, "query_keys")
	}
	return fields
}

// limitsOf is what an event says of a decision's limits, so that they can be
// counted again from the log.
func limitsOf(d policy.Decision) []audit.LimitUse {
	if len(d.Limits) == 0 {
		return nil
	}
	list := make([]audit.LimitUse, len(d.Limits))
	for i, a := range d.Limits {
		list[i] = audit.LimitUse{Name: a.Name, Subject: a.Subject}
		if a.Periodic() {
			list[i].Period, list[i].Uses = time.Duration(a.Every).Milliseconds(), a.Credentials
		}
	}
	return list
}
