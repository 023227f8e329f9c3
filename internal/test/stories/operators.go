package stories

import "sallyport/audit"

// approvals are what an operator is asked and answers, and the request that
// goes by it.
func approvals(change func(string, string) *audit.Event, make func(audit.Kind, audit.Class, int) *audit.Event, request func(*audit.Event, string, string) *audit.Event) map[string][]*audit.Event {
	const asked = "0192f0c1-7a00-7000-8000-0000000000aa"
	step := func(state string) *audit.Event {
		e := change("approval/"+asked, state)
		e.Message = "approval " + state
		e.Destination = &audit.Endpoint{Hostname: "api.example.test", Port: 443}
		e.HTTPRequest = &audit.HTTPRequest{Method: "DELETE", Length: 12,
			URL: &audit.URL{Scheme: "https", Hostname: "api.example.test", Port: 443, Path: "/repos/x"}}
		e.Rule = &audit.Rule{Name: "deletions", Type: "egress"}
		e.Policy = audit.Revision("sha256:0123")
		x := &e.Unmapped.Sallyport
		x.Reason, x.QueryKeys = "an approval is needed by rule deletions", []string{"force"}
		x.Credentials = []audit.CredentialUse{{Name: "example-key"}}
		x.Approval = &audit.Approval{ID: asked, Until: at + 300_000, Query: "aa", Body: "bb"}
		return e
	}
	question := step("asked")
	answered := step("approved")
	answered.Actor = &audit.Actor{User: audit.User{Name: "root", UID: "0"}}
	a := answered.Unmapped.Sallyport.Approval
	a.Operator, a.UID, a.Login = "root", "0", "alice"
	a.Span, a.Method, a.Path, a.Count, a.Until = "period", "DELETE", "/repos/*", 3, at+3_600_000
	answered.Unmapped.Sallyport.Reason = "the release needs it"
	expired := step("expired")

	covered := request(make(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("DELETE")), "DELETE", "/repos/y")
	covered.Action, covered.Disposition, covered.StatusID = audit.ActionAllowed, audit.DispositionAllowed, audit.StatusSuccess
	covered.Rule = &audit.Rule{Name: "deletions", Type: "egress"}
	x := &covered.Unmapped.Sallyport
	x.Decision, x.Reason = "allow", "approved by root (period): an approval is needed by rule deletions"
	x.Approval = &audit.Approval{ID: asked, Operator: "root", UID: "0", Login: "alice", Span: "period"}
	return map[string][]*audit.Event{"asked": {question}, "approved": {answered}, "expired": {expired}, "by-approval": {covered}}
}

// limits are what a limit denies and breaks off, and an operator's reset.
func limits(by func(*audit.Event) *audit.Event, change func(string, string) *audit.Event, make func(audit.Kind, audit.Class, int) *audit.Event, request func(*audit.Event, string, string) *audit.Event) map[string][]*audit.Event {
	over := request(make(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("POST")), "POST", "/v1/chat")
	over.Action, over.Disposition, over.StatusID = audit.ActionDenied, audit.DispositionBlocked, audit.StatusSuccess
	over.SeverityID = audit.SeverityLow
	over.Rule = &audit.Rule{Name: "openai-a-day", Type: "limit"}
	over.Unmapped.Sallyport.Decision = "deny"
	over.Unmapped.Sallyport.Reason = "limit openai-a-day: 1000 requests within 24h are used up"

	begun := request(make(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("POST")), "POST", "/v1/chat")
	begun.Action, begun.Disposition, begun.StatusID = audit.ActionAllowed, audit.DispositionAllowed, audit.StatusSuccess
	begun.Rule = &audit.Rule{Name: "example", Type: "egressAuth"}
	x := &begun.Unmapped.Sallyport
	x.Decision, x.Reason = "allow", "allowed by rule example"
	x.Limits = []audit.LimitUse{
		{Name: "openai-a-day", Subject: "sandbox-id", Period: 86_400_000, Uses: 1},
		{Name: "at-once", Subject: "api.example.test:443"},
	}
	broken := request(make(audit.KindCompletion, audit.ClassHTTP, audit.HTTPActivity("POST")), "POST", "/v1/chat")
	broken.Metadata.CorrelationUID = begun.ID()
	broken.Action, broken.Disposition, broken.StatusID = audit.ActionDenied, audit.DispositionBlocked, audit.StatusFailure
	broken.SeverityID, broken.Detail = audit.SeverityMedium, "limit openai-a-day: 1GiB within 24h are used up"
	broken.Rule = &audit.Rule{Name: "openai-a-day", Type: "limit"}
	broken.StartTime, broken.Duration = begun.Time, 35
	broken.Traffic = &audit.Traffic{BytesIn: 2048, BytesOut: 512}
	broken.Unmapped.Sallyport.Decision = "allow"

	reset := by(change("limit/openai-a-day", "reset"))
	reset.Message = "limit openai-a-day reset"
	r := &reset.Unmapped.Sallyport
	r.Sandbox, r.SandboxID, r.Session = "", "", ""
	r.Limits = []audit.LimitUse{{Name: "openai-a-day", Subject: "sandbox-id"}}
	return map[string][]*audit.Event{"limited": {over}, "broken-off": {begun, broken}, "reset": {reset}}
}

// ssh are a command that an operator runs over SSH, and a key that is not
// let in.
func ssh(make func(audit.Kind, audit.Class, int) *audit.Event) map[string][]*audit.Event {
	about := func(kind audit.Kind, activity int, protocol string) *audit.Event {
		e := make(kind, audit.ClassSSH, activity)
		e.Source = &audit.Endpoint{IP: "198.51.100.7", Port: 50022}
		e.Destination = &audit.Endpoint{Container: &audit.Container{Name: "demo", UID: "sandbox-id"}, Hostname: "demo"}
		e.Connection = &audit.Connection{ProtocolName: "tcp", ProtocolNum: 6, Direction: 1}
		e.Actor = new(audit.Actor)
		e.Actor.User.Name, e.Actor.User.UID = "alice", "SHA256:uXjbmrkUZ7v5jPTyEBW9MLHsCwDg7eD0Ae3GgMkFxFk"
		x := &e.Unmapped.Sallyport
		x.Phase, x.Protocol = "ssh", protocol
		return e
	}
	command := about(audit.KindDecision, audit.NetworkOpen, "shell")
	command.Action, command.Disposition, command.StatusID = audit.ActionAllowed, audit.DispositionAllowed, audit.StatusSuccess
	command.Rule = &audit.Rule{Name: "shells", Type: "expose"}
	command.Unmapped.Sallyport.Decision, command.Unmapped.Sallyport.Reason = "allow", "allowed by rule shells"
	over := about(audit.KindCompletion, audit.NetworkClose, "shell")
	over.Metadata.CorrelationUID = command.ID()
	over.Action, over.Disposition, over.StatusID = command.Action, command.Disposition, audit.StatusSuccess
	over.StartTime, over.Duration, over.Detail = command.Time, 35, "exit 3"
	over.Traffic = &audit.Traffic{BytesIn: 12, BytesOut: 2048}
	over.Unmapped.Sallyport.Decision = "allow"
	refused := about(audit.KindDecision, audit.NetworkRefuse, "ssh")
	refused.Action, refused.Disposition, refused.StatusID = audit.ActionDenied, audit.DispositionBlocked, audit.StatusSuccess
	refused.SeverityID, refused.Count = audit.SeverityLow, 3
	refused.Actor.User.Name = ""
	refused.Unmapped.Sallyport.Decision, refused.Unmapped.Sallyport.Reason = "deny", "the key is not known"
	return map[string][]*audit.Event{"ssh": {command, over}, "ssh-refused": {refused}}
}

// findings are what packets past the gateway and an answer with a credential show.
func findings(pin func(*audit.Event) *audit.Event, drop, done *audit.Event) map[string][]*audit.Event {
	finding := func(what string, of *audit.Event) *audit.Event {
		e := pin(audit.Finding(what, of))
		e.FindingInfo.UID = e.ID()
		return e
	}
	held := *done
	held.Unmapped.Sallyport.Found = []audit.CredentialUse{{Name: "example-key"}}
	return map[string][]*audit.Event{
		"bypass": {finding(audit.FindingBypass, drop)}, "secret-in-answer": {finding(audit.FindingInAnswer, &held)},
	}
}
