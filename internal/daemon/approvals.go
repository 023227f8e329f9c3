package daemon

import (
	"cmp"
	"context"
	"path/filepath"
	"time"

	"sallyport/audit"
	"sallyport/policy/approval"
)

// openApprovals opens what operators have granted. Their answer is on record before it
// counts; the rest is recorded soon after.
func (d *daemon) openApprovals() (*approval.Store, error) {
	return approval.Open(approval.Options{
		Path: filepath.Join(d.cfg.IndexDir(), "approvals.json"),
		Record: func(c approval.Change) error {
			ctx, cancel := context.WithTimeout(context.Background(), recordWithin)
			defer cancel()
			return d.auditLog.Append(ctx, approvalEvent(c))
		},
		Tell: func(c approval.Change) { d.enqueue(approvalEvent(c)) },
		Wake: func(id string) {
			if d.supervisor != nil {
				d.supervisor.Answered(id)
			}
		},
	})
}

// recordWithin bounds how long an operator's answer waits for the log.
const recordWithin = 15 * time.Second

// states are what an approval's lifecycle events say.
var states = map[approval.State]string{
	approval.Pending: "asked", approval.Approved: "approved", approval.Denied: "denied", approval.Expired: "expired", approval.Withdrawn: "withdrawn",
}

// approvalEvent is the event of a change of what waits for an operator.
func approvalEvent(c approval.Change) *audit.Event {
	r, s := c.Request, c.Request.Subject
	state := states[c.State]
	if c.Ended {
		state = "revoked"
	}
	e := changed("approval/"+r.ID, "approval", state, "")
	e.Destination = &audit.Endpoint{Hostname: s.Host, Port: int(s.Port)}
	if s.Method != "" {
		scheme := "http"
		if s.Protocol == "tls" {
			scheme = "https"
		}
		e.HTTPRequest = &audit.HTTPRequest{
			Length: max(s.Length, 0),
			URL:    &audit.URL{Scheme: scheme, Hostname: s.Host, Port: int(s.Port), Path: s.Path},
		}
		e.SetMethod(s.Method)
	}
	if s.Rule != "" {
		e.Rule = &audit.Rule{Name: s.Rule, Type: s.RuleType}
	}
	if s.Policy != "" {
		e.Policy = audit.Revision(s.Policy)
	}
	x := &e.Unmapped.Sallyport
	x.Sandbox, x.SandboxID, x.Owner, x.Session, x.QueryKeys, x.Reason = s.Sandbox, s.SandboxID, s.Owner, s.Session, s.QueryKeys, r.Reason
	for _, name := range s.Credentials {
		x.Credentials = append(x.Credentials, audit.CredentialUse{Name: name})
	}
	a := &audit.Approval{ID: r.ID, By: c.By, Until: r.Expires.UnixMilli(), Query: s.Query, Body: s.Body}
	x.Approval = a
	if c.Operator.Name == "" {
		return e
	}
	a.Operator, a.UID, a.Login = c.Operator.Name, c.Operator.UID, c.Operator.Login
	e.Actor = actor(c.Operator)
	if c.Answer != nil {
		x.Reason = cmp.Or(c.Answer.Note, x.Reason)
		if c.Answer.Approve {
			a.Span = cmp.Or(string(c.Answer.Span), "once")
			a.Method, a.Path, a.Count = c.Answer.Pattern.Method, c.Answer.Pattern.Path, c.Answer.Count
			a.Until = 0
			if c.Answer.For > 0 {
				a.Until = e.Time + c.Answer.For.Milliseconds()
			}
		}
	}
	return e
}

// actor is an operator in an event.
func actor(o approval.Operator) *audit.Actor {
	a := new(audit.Actor)
	a.User.Name, a.User.UID = o.Name, o.UID
	return a
}
