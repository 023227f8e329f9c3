package client

import (
	"context"
	"net/url"
	"time"

	"sallyport/audit"
)

// AuditQuery selects events of the audit log. An event has to fit every field that is set.
type AuditQuery struct {
	Since       time.Time // not older
	Until       time.Time // older
	Sandbox     string    // name or ID
	Destination string    // host name or address
	Rule        string
	Credential  string // needs the scope secrets
	Decision    string // allow, deny, tunnel, approve
	Kind        audit.Kind
	Text        string // words, all of which are in host, path, reason, message, detail or state
}

// Audit returns the events of the audit log that a query selects, the oldest first.
func (c *Client) Audit(ctx context.Context, q AuditQuery) ([]audit.Event, error) {
	v := url.Values{}
	for name, text := range map[string]string{
		"sandbox": q.Sandbox, "destination": q.Destination, "rule": q.Rule, "credential": q.Credential,
		"decision": q.Decision, "kind": string(q.Kind), "text": q.Text,
	} {
		if text != "" {
			v.Set(name, text)
		}
	}
	for name, t := range map[string]time.Time{"since": q.Since, "until": q.Until} {
		if !t.IsZero() {
			v.Set(name, t.Format(time.RFC3339Nano))
		}
	}
	return All[audit.Event](ctx, c, "/v1/audit?"+v.Encode())
}
