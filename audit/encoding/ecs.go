package encoding

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

// ecsVersion is the version of the Elastic Common Schema whose field names are used. All
// but gen_ai are those of 8.17 too.
const ecsVersion = "9.3.0"

// ecs has the record in the fields of the Elastic Common Schema, in event.original as it
// is stored, and what the schema has no field for below sallyport.
func (o Origin) ecs(r auditlog.Entry) ([]byte, error) {
	e, x := shown(r.Event), &r.Event.Unmapped.Sallyport
	d := document{}
	d.set("@timestamp", timestamp(e.Time))
	d.set("ecs.version", ecsVersion)
	put(d, "message", e.Message)
	d.event(e)
	d.set("event.original", string(r.JSON))
	d.set("event.hash", leaf(r.JSON))
	put(d, "observer.vendor", e.Metadata.Product.VendorName)
	put(d, "observer.product", e.Metadata.Product.Name)
	put(d, "observer.version", e.Metadata.Product.Version)
	d.set("observer.type", "proxy")
	put(d, "organization.id", x.Owner)
	put(d, "host.name", x.Node)
	put(d, "orchestrator.cluster.name", x.Cluster)
	if x.Node != "" {
		d.set("orchestrator.type", "kubernetes")
	}
	d.endpoint("source", e.Source)
	d.endpoint("destination", e.Destination)
	d.list("related.hosts", hosts(e.Source, e.Destination)...)
	d.list("related.ip", addresses(e.Source, e.Destination)...)
	d.traffic(e)
	d.request(e)
	if e.Rule != nil {
		put(d, "rule.name", e.Rule.Name)
		put(d, "rule.category", e.Rule.Type)
	}
	if e.Policy != nil {
		put(d, "rule.ruleset", e.Policy.Name)
		put(d, "rule.version", e.Policy.Version)
	}
	if e.Actor != nil {
		put(d, "user.name", e.Actor.User.Name)
		put(d, "user.id", e.Actor.User.UID)
		d.list("related.user", e.Actor.User.Name)
	}
	put(d, "container.name", x.Sandbox)
	put(d, "container.id", x.SandboxID)
	if e.Entity != nil && e.Entity.Data != nil {
		put(d, "container.image.name", e.Entity.Data.Image)
		put(d, "container.runtime", e.Entity.Data.Runtime)
	}
	if x.Tokens != nil {
		put(d, "gen_ai.request.model", x.Tokens.Model)
		put(d, "gen_ai.usage.input_tokens", x.Tokens.In)
		put(d, "gen_ai.usage.output_tokens", x.Tokens.Out)
	}
	for _, k := range slices.Sorted(maps.Keys(x.Tags)) { // a dot would make an object of it
		d.set("labels."+strings.ReplaceAll(k, ".", "_"), x.Tags[k])
	}
	if err := d.rest(o, e); err != nil {
		return nil, err
	}
	return marshal(d)
}

// event sets the fields that sort events.
func (d document) event(e *audit.Event) {
	x := &e.Unmapped.Sallyport
	put(d, "event.action", action(e))
	d.set("event.code", strconv.Itoa(e.TypeUID))
	d.set("event.dataset", "sallyport.audit")
	d.set("event.module", "sallyport")
	put(d, "event.duration", min(max(e.Duration, 0), math.MaxInt64/int64(time.Millisecond))*int64(time.Millisecond))
	put(d, "event.id", e.Metadata.UID)
	d.set("event.kind", "event")
	if x.Kind == audit.KindFinding {
		d.set("event.kind", "alert")
	}
	put(d, "event.reason", x.Reason)
	d.set("event.sequence", e.Metadata.Sequence)
	d.set("event.severity", int(e.SeverityID))
	if e.StartTime != 0 {
		d.set("event.start", timestamp(e.StartTime))
	}
	outcome := map[audit.Status]string{audit.StatusSuccess: "success", audit.StatusFailure: "failure"}[e.StatusID]
	if x.Kind == audit.KindFinding || outcome == "" { // whose status is one of triage
		outcome = "unknown"
	}
	d.set("event.outcome", outcome)
	if outcome == "failure" {
		put(d, "error.message", e.Detail)
	}
	category, types := categories(e)
	d.list("event.category", category...)
	d.list("event.type", types...)
}

// categories are the values of event.category and event.type.
func categories(e *audit.Event) (category, types []string) {
	switch e.ClassUID {
	case audit.ClassFinding:
		category, types = []string{"intrusion_detection"}, []string{"info"}
	case audit.ClassHTTP:
		category, types = []string{"network", "web"}, []string{"access"}
	case audit.ClassNetwork, audit.ClassDNS:
		category, types = []string{"network"}, []string{"connection"}
	case audit.ClassSSH:
		category, types = []string{"network", "session"}, []string{"connection"}
	case audit.ClassEntity, audit.ClassAPI:
		category, types = []string{"configuration"}, []string{map[int]string{1: "creation", 2: "access", 4: "deletion"}[e.ActivityID], "info"}
		types[0] = cmp.Or(types[0], "change")
	default:
		category, types = []string{"process"}, []string{map[int]string{audit.LifecycleStart: "start", audit.LifecycleStop: "end"}[e.ActivityID], "info"}
	}
	switch e.Action {
	case audit.ActionAllowed:
		types = append(types, "allowed")
	case audit.ActionDenied:
		types = append(types, "denied")
	}
	if e.Unmapped.Sallyport.Kind == audit.KindCompletion {
		types = append(types, "end")
	}
	return category, types
}

// action is the most telling word about an event.
func action(e *audit.Event) string {
	x := &e.Unmapped.Sallyport
	switch {
	case x.State != "":
		return x.State
	case x.Kind == audit.KindDecision && x.Decision != "":
		return x.Decision
	}
	return string(x.Kind)
}

func (d document) endpoint(at string, p *audit.Endpoint) {
	if p == nil {
		return
	}
	for _, address := range []string{p.Hostname, p.IP, p.Name} {
		if address != "" {
			d.set(at+".address", address)
			break
		}
	}
	put(d, at+".domain", p.Hostname)
	put(d, at+".ip", p.IP)
	put(d, at+".mac", strings.ToUpper(strings.ReplaceAll(p.MAC, ":", "-"))) // RFC 7042
	put(d, at+".port", p.Port)
}

func hosts(all ...*audit.Endpoint) (list []string) {
	for _, p := range all {
		if p != nil {
			list = append(list, p.Hostname)
		}
	}
	return list
}

func addresses(all ...*audit.Endpoint) (list []string) {
	for _, p := range all {
		if p != nil {
			list = append(list, p.IP)
		}
	}
	return list
}

// traffic sets what is about a connection and its bytes.
func (d document) traffic(e *audit.Event) {
	inbound := false
	if c := e.Connection; c != nil {
		inbound = c.Direction == 1
		put(d, "network.direction", map[int]string{1: "inbound", 2: "outbound"}[c.Direction])
		put(d, "network.transport", c.ProtocolName)
		if c.ProtocolNum != 0 {
			d.set("network.iana_number", strconv.Itoa(c.ProtocolNum))
		}
	}
	protocol := e.Unmapped.Sallyport.Protocol
	switch {
	case e.ClassUID == audit.ClassHTTP:
		protocol = "http"
	case e.ClassUID == audit.ClassDNS:
		protocol = "dns"
	case e.ClassUID == audit.ClassSSH:
		protocol = "ssh"
	case protocol == "other":
		protocol = ""
	}
	put(d, "network.protocol", protocol)
	if t := e.Traffic; t != nil {
		toSandbox, fromSandbox := "destination.bytes", "source.bytes"
		if inbound {
			toSandbox, fromSandbox = fromSandbox, toSandbox
		}
		d.set(toSandbox, t.BytesIn)
		d.set(fromSandbox, t.BytesOut)
		d.set("network.bytes", t.BytesIn+t.BytesOut)
		put(d, "network.packets", t.Packets)
	}
	if t := e.TLS; t != nil {
		put(d, "tls.client.server_name", t.SNI)
		put(d, "tls.version", t.Version)
	}
	if q := e.Query; q != nil {
		d.set("dns.type", "query")
		put(d, "dns.question.name", q.Hostname)
		put(d, "dns.question.type", q.Type)
	}
}

func (d document) request(e *audit.Event) {
	put(d, "http.request.method", e.Method())
	if q := e.HTTPRequest; q != nil {
		put(d, "http.version", strings.TrimPrefix(q.Version, "HTTP/"))
		put(d, "http.request.body.bytes", q.Length)
		if u := q.URL; u != nil {
			put(d, "url.domain", u.Hostname)
			put(d, "url.path", u.Path)
			put(d, "url.port", u.Port)
			put(d, "url.scheme", u.Scheme)
		}
	}
	if a := e.HTTPResponse; a != nil {
		put(d, "http.response.status_code", a.Code)
		put(d, "http.response.body.bytes", a.Length)
	}
}

// rest has what ECS has no field for, below sallyport.
func (d document) rest(o Origin, e *audit.Event) error {
	own := document{}
	if err := convert(&own, e.Unmapped.Sallyport); err != nil {
		return err
	}
	for _, elsewhere := range []string{"tags", "owner", "sandbox", "sandbox_id", "reason", "http_method"} {
		delete(own, elsewhere)
	}
	put(own, "log", o.Log)
	put(own, "correlation_uid", e.Metadata.CorrelationUID)
	put(own, "count", e.Count)
	put(own, "activity", e.ActivityName)
	put(own, "class_uid", int(e.ClassUID))
	put(own, "disposition_id", int(e.Disposition))
	put(own, "detail", e.Detail)
	for name, part := range map[string]any{
		"api": e.API, "app": e.App, "entity": e.Entity, "finding": e.FindingInfo, "proxy": e.Proxy, "evidences": e.Evidences, "resources": e.Resources,
	} {
		var v any
		if err := convert(&v, part); err != nil {
			return err
		}
		if v != nil {
			own[name] = v
		}
	}
	if e.Actor != nil {
		put(own, "actor_app", e.Actor.AppName)
	}
	d["sallyport"] = own
	return nil
}

// convert makes documents of structs.
func convert(to, from any) error {
	b, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

// document is a tree of fields. Empty fields are left out.
type document map[string]any

// put sets the field of a path, such as source.ip, unless the value is empty.
func put[T comparable](d document, path string, v T) {
	if v != *new(T) {
		d.set(path, v)
	}
}

func (d document) set(path string, v any) {
	name, rest, more := strings.Cut(path, ".")
	if !more {
		d[name] = v
		return
	}
	below, _ := d[name].(document)
	if below == nil {
		below = document{}
		d[name] = below
	}
	below.set(rest, v)
}

// list sets a field that has several values, without repeats and in order.
func (d document) list(path string, values ...string) {
	values = slices.DeleteFunc(slices.Clone(values), func(s string) bool { return s == "" })
	slices.Sort(values)
	if values = slices.Compact(values); len(values) > 0 {
		d.set(path, values)
	}
}

func timestamp(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }
