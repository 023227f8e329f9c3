package auditlog

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/internal/terminal"
)

// Line is the record as one line of text without a newline, its fields parted
// by two spaces:
//
//	time  sandbox  VERDICT  what  status  bytes  duration  credential  rule  reason  id
//
// VERDICT is ALLOW, DENY, DROP, OPEN for a connection about which nothing is
// decided, or EVENT for a change of state, with the policy's
// revision and the details in place of status to duration; what does not apply is
// left out. Text that a sandbox chose is escaped: it cannot move the
// cursor, break the line or look like another field.
func Line(r Record) string {
	e, c := r.Decision, r.Completion
	if e == nil {
		if e = c; e == nil {
			return ""
		}
	}
	x := &e.Unmapped.Sallyport
	f := []string{time.UnixMilli(e.Time).UTC().Format("2006-01-02T15:04:05.000Z"), word(x.Sandbox)}
	switch {
	case x.Kind == audit.KindLifecycle:
		f = append(f, "EVENT", word(x.State))
		if e.Message != "" {
			f = append(f, strconv.Quote(short(e.Message)))
		}
		if e.Destination != nil { // of what an operator is asked about
			f = append(f, subject(e))
		}
		if e.Actor != nil && e.Actor.User.Name != "" {
			f = append(f, "by="+word(e.Actor.User.Name))
		}
		if x.Approval != nil {
			f = append(f, "approval="+word(x.Approval.ID))
		}
		if e.Policy != nil && e.Policy.Version != "" {
			f = append(f, "policy="+word(fmt.Sprintf("%.12s", e.Policy.Version)))
		}
		if e.Detail != "" {
			f = append(f, "detail="+strconv.Quote(short(e.Detail)))
		}
	case x.Kind == audit.KindFinding:
		f = append(f, "FINDING", word(x.State), strconv.Quote(short(e.Message)))
		for _, by := range e.Evidences {
			about := &audit.Event{HTTPRequest: by.HTTPRequest, Source: by.Source, Destination: by.Destination, Connection: by.Connection}
			switch {
			case by.HTTPRequest != nil:
				f = append(f, subject(about))
			case by.Actor == nil: // of a packet, not of what an operator did
				f = append(f, packet(about))
			}
		}
	case x.Kind == audit.KindDrop:
		f = append(f, "DROP", packet(e))
	case x.Kind == audit.KindConnection:
		f = append(f, "OPEN", subject(e))
	case e.Action == audit.ActionAllowed || x.Kind == audit.KindCompletion:
		f = append(f, "ALLOW", subject(e))
	default:
		f = append(f, "DENY", subject(e))
	}
	switch {
	case c != nil:
		f = append(f, result(c)...)
	case x.Kind == audit.KindDecision && e.Action == audit.ActionAllowed:
		f = append(f, "open")
	}
	if e.Count > 1 {
		f = append(f, "count="+strconv.Itoa(e.Count))
	}
	f = append(f, credentials(e, c)...)
	if e.Rule != nil && e.Rule.Name != "" {
		f = append(f, "rule="+word(e.Rule.Name))
	}
	if x.Reason != "" {
		f = append(f, "reason="+strconv.Quote(short(x.Reason)))
	}
	id := e.ID()
	if r.Decision == nil && c.Metadata.CorrelationUID != "" {
		id = c.Metadata.CorrelationUID
	}
	return strings.Join(append(f, word(id)), "  ")
}

func word(s string) string { return terminal.Word(short(s)) }

// short keeps a line readable: -o json has the whole.
func short(s string) string {
	const most = 1024 // bytes
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s…(%d bytes more)", strings.ToValidUTF8(s[:most], ""), len(s)-most)
}

// subject is what was asked for: a method and URL, a connection, or a name.
func subject(e *audit.Event) string {
	if q := e.Query; q != nil {
		return "DNS " + word(q.Type) + " " + word(q.Hostname)
	}
	host, port := "", 0
	if d := e.Destination; d != nil {
		host, port = cmp.Or(d.Hostname, d.IP), d.Port
	}
	if e.ClassUID == audit.ClassSSH {
		what := "SSH"
		if p := e.Unmapped.Sallyport.Protocol; p != "ssh" {
			what += " " + word(p)
		}
		if port != 0 {
			what += " " + word(net.JoinHostPort(host, strconv.Itoa(port)))
		}
		if e.Source != nil {
			what += " from " + endpoint(e.Source)
		}
		if e.Actor != nil {
			what += "  by=" + word(e.Actor.User.Name)
		}
		return what
	}
	r := e.HTTPRequest
	if r == nil || r.URL == nil {
		verb := "CONNECT "
		if e.Unmapped.Sallyport.Decision == "tunnel" {
			verb = "TUNNEL "
		}
		return verb + word(net.JoinHostPort(host, strconv.Itoa(port)))
	}
	u := *r.URL
	u.Hostname, u.Port = cmp.Or(u.Hostname, host), cmp.Or(u.Port, port)
	return word(e.Method()) + " " + word(u.String())
}

// packet is what the datapath dropped.
func packet(e *audit.Event) string {
	protocol := "packet"
	if e.Connection != nil && e.Connection.ProtocolName != "" {
		protocol = word(e.Connection.ProtocolName)
	}
	return protocol + " " + endpoint(e.Source) + " > " + endpoint(e.Destination)
}

func endpoint(e *audit.Endpoint) string {
	switch {
	case e == nil:
		return "-"
	case e.IP == "":
		return word(cmp.Or(e.Hostname, e.MAC, "-"))
	case e.Port == 0:
		return word(e.IP)
	}
	return word(net.JoinHostPort(e.IP, strconv.Itoa(e.Port)))
}

// result is what became of an allowed decision.
func result(c *audit.Event) []string {
	var f []string
	if c.HTTPResponse != nil && c.HTTPResponse.Code != 0 {
		f = append(f, strconv.Itoa(c.HTTPResponse.Code))
	}
	switch {
	case c.StatusID == audit.StatusFailure && c.Detail != "":
		f = append(f, "failed="+strconv.Quote(short(c.Detail)))
	case c.StatusID == audit.StatusFailure:
		f = append(f, "failed")
	case c.ClassUID == audit.ClassSSH && c.Detail != "":
		f = append(f, strconv.Quote(short(c.Detail)))
	case len(f) == 0:
		f = append(f, "done")
	}
	if t := c.Traffic; t != nil {
		f = append(f, fmt.Sprintf("in=%d out=%d", t.BytesIn, t.BytesOut))
	}
	if t := c.Unmapped.Sallyport.Tokens; t != nil {
		about := ""
		if t.Estimated {
			about = "~"
		}
		f = append(f, fmt.Sprintf("tokens=%s%d", about, t.In+t.Out))
	}
	return append(f, fmt.Sprintf("%dms", c.Duration))
}

// credentials is what was injected: the completion knows the version.
func credentials(e, c *audit.Event) []string {
	uses := e.Unmapped.Sallyport.Credentials
	if c != nil && len(c.Unmapped.Sallyport.Credentials) > 0 {
		uses = c.Unmapped.Sallyport.Credentials
	}
	var f []string
	for _, u := range uses {
		f = append(f, "credential="+word(u.String()))
	}
	return f
}
