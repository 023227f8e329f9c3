package api_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// Events of the audit log are found by their fields, in pages; a tenant finds those of
// its sandboxes, and nobody finds what is withheld.
func TestAudit(t *testing.T) {
	root, _, h := serve(t, true)
	h.audit = t.TempDir()
	log := need[*auditlog.Log](t)(auditlog.Open(h.audit, auditlog.Options{}))
	defer log.Close()
	acme, acmeText := keyed(t, h, "acme", "acme", "read", "run")
	reader, _ := keyed(t, h, "reader", "", "read")
	mine := need[sandbox.Info](t)(acme.Create(t.Context(), "mine", sandbox.Spec{}))
	add := func(class audit.Class, kind audit.Kind, message, name, id, owner string) *audit.Event {
		t.Helper()
		e := audit.New(kind, class, audit.ActivityOther)
		e.Message, e.Source = message, &audit.Endpoint{IP: "192.0.2.7"}
		e.Destination = &audit.Endpoint{Hostname: "api.example.test", Port: 443}
		x := &e.Unmapped.Sallyport
		x.Sandbox, x.SandboxID, x.Owner = name, id, owner
		x.Credentials = []audit.CredentialUse{{Name: "api-key", Version: "3"}}
		x.Subject = map[bool]string{true: "sandbox/" + name, false: "secret/api-key"}[name != ""]
		must.OK(t, log.Append(t.Context(), e))
		return e
	}
	add(audit.ClassHTTP, audit.KindDecision, "one", "mine", mine.ID, "")
	add(audit.ClassHTTP, audit.KindDecision, "two in /srv/host/path of it", "mine", mine.ID, "")
	add(audit.ClassSSH, audit.KindDecision, "three", "mine", mine.ID, "")
	add(audit.ClassLifecycle, audit.KindLifecycle, "four", "gone", "eeee", "acme")
	add(audit.ClassHTTP, audit.KindDecision, "five", "theirs", "ffff", "")
	add(audit.ClassLifecycle, audit.KindLifecycle, "six", "theirs", "ffff", "other")
	add(audit.ClassLifecycle, audit.KindLifecycle, "seven", "", "", "")
	add(audit.ClassLifecycle, audit.KindLifecycle, "eight", "", "", "acme")

	found := func(c *client.Client, q client.AuditQuery) string {
		t.Helper()
		var all []string
		for _, e := range need[[]audit.Event](t)(c.Audit(t.Context(), q)) {
			word, _, _ := strings.Cut(e.Message, " ")
			all = append(all, word)
		}
		return fmt.Sprint(all)
	}
	for _, tt := range []struct {
		what string
		c    *client.Client
		q    client.AuditQuery
		want string
	}{
		{"all", root, client.AuditQuery{}, "[one two three four five six seven eight]"},
		{"without the scope of secrets", reader, client.AuditQuery{}, "[one two three four five six]"},
		{"a tenant's", acme, client.AuditQuery{}, "[one two three four]"},
		{"a tenant's, of another's sandbox", acme, client.AuditQuery{Sandbox: "theirs"}, "[]"},
		{"a tenant's, by another's ID", acme, client.AuditQuery{Sandbox: "ffff"}, "[]"},
		{"by kind", root, client.AuditQuery{Kind: audit.KindLifecycle}, "[four six seven eight]"},
		{"by credential", root, client.AuditQuery{Credential: "api-key", Text: "FIVE"}, "[five]"},
		{"by time", root, client.AuditQuery{Since: time.Now().Add(time.Hour)}, "[]"},
		{"by text", acme, client.AuditQuery{Text: "of two", Destination: "API.example.test"}, "[two]"},
		{"by text that is withheld", acme, client.AuditQuery{Text: "srv"}, "[]"},
		{"by that text", reader, client.AuditQuery{Text: "srv"}, "[two]"},
	} {
		if got := found(tt.c, tt.q); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.what, got, tt.want)
		}
	}
	for _, e := range need[[]audit.Event](t)(acme.Audit(t.Context(), client.AuditQuery{})) {
		if e.Unmapped.Sallyport.Credentials[0].Name == "api-key" || strings.Contains(e.Message, "/srv") || (e.Source != nil) != (e.ClassUID != audit.ClassSSH) {
			t.Errorf("a tenant is told %+v", e)
		}
	}
	if _, err := reader.Audit(t.Context(), client.AuditQuery{Credential: "api-key"}); !isProblem(err, "scope") {
		t.Errorf("by a credential, without the scope: %v", err)
	}

	status, _, answer, head := raw(t, h, acmeText, "GET", "/v1/audit?limit=2&text="+url.QueryEscape("two three four one"), "")
	if status != 200 || strings.TrimSpace(string(answer)) != "[]" || head.Get("Link") != "" {
		t.Errorf("nothing: %d %s %v", status, answer, head)
	}
	var pages []string
	for path := "/v1/audit?limit=3"; path != ""; {
		status, _, answer, head := raw(t, h, acmeText, "GET", path, "")
		if status != 200 {
			t.Fatalf("%s: %d %s", path, status, answer)
		}
		pages = append(pages, fmt.Sprint(strings.Count(string(answer), `"uid":"0`)))
		link, _, _ := strings.Cut(strings.TrimPrefix(head.Get("Link"), "<"), ">")
		path = link
	}
	if got := strings.Join(pages, " "); got != "3 1" {
		t.Errorf("pages of %s", got)
	}
	for _, bad := range []string{"since=yesterday", "until=1", "limit=0", "limit=1001", "cursor=!", "cursor=eHg"} {
		if status, kind, _, _ := raw(t, h, acmeText, "GET", "/v1/audit?"+bad, ""); status != 400 || kind != "bad-request" {
			t.Errorf("%s: %d %s", bad, status, kind)
		}
	}
}

func isProblem(err error, kind string) bool {
	var p *client.Problem
	return errors.As(err, &p) && p.Type == client.ProblemType+kind
}
