package encoding

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

// Severities of CEF go from 0 to 10.
var cefSeverities = map[audit.Severity]int{
	audit.SeverityInformational: 2, audit.SeverityLow: 4, audit.SeverityMedium: 6, audit.SeverityHigh: 8, audit.SeverityCritical: 10,
}

// cefNames are the names of events.
var cefNames = map[audit.Class]string{
	audit.ClassFinding: "Detection Finding", audit.ClassEntity: "Entity Management", audit.ClassNetwork: "Network Activity", audit.ClassHTTP: "HTTP Activity",
	audit.ClassDNS: "DNS Activity", audit.ClassSSH: "SSH Activity", audit.ClassLifecycle: "Application Lifecycle", audit.ClassAPI: "API Activity",
}

// cef has the record in ArcSight's Common Event Format, version 0. The keys are those of
// its dictionary; the last, rawEvent, is the record as it is stored.
func (o Origin) cef(r auditlog.Entry) ([]byte, error) {
	e, x := shown(r.Event), &r.Event.Unmapped.Sallyport
	var b strings.Builder
	b.WriteString("CEF:0")
	for _, field := range []string{
		e.Metadata.Product.VendorName, e.Metadata.Product.Name, e.Metadata.Product.Version,
		strconv.Itoa(e.TypeUID), cefNames[e.ClassUID] + ": " + action(e), strconv.Itoa(cefSeverities[e.SeverityID]),
	} {
		b.WriteString("|" + cefHeader.Replace(plain(field)))
	}
	b.WriteByte('|')
	var ext cefExtension
	ext.text("rt", strconv.FormatInt(e.Time, 10))
	ext.text("externalId", e.Metadata.UID)
	ext.text("cat", string(x.Kind))
	ext.text("act", action(e))
	if x.Kind != audit.KindFinding { // whose status is one of triage
		ext.text("outcome", map[audit.Status]string{audit.StatusSuccess: "success", audit.StatusFailure: "failure"}[e.StatusID])
	}
	ext.text("reason", x.Reason)
	ext.text("msg", message(e))
	ext.number("cnt", int64(e.Count))
	ext.number("start", e.StartTime)
	ext.source(e)
	ext.destination(e)
	ext.connection(e)
	ext.labelled("cs1", "sandbox", x.Sandbox)
	ext.labelled("cs2", "sandboxId", x.SandboxID)
	if e.Rule != nil {
		ext.labelled("cs3", "rule", e.Rule.Name)
	}
	if e.Policy != nil {
		ext.labelled("cs4", "policyRevision", e.Policy.Version)
	}
	ext.labelled("cs5", "credentials", credentials(x))
	ext.text("dvchost", x.Node)
	ext.text("deviceExternalId", o.Log) // logOf wants the next key to follow
	ext.labelled("cs6", "leafHash", leaf(r.JSON))
	if e.HTTPResponse != nil {
		ext.labelled("cn1", "httpStatus", nonzero(int64(e.HTTPResponse.Code)))
	}
	ext.labelled("cn2", "durationMs", nonzero(e.Duration))
	ext.labelled("cn3", "sequence", strconv.FormatUint(e.Metadata.Sequence, 10))
	ext.labelled("flexString1", "decision", e.Metadata.CorrelationUID)
	ext.labelled("flexString2", "subject", e.Subject())
	ext.raw("rawEvent", string(r.JSON)) // JSON, which has no control characters that end a line
	return []byte(b.String() + ext.String()), nil
}

// message is the event's, with its detail.
func message(e *audit.Event) string {
	switch {
	case e.Detail == "":
		return e.Message
	case e.Message == "":
		return e.Detail
	}
	return e.Message + ": " + e.Detail
}

func credentials(x *audit.Extension) string {
	var names []string
	for _, u := range x.Credentials {
		names = append(names, u.String())
	}
	return strings.Join(names, ",")
}

func nonzero(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// cefExtension is the last part of a line.
type cefExtension struct{ strings.Builder }

func (b *cefExtension) text(key, value string) {
	if value != "" {
		b.raw(key, plain(value))
	}
}

func (b *cefExtension) raw(key, value string) {
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	b.WriteString(key + "=" + cefValue.Replace(value))
}

func (b *cefExtension) number(key string, n int64) { b.text(key, nonzero(n)) }

// labelled sets one of the custom fields.
func (b *cefExtension) labelled(key, label, value string) {
	if value == "" {
		return
	}
	b.text(key+"Label", label)
	b.text(key, value)
}

func (b *cefExtension) source(e *audit.Event) {
	if p := e.Source; p != nil {
		b.text("src", p.IP)
		b.number("spt", int64(p.Port))
		b.text("smac", p.MAC)
		b.text("shost", hostOf(p))
	}
	if e.Actor != nil {
		b.text("suser", e.Actor.User.Name)
		b.text("suid", e.Actor.User.UID)
		b.text("sproc", e.Actor.AppName)
	}
}

func (b *cefExtension) destination(e *audit.Event) {
	host := ""
	if p := e.Destination; p != nil {
		b.text("dst", p.IP)
		b.number("dpt", int64(p.Port))
		b.text("dmac", p.MAC)
		host = hostOf(p)
	}
	if e.Query != nil {
		host = e.Query.Hostname
	}
	b.text("dhost", host)
}

// hostOf is the name of an endpoint.
func hostOf(p *audit.Endpoint) string {
	if p.Hostname != "" {
		return p.Hostname
	}
	return p.Name
}

func (b *cefExtension) connection(e *audit.Event) {
	if c := e.Connection; c != nil {
		b.text("proto", strings.ToUpper(c.ProtocolName))
		b.text("deviceDirection", map[int]string{1: "0", 2: "1"}[c.Direction])
	}
	app := e.Unmapped.Sallyport.Protocol
	if q := e.HTTPRequest; q != nil && q.URL != nil {
		app = q.URL.Scheme
		b.text("request", q.URL.String())
	}
	b.text("app", app)
	b.text("requestMethod", e.Method())
	if t := e.Traffic; t != nil { // in and out are those of the source
		in, out := t.BytesIn, t.BytesOut
		if c := e.Connection; c != nil && c.Direction == 1 {
			in, out = out, in
		}
		b.text("in", strconv.FormatInt(in, 10))
		b.text("out", strconv.FormatInt(out, 10))
	}
}

// A header's fields end at a bar, and have one line. An extension's value ends where
// another key begins.
var (
	cefHeader = strings.NewReplacer(`\`, `\\`, `|`, `\|`, "\n", " ", "\r", " ")
	cefValue  = strings.NewReplacer(`\`, `\\`, `=`, `\=`, "\n", `\n`, "\r", `\r`)
)

// plain replaces control characters, for which CEF has no escape, but for those that end
// a line.
func plain(s string) string {
	return strings.Map(func(c rune) rune {
		if (c < ' ' || c == 0x7f || c == 0x85 || c == '\u2028' || c == '\u2029') && c != '\n' && c != '\r' {
			return '\uFFFD'
		}
		return c
	}, s)
}

// rawEvent is the last key of a line, and the first with this name behind the header: in a
// value, the sign after it would be escaped.
const rawEvent = " rawEvent="

var errNoCEF = errors.New("it is no record in CEF")

// extension is what follows the header.
func extension(line string) (ext string, ok bool) {
	_, ext, ok = strings.Cut(strings.TrimRight(line, "\r\n"), "CEF:0|")
	for bars := 0; ok && bars < 6; bars++ {
		ext, ok = field(ext)
	}
	return ext, ok
}

// logOf is the log that a line names.
func logOf(line string) string {
	ext, _ := extension(line)
	_, log, _ := strings.Cut(ext, " deviceExternalId=")
	log, _, _ = strings.Cut(log, " cs6Label=")
	return log
}

// field is what follows the first field of a header, whose end is a bar.
func field(s string) (rest string, ok bool) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '|':
			return s[i+1:], true
		}
	}
	return "", false
}

// FromCEF returns the line of the log from a record in the encoding "cef".
func FromCEF(line string) (string, error) {
	ext, ok := extension(line)
	_, value, found := strings.Cut(ext, rawEvent)
	if !ok || !found {
		return "", errNoCEF
	}
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		c := value[i]
		if c == '\\' {
			if i++; i == len(value) {
				return "", fmt.Errorf("%w: it is not complete", errNoCEF)
			}
			switch c = value[i]; c {
			case 'n':
				c = '\n'
			case 'r':
				c = '\r'
			}
		}
		b.WriteByte(c)
	}
	return b.String(), nil
}
