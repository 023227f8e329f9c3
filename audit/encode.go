package audit

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
)

// The functions here write what encoding/json writes for the same value, in a
// small part of the time: each request waits for two events to be encoded. A
// test holds the two together.

// usual is how the events of New begin that are not of ClassLifecycle.
const usual = `"metadata":{"version":"` + SchemaVersion + `","profiles":["` + securityControl + `"],"product":{"name":"` + product +
	`","vendor_name":"` + product + `"},"uid":`

// appendEvent appends an event under the number 0, and returns the offset of
// that digit.
func appendEvent(dst []byte, e *Event) (_ []byte, sequence int) {
	o := jsonWriter{append(dst, '{')}
	sequence = o.metadata(&e.Metadata)
	o.int(`"time":`, e.Time)
	o.int(`"category_uid":`, int64(e.CategoryUID))
	o.int(`"class_uid":`, int64(e.ClassUID))
	o.int(`"activity_id":`, int64(e.ActivityID))
	o.int(`"type_uid":`, int64(e.TypeUID))
	o.int(`"severity_id":`, int64(e.SeverityID))
	o.intSet(`"status_id":`, int64(e.StatusID))
	o.intSet(`"action_id":`, int64(e.Action))
	o.intSet(`"disposition_id":`, int64(e.Disposition))
	o.stringSet(`"message":`, e.Message)
	o.stringSet(`"status_detail":`, e.Detail)
	o.endpoint(`"src_endpoint":{`, e.Source)
	o.endpoint(`"dst_endpoint":{`, e.Destination)
	if c := e.Connection; c != nil {
		o.raw(`"connection_info":{`)
		o.stringSet(`"protocol_name":`, c.ProtocolName)
		o.intSet(`"protocol_num":`, int64(c.ProtocolNum))
		o.int(`"direction_id":`, int64(c.Direction))
		o.close()
	}
	if r := e.HTTPRequest; r != nil {
		o.raw(`"http_request":{`)
		o.stringSet(`"http_method":`, r.Method)
		o.stringSet(`"version":`, r.Version)
		if u := r.URL; u != nil {
			o.raw(`"url":{`)
			o.stringSet(`"scheme":`, u.Scheme)
			o.stringSet(`"hostname":`, u.Hostname)
			o.intSet(`"port":`, int64(u.Port))
			o.stringSet(`"path":`, u.Path)
			o.close()
		}
		o.intSet(`"length":`, r.Length)
		o.close()
	}
	if r := e.HTTPResponse; r != nil {
		o.raw(`"http_response":{`)
		o.int(`"code":`, int64(r.Code))
		o.intSet(`"length":`, r.Length)
		o.close()
	}
	if q := e.Query; q != nil {
		o.raw(`"query":{`)
		o.string(`"hostname":`, q.Hostname)
		o.stringSet(`"type":`, q.Type)
		o.close()
	}
	if t := e.TLS; t != nil {
		o.raw(`"tls":{`)
		o.stringSet(`"sni":`, t.SNI)
		o.string(`"version":`, t.Version)
		o.close()
	}
	if t := e.Traffic; t != nil {
		o.raw(`"traffic":{`)
		o.int(`"bytes_in":`, t.BytesIn)
		o.int(`"bytes_out":`, t.BytesOut)
		o.intSet(`"packets":`, t.Packets)
		o.close()
	}
	if r := e.Rule; r != nil {
		o.raw(`"firewall_rule":{`)
		o.stringSet(`"name":`, r.Name)
		o.stringSet(`"type":`, r.Type)
		o.close()
	}
	if p := e.Policy; p != nil {
		o.raw(`"policy":{`)
		o.stringSet(`"name":`, p.Name)
		o.stringSet(`"version":`, p.Version)
		o.close()
	}
	if a := e.Actor; a != nil {
		o.raw(`"actor":{"user":{`)
		o.stringSet(`"name":`, a.User.Name)
		o.stringSet(`"uid":`, a.User.UID)
		o.close()
		o.close()
	}
	if e.App != nil {
		o.raw(`"app":{`)
		o.product(e.App)
	}
	o.intSet(`"duration":`, e.Duration)
	o.intSet(`"count":`, int64(e.Count))
	o.intSet(`"start_time":`, e.StartTime)
	o.raw(`"unmapped":{"sallyport":{`)
	o.extension(&e.Unmapped.Sallyport)
	o.close()
	o.close()
	o.close()
	return o.buf[:len(o.buf)-1], sequence
}

// jsonWriter appends the members of JSON objects, each with a comma after it. What
// is called a key is all of a member that comes before its value.
type jsonWriter struct{ buf []byte }

// close ends an object: the comma after its last member goes.
func (o *jsonWriter) close() {
	if end := len(o.buf) - 1; o.buf[end] == ',' {
		o.buf = o.buf[:end]
	}
	o.buf = append(o.buf, '}', ',')
}

func (o *jsonWriter) raw(s string) { o.buf = append(o.buf, s...) }

func (o *jsonWriter) int(key string, v int64) {
	o.buf = append(o.buf, key...)
	o.buf = append(strconv.AppendInt(o.buf, v, 10), ',')
}

// intSet and the like leave zero values out.
func (o *jsonWriter) intSet(key string, v int64) {
	if v != 0 {
		o.int(key, v)
	}
}

func (o *jsonWriter) string(key, v string) {
	o.buf = append(o.buf, key...)
	o.buf = append(appendString(o.buf, v), ',')
}

func (o *jsonWriter) stringSet(key, v string) {
	if v != "" {
		o.string(key, v)
	}
}

func (o *jsonWriter) stringsSet(key string, vs []string) {
	if len(vs) == 0 {
		return
	}
	o.buf = append(o.buf, key...)
	for i, v := range vs {
		o.buf = append(o.buf, "[,"[min(i, 1)])
		o.buf = appendString(o.buf, v)
	}
	o.buf = append(o.buf, ']', ',')
}

func (o *jsonWriter) metadata(m *Metadata) (sequence int) {
	if m.Version == SchemaVersion && len(m.Profiles) == 1 && m.Profiles[0] == securityControl && m.Product == own {
		o.string(usual, m.UID)
	} else {
		o.raw(`"metadata":{`)
		o.string(`"version":`, m.Version)
		o.stringsSet(`"profiles":`, m.Profiles)
		o.raw(`"product":{`)
		o.product(&m.Product)
		o.string(`"uid":`, m.UID)
	}
	o.raw(`"sequence":0,`)
	sequence = len(o.buf) - 2
	o.stringSet(`"correlation_uid":`, m.CorrelationUID)
	o.close()
	return sequence
}

func (o *jsonWriter) product(p *Product) {
	o.string(`"name":`, p.Name)
	o.stringSet(`"vendor_name":`, p.VendorName)
	o.stringSet(`"version":`, p.Version)
	o.close()
}

func (o *jsonWriter) endpoint(key string, e *Endpoint) {
	if e == nil {
		return
	}
	o.raw(key)
	o.stringSet(`"hostname":`, e.Hostname)
	o.stringSet(`"ip":`, e.IP)
	o.intSet(`"port":`, int64(e.Port))
	o.stringSet(`"mac":`, e.MAC)
	o.close()
}

func (o *jsonWriter) extension(x *Extension) {
	o.string(`"kind":`, string(x.Kind))
	o.stringSet(`"sandbox":`, x.Sandbox)
	o.stringSet(`"sandbox_id":`, x.SandboxID)
	o.stringSet(`"session":`, x.Session)
	if len(x.Tags) > 0 {
		o.raw(`"tags":{`)
		for _, k := range slices.Sorted(maps.Keys(x.Tags)) {
			o.buf = append(appendString(o.buf, k), ':')
			o.buf = append(appendString(o.buf, x.Tags[k]), ',')
		}
		o.close()
	}
	o.stringSet(`"phase":`, x.Phase)
	o.stringSet(`"decision":`, x.Decision)
	o.usesSet(`"credentials":`, x.Credentials)
	o.usesSet(`"found_credentials":`, x.Found)
	o.stringSet(`"reason":`, x.Reason)
	o.stringSet(`"state":`, x.State)
	o.stringsSet(`"header_names":`, x.HeaderNames)
	o.stringsSet(`"query_keys":`, x.QueryKeys)
	o.stringSet(`"protocol":`, x.Protocol)
	if x.Unsized {
		o.raw(`"size_unknown":true,`)
	}
	o.stringsSet(`"clipped":`, x.Clipped)
	if b := x.Observed; b != nil {
		o.raw(`"observed":{`)
		o.string(`"decision":`, b.Decision)
		o.stringSet(`"rule":`, b.Rule)
		o.stringSet(`"rule_type":`, b.RuleType)
		o.stringSet(`"reason":`, b.Reason)
		o.close()
	}
	if len(x.Limits) > 0 {
		o.raw(`"limits":`)
		for i, l := range x.Limits {
			o.buf = append(o.buf, "[,"[min(i, 1)], '{')
			o.string(`"name":`, l.Name)
			o.string(`"subject":`, l.Subject)
			o.intSet(`"period":`, l.Period)
			o.intSet(`"uses":`, l.Uses)
			o.buf[len(o.buf)-1] = '}'
		}
		o.buf = append(o.buf, ']', ',')
	}
	o.approval(x.Approval)
	if t := x.Tokens; t != nil {
		o.raw(`"tokens":{`)
		o.stringSet(`"model":`, t.Model)
		o.int(`"in":`, t.In)
		o.int(`"out":`, t.Out)
		o.intSet(`"cached":`, t.Cached)
		o.intSet(`"cache_write":`, t.CacheWrite)
		o.stringSet(`"cost":`, t.Cost)
		if t.Estimated {
			o.raw(`"estimated":true,`)
		}
		o.close()
	}
	o.stringSet(`"owner":`, x.Owner)
}

func (o *jsonWriter) approval(a *Approval) {
	if a == nil {
		return
	}
	o.raw(`"approval":{`)
	o.string(`"id":`, a.ID)
	o.stringSet(`"operator":`, a.Operator)
	o.stringSet(`"uid":`, a.UID)
	o.stringSet(`"login":`, a.Login)
	o.stringSet(`"span":`, a.Span)
	o.stringSet(`"by":`, a.By)
	o.stringSet(`"method":`, a.Method)
	o.stringSet(`"path":`, a.Path)
	o.intSet(`"count":`, int64(a.Count))
	o.intSet(`"until":`, a.Until)
	o.stringSet(`"query_sha256":`, a.Query)
	o.stringSet(`"body_sha256":`, a.Body)
	o.close()
}

func (o *jsonWriter) usesSet(key string, uses []CredentialUse) {
	if len(uses) == 0 {
		return
	}
	o.raw(key)
	for i, c := range uses {
		o.buf = append(o.buf, "[,"[min(i, 1)], '{')
		o.string(`"name":`, c.Name)
		o.stringSet(`"version":`, c.Version)
		o.buf[len(o.buf)-1] = '}'
	}
	o.buf = append(o.buf, ']', ',')
}

// appendString leaves whatever is not plain to encoding/json.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := len(dst)
	dst = append(dst, s...)
	if !plain(dst[start:]) {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(s) // a string has no error
		return append(dst[:start-1], bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
	}
	return append(dst, '"')
}

// plain tells whether b is a JSON string as it stands: ASCII without control
// characters, quote and backslash.
func plain(b []byte) bool {
	for len(b) >= 8 {
		if !plain8(binary.LittleEndian.Uint64(b)) {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c < ' ' || c >= 0x80 || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// plain8 is plain of eight bytes at once. A term has the high bit of a byte set
// if the byte, or one before it, is not plain, as in "Determine if a word has a
// byte less than n" of Anderson's Bit Twiddling Hacks.
func plain8(w uint64) bool {
	const one, high = 0x0101010101010101, 0x8080808080808080
	quote, backslash := w^('"'*one), w^('\\'*one)
	return (w|(w-' '*one)|(quote-one)|(backslash-one))&high == 0
}
