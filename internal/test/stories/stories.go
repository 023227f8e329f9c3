// Package stories has events of the audit log for tests: one or two of each kind that
// Sallyport records.
package stories

import (
	"context"
	"fmt"
	"maps"
	"time"

	"sallyport/audit"
)

// id is an event's, and at when the first has been, in milliseconds.
const id = "0192f0c1-7a00-7000-8000-%012x"

var at = time.Date(2026, 11, 20, 13, 24, 34, 123e6, time.UTC).UnixMilli()

// Events are the stories that Sallyport tells, one for each class and outcome. They are
// the same each time.
func Events() map[string][]*audit.Event {
	n := 0
	pin := func(e *audit.Event) *audit.Event {
		n++
		e.Metadata.UID, e.Time = fmt.Sprintf(id, n), at+int64(n)
		e.Metadata.Product.Version = "0.1.0"
		x := &e.Unmapped.Sallyport
		x.Sandbox, x.SandboxID, x.Session = "demo", "sandbox-id", "session-id"
		return e
	}
	make := func(kind audit.Kind, class audit.Class, activity int) *audit.Event {
		e := pin(audit.New(kind, class, activity))
		e.Source = &audit.Endpoint{Container: &audit.Container{Name: "demo", UID: "sandbox-id"}, IP: "10.231.0.7"}
		e.Policy = audit.Revision("sha256:0123")
		return e
	}
	change := func(subject, state string) *audit.Event { return pin(audit.Change(subject, state)) }
	outgoing := &audit.Connection{ProtocolName: "tcp", ProtocolNum: 6, Direction: 2}
	request := func(e *audit.Event, method, path string) *audit.Event {
		e.Destination = &audit.Endpoint{Hostname: "api.example.test", Port: 443}
		e.Connection = outgoing
		e.TLS = &audit.TLS{SNI: "api.example.test", Version: "1.3"}
		e.HTTPRequest = &audit.HTTPRequest{Version: "HTTP/1.1", Length: 12,
			URL: &audit.URL{Scheme: "https", Hostname: "api.example.test", Port: 443, Path: path}}
		e.SetMethod(method)
		e.Unmapped.Sallyport.Phase = "request"
		return e
	}
	decided := func(e *audit.Event, action audit.Action, d audit.Disposition, decision, rule, kind, reason string) *audit.Event {
		e.Action, e.Disposition, e.StatusID = action, d, audit.StatusSuccess
		e.Rule = &audit.Rule{Name: rule, Type: kind}
		e.Unmapped.Sallyport.Decision, e.Unmapped.Sallyport.Reason = decision, reason
		return e
	}
	completed := func(e, decision *audit.Event) *audit.Event {
		e.Metadata.CorrelationUID = decision.ID()
		e.Action, e.Disposition, e.StatusID = decision.Action, decision.Disposition, audit.StatusSuccess
		e.StartTime, e.Duration = decision.Time, 35
		e.Traffic = &audit.Traffic{BytesIn: 2048, BytesOut: 512}
		e.Unmapped.Sallyport.Decision = decision.Unmapped.Sallyport.Decision
		return e
	}

	allow := decided(request(make(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("POST")), "POST", "/v1/chat"),
		audit.ActionAllowed, audit.DispositionAllowed, "allow", "example", "egressAuth", "egressAuth rule example allows it")
	allow.Unmapped.Sallyport.Credentials = []audit.CredentialUse{{Name: "example-key"}}
	allow.Unmapped.Sallyport.HeaderNames = []string{"Accept", "Content-Type"}
	allow.Unmapped.Sallyport.QueryKeys = []string{"model"}
	allow.Unmapped.Sallyport.Tags = map[string]string{"team": "support"}
	done := completed(request(make(audit.KindCompletion, audit.ClassHTTP, audit.HTTPActivity("POST")), "POST", "/v1/chat"), allow)
	done.HTTPResponse = &audit.HTTPResponse{Code: 200, Length: 1900}
	done.SetTokens(&audit.Tokens{Model: "example-1", In: 120, Out: 300, Cached: 100, Cost: "0.0031", Estimated: true})
	done.Through("proxy.example.test", 3128)
	done.Unmapped.Sallyport.Credentials = []audit.CredentialUse{{Name: "example-key", Version: "3", Lease: "accessor-1"}}
	failed := completed(request(make(audit.KindCompletion, audit.ClassHTTP, audit.HTTPActivity("POST")), "POST", "/v1/chat"), allow)
	failed.StatusID, failed.Detail, failed.SeverityID = audit.StatusFailure, "connecting: connection refused", audit.SeverityLow
	failed.Disposition = audit.DispositionError

	deny := decided(request(make(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("PATCH")), "PATCH", "/admin"),
		audit.ActionDenied, audit.DispositionBlocked, "deny", "default", "floor", "no rule allows it")
	deny.SeverityID = audit.SeverityLow

	tunnel := decided(make(audit.KindDecision, audit.ClassNetwork, audit.NetworkOpen),
		audit.ActionAllowed, audit.DispositionAllowed, "tunnel", "db", "egress", "egress rule db tunnels it")
	tunnel.Destination = &audit.Endpoint{Hostname: "db.example.test", IP: "203.0.113.9", Port: 5432}
	tunnel.Connection, tunnel.Unmapped.Sallyport.Phase, tunnel.Unmapped.Sallyport.Protocol = outgoing, "connect", "other"
	closed := completed(make(audit.KindCompletion, audit.ClassNetwork, audit.NetworkClose), tunnel)
	closed.Destination, closed.Connection = tunnel.Destination, outgoing

	drop := make(audit.KindDrop, audit.ClassNetwork, audit.NetworkRefuse)
	drop.Action, drop.Disposition, drop.Count = audit.ActionDenied, audit.DispositionDropped, 12
	drop.Source = &audit.Endpoint{IP: "10.231.0.7", Port: 40000, MAC: "02:42:0a:e7:00:07"}
	drop.Destination = &audit.Endpoint{IP: "203.0.113.9", Port: 53}
	drop.Connection = &audit.Connection{ProtocolName: "udp", ProtocolNum: 17, Direction: 2}
	drop.Traffic = &audit.Traffic{BytesOut: 720, Packets: 12}
	drop.Unmapped.Sallyport.Reason = "UDP to anywhere but the resolver"

	name := decided(make(audit.KindDecision, audit.ClassDNS, audit.DNSQueried),
		audit.ActionDenied, audit.DispositionBlocked, "deny", "default", "floor", "no rule allows this name")
	name.Query = &audit.DNSQuery{Hostname: "evil.example.test", Type: "A"}
	name.Unmapped.Sallyport.Phase = "dns"

	by := func(e *audit.Event) *audit.Event {
		operator := &audit.Actor{User: audit.User{Name: "root", UID: "0"}}
		audit.Attribute(audit.By(context.Background(), operator, &audit.Endpoint{IP: "198.51.100.7", Port: 50022}), e)
		return e
	}
	life := by(change("sandbox/demo", "created"))
	life.Message, life.Unmapped.Sallyport.Owner = "sandbox demo was created", "acme"
	life.Entity.UID = "sandbox-id"
	life.Entity.Data = &audit.EntityData{Image: "example/image", Parent: "parent-id", Root: "root-id", Runtime: "gvisor", Snapshot: "before"}
	restored := by(change("sandbox/demo", "restored"))
	restored.Unmapped.Sallyport.Snapshot = "before"
	began := change("sallyport", "started")
	began.App.Version = "0.1.0"

	observed := decided(request(make(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("PUT")), "PUT", "/upload"),
		audit.ActionAllowed, audit.DispositionAllowed, "allow", "trial", "observe", "observed only")
	observed.SeverityID, observed.HTTPRequest.Length = audit.SeverityLow, 0
	x := &observed.Unmapped.Sallyport
	x.Unsized, x.HeaderNames, x.Clipped = true, []string{"Accept", "… (7 more)"}, []string{"header_names"}
	x.Observed = &audit.Observed{Decision: "deny", Rule: "no-uploads", RuleType: "egress", Reason: "denied by rule no-uploads"}

	pod := decided(request(make(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("GET")), "GET", "/v1/models"),
		audit.ActionAllowed, audit.DispositionAllowed, "allow", "example", "egressAuth", "allowed by rule example")
	pod.SetPlace("prod", "worker-1")

	all := map[string][]*audit.Event{
		"pod": {pod}, "allow": {allow, done}, "failed": {allow, failed}, "open": {allow}, "deny": {deny}, "tunnel": {tunnel, closed},
		"drop": {drop}, "dns": {name}, "lifecycle": {life}, "restored": {restored}, "daemon": {began}, "observed": {observed},
	}
	maps.Copy(all, approvals(change, make, request))
	maps.Copy(all, limits(by, change, make, request))
	maps.Copy(all, findings(pin, drop, done))
	maps.Copy(all, ssh(make))
	return all
}
