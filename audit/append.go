package audit

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
)

// The functions here write what encoding/json writes for the same value, in a
// quarter of the time: each request waits for two events to be encoded. A test
// holds the two together.

// appendEvent appends an event under the number 0, and returns the offset of
// that digit.
func appendEvent(dst []byte, e *Event) (_ []byte, sequence int) {
	o := object{buf: append(dst, '{')}
	o.key("metadata")
	sequence = o.metadata(&e.Metadata)
	o.int("time", e.Time)
	o.int("category_uid", int64(e.CategoryUID))
	o.int("class_uid", int64(e.ClassUID))
	o.int("activity_id", int64(e.ActivityID))
	o.int("type_uid", int64(e.TypeUID))
	o.int("severity_id", int64(e.SeverityID))
	o.intSet("status_id", int64(e.StatusID))
	o.intSet("action_id", int64(e.Action))
	o.intSet("disposition_id", int64(e.Disposition))
	o.stringSet("message", e.Message)
	o.stringSet("status_detail", e.Detail)
	o.endpoint("src_endpoint", e.Source)
	o.endpoint("dst_endpoint", e.Destination)
	if c := e.Connection; c != nil {
		o.open("connection_info")
		o.stringSet("protocol_name", c.ProtocolName)
		o.intSet("protocol_num", int64(c.ProtocolNum))
		o.int("direction_id", int64(c.Direction))
		o.close()
	}
	if r := e.HTTPRequest; r != nil {
		o.open("http_request")
		o.stringSet("http_method", r.Method)
		o.stringSet("version", r.Version)
		if u := r.URL; u != nil {
			o.open("url")
			o.stringSet("scheme", u.Scheme)
			o.stringSet("hostname", u.Hostname)
			o.intSet("port", int64(u.Port))
			o.stringSet("path", u.Path)
			o.close()
		}
		o.intSet("length", r.Length)
		o.close()
	}
	if r := e.HTTPResponse; r != nil {
		o.open("http_response")
		o.int("code", int64(r.Code))
		o.intSet("length", r.Length)
		o.close()
	}
	if q := e.Query; q != nil {
		o.open("query")
		o.string("hostname", q.Hostname)
		o.stringSet("type", q.Type)
		o.close()
	}
	if t := e.TLS; t != nil {
		o.open("tls")
		o.stringSet("sni", t.SNI)
		o.string("version", t.Version)
		o.close()
	}
	if t := e.Traffic; t != nil {
		o.open("traffic")
		o.int("bytes_in", t.BytesIn)
		o.int("bytes_out", t.BytesOut)
		o.intSet("packets", t.Packets)
		o.close()
	}
	if r := e.Rule; r != nil {
		o.open("firewall_rule")
		o.stringSet("name", r.Name)
		o.stringSet("type", r.Type)
		o.close()
	}
	if p := e.Policy; p != nil {
		o.open("policy")
		o.stringSet("name", p.Name)
		o.stringSet("version", p.Version)
		o.close()
	}
	if a := e.Actor; a != nil {
		o.open("actor")
		o.open("user")
		o.stringSet("name", a.User.Name)
		o.stringSet("uid", a.User.UID)
		o.close()
		o.close()
	}
	if e.App != nil {
		o.key("app")
		o.product(e.App)
	}
	o.intSet("duration", e.Duration)
	o.intSet("count", int64(e.Count))
	o.intSet("start_time", e.StartTime)
	o.open("unmapped")
	o.open("sallyport")
	o.extension(&e.Unmapped.Sallyport)
	o.close()
	o.close()
	o.close()
	return o.buf, sequence
}

// object appends the members of JSON objects.
type object struct{ buf []byte }

// key begins a member: with a comma unless it is an object's first.
func (o *object) key(name string) {
	if o.buf[len(o.buf)-1] != '{' {
		o.buf = append(o.buf, ',')
	}
	o.buf = append(o.buf, '"')
	o.buf = append(o.buf, name...)
	o.buf = append(o.buf, '"', ':')
}

func (o *object) open(name string) {
	o.key(name)
	o.buf = append(o.buf, '{')
}

func (o *object) close() { o.buf = append(o.buf, '}') }

func (o *object) int(name string, v int64) {
	o.key(name)
	o.buf = strconv.AppendInt(o.buf, v, 10)
}

// intSet and the like leave zero values out.
func (o *object) intSet(name string, v int64) {
	if v != 0 {
		o.int(name, v)
	}
}

func (o *object) string(name, v string) {
	o.key(name)
	o.buf = appendString(o.buf, v)
}

func (o *object) stringSet(name, v string) {
	if v != "" {
		o.string(name, v)
	}
}

func (o *object) stringsSet(name string, vs []string) {
	if len(vs) == 0 {
		return
	}
	o.key(name)
	o.buf = append(o.buf, '[')
	for i, v := range vs {
		if i > 0 {
			o.buf = append(o.buf, ',')
		}
		o.buf = appendString(o.buf, v)
	}
	o.buf = append(o.buf, ']')
}

func (o *object) metadata(m *Metadata) (sequence int) {
	o.buf = append(o.buf, '{')
	o.string("version", m.Version)
	o.stringsSet("profiles", m.Profiles)
	o.key("product")
	o.product(&m.Product)
	o.string("uid", m.UID)
	o.key("sequence")
	sequence = len(o.buf)
	o.buf = append(o.buf, '0')
	o.stringSet("correlation_uid", m.CorrelationUID)
	o.close()
	return sequence
}

func (o *object) product(p *Product) {
	o.buf = append(o.buf, '{')
	o.string("name", p.Name)
	o.stringSet("vendor_name", p.VendorName)
	o.stringSet("version", p.Version)
	o.close()
}

func (o *object) endpoint(name string, e *Endpoint) {
	if e == nil {
		return
	}
	o.open(name)
	o.stringSet("hostname", e.Hostname)
	o.stringSet("ip", e.IP)
	o.intSet("port", int64(e.Port))
	o.stringSet("mac", e.MAC)
	o.close()
}

func (o *object) extension(x *Extension) {
	o.string("kind", string(x.Kind))
	o.stringSet("sandbox", x.Sandbox)
	o.stringSet("sandbox_id", x.SandboxID)
	o.stringSet("session", x.Session)
	if len(x.Tags) > 0 {
		o.open("tags")
		for _, k := range slices.Sorted(maps.Keys(x.Tags)) {
			if o.buf[len(o.buf)-1] != '{' {
				o.buf = append(o.buf, ',')
			}
			o.buf = append(appendString(o.buf, k), ':')
			o.buf = appendString(o.buf, x.Tags[k])
		}
		o.close()
	}
	o.stringSet("phase", x.Phase)
	o.stringSet("decision", x.Decision)
	if len(x.Credentials) > 0 {
		o.key("credentials")
		for i, c := range x.Credentials {
			o.buf = append(o.buf, "[,"[min(i, 1)], '{')
			o.string("name", c.Name)
			o.stringSet("version", c.Version)
			o.close()
		}
		o.buf = append(o.buf, ']')
	}
	o.stringSet("reason", x.Reason)
	o.stringSet("state", x.State)
	o.stringsSet("header_names", x.HeaderNames)
	o.stringsSet("query_keys", x.QueryKeys)
}

// appendString leaves whatever is not plain ASCII to encoding/json.
func appendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			var b bytes.Buffer
			enc := json.NewEncoder(&b)
			enc.SetEscapeHTML(false)
			_ = enc.Encode(s) // a string has no error
			return append(dst, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}
