package audit

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// A parser reads lines of a log. It takes what appendEvent writes, key after key,
// in a fraction of the time of encoding/json, to which it leaves every other line:
// what is escaped, what another version wrote, what was altered. What it reads is
// what encoding/json reads of the same line; a fuzz test holds the two together.
//
// The zero parser is ready. It is of one goroutine; its events share strings.
type parser struct {
	b     []byte // what is left of the line
	bad   bool
	names map[string]string // that were seen
	tags  map[string]map[string]string
	lists map[string][]string
}

// Bounds of what a parser remembers: sandboxes choose what is in a line.
const (
	maxSeen     = 4096 // strings, lists and sets of tags
	maxSeenText = 512  // bytes of each
)

// parsed is an event and what it points to, made at once.
type parsed struct {
	Event
	source, destination Endpoint
	connection          Connection
	request             HTTPRequest
	url                 URL
	response            HTTPResponse
	query               DNSQuery
	tls                 TLS
	traffic             Traffic
	rule                Rule
	policy              Policy
}

func (p *parser) event(line []byte) (*Event, error) {
	if e := p.own(line); e != nil {
		return e, nil
	}
	e := new(Event)
	return e, json.Unmarshal(line, e)
}

// own reads a line as it is written here, or returns nil.
func (p *parser) own(line []byte) *Event {
	p.b, p.bad = line, false
	x := new(parsed)
	e := &x.Event
	if !p.eat("{") {
		return nil
	}
	if !p.metadata(&e.Metadata) {
		return nil
	}
	e.Time = p.int(`"time":`)
	e.CategoryUID = int(p.int(`"category_uid":`))
	e.ClassUID = Class(p.int(`"class_uid":`))
	e.ActivityID = int(p.int(`"activity_id":`))
	e.TypeUID = int(p.int(`"type_uid":`))
	e.SeverityID = Severity(p.int(`"severity_id":`))
	e.StatusID = Status(p.int(`"status_id":`))
	e.Action = Action(p.int(`"action_id":`))
	e.Disposition = Disposition(p.int(`"disposition_id":`))
	e.Message = p.fresh(`"message":`)
	e.Detail = p.fresh(`"status_detail":`)
	e.Source = p.endpoint(`"src_endpoint":{`, &x.source)
	e.Destination = p.endpoint(`"dst_endpoint":{`, &x.destination)
	if c := &x.connection; p.eat(`"connection_info":{`) {
		e.Connection = c
		c.ProtocolName = p.text(`"protocol_name":`)
		c.ProtocolNum = int(p.int(`"protocol_num":`))
		c.Direction = int(p.int(`"direction_id":`))
		p.close()
	}
	if r := &x.request; p.eat(`"http_request":{`) {
		e.HTTPRequest = r
		r.Method = p.text(`"http_method":`)
		r.Version = p.text(`"version":`)
		if u := &x.url; p.eat(`"url":{`) {
			r.URL = u
			u.Scheme = p.text(`"scheme":`)
			u.Hostname = p.text(`"hostname":`)
			u.Port = int(p.int(`"port":`))
			u.Path = p.fresh(`"path":`)
			p.close()
		}
		r.Length = p.int(`"length":`)
		p.close()
	}
	if r := &x.response; p.eat(`"http_response":{`) {
		e.HTTPResponse = r
		r.Code = int(p.int(`"code":`))
		r.Length = p.int(`"length":`)
		p.close()
	}
	if q := &x.query; p.eat(`"query":{`) {
		e.Query = q
		q.Hostname = p.text(`"hostname":`)
		q.Type = p.text(`"type":`)
		p.close()
	}
	if t := &x.tls; p.eat(`"tls":{`) {
		e.TLS = t
		t.SNI = p.text(`"sni":`)
		t.Version = p.text(`"version":`)
		p.close()
	}
	if t := &x.traffic; p.eat(`"traffic":{`) {
		e.Traffic = t
		t.BytesIn = p.int(`"bytes_in":`)
		t.BytesOut = p.int(`"bytes_out":`)
		t.Packets = p.int(`"packets":`)
		p.close()
	}
	if r := &x.rule; p.eat(`"firewall_rule":{`) {
		e.Rule = r
		r.Name = p.text(`"name":`)
		r.Type = p.text(`"type":`)
		p.close()
	}
	if l := &x.policy; p.eat(`"policy":{`) {
		e.Policy = l
		l.Name = p.text(`"name":`)
		l.Version = p.text(`"version":`)
		p.close()
	}
	// actor and app are of few lines: encoding/json reads those.
	e.Duration = p.int(`"duration":`)
	e.Count = int(p.int(`"count":`))
	e.StartTime = p.int(`"start_time":`)
	if !p.eat(`"unmapped":{"sallyport":{`) {
		return nil
	}
	p.extension(&e.Unmapped.Sallyport)
	p.close()
	if p.bad || string(p.b) != "}" {
		return nil
	}
	return e
}

func (p *parser) metadata(m *Metadata) bool {
	if p.eat(usual) {
		m.Version, m.Profiles, m.Product = SchemaVersion, networkProfiles, own
		m.UID = p.value(false)
		p.comma()
	} else {
		return false
	}
	if !p.eat(`"sequence":`) {
		return false
	}
	n := 0
	for n < len(p.b) && '0' <= p.b[n] && p.b[n] <= '9' {
		n++
	}
	sequence, err := strconv.ParseUint(string(p.b[:n]), 10, 64)
	if err != nil || n > 1 && p.b[0] == '0' {
		return false
	}
	m.Sequence, p.b = sequence, p.b[n:]
	p.comma()
	m.CorrelationUID = p.fresh(`"correlation_uid":`)
	p.close()
	return !p.bad
}

func (p *parser) extension(x *Extension) {
	x.Kind = Kind(p.text(`"kind":`))
	x.Sandbox = p.text(`"sandbox":`)
	x.SandboxID = p.text(`"sandbox_id":`)
	x.Session = p.text(`"session":`)
	x.Tags = p.tagged(`"tags":{`)
	x.Phase = p.text(`"phase":`)
	x.Decision = p.text(`"decision":`)
	x.Credentials = p.uses(`"credentials":[`)
	x.Found = p.uses(`"found_credentials":[`)
	x.Reason = p.fresh(`"reason":`)
	x.State = p.text(`"state":`)
	x.HeaderNames = p.list(`"header_names":[`)
	x.QueryKeys = p.list(`"query_keys":[`)
	x.Protocol = p.text(`"protocol":`)
	if p.eat(`"size_unknown":true`) {
		x.Unsized = true
		p.comma()
	}
	x.Clipped = p.list(`"clipped":[`)
	if p.eat(`"observed":{`) {
		x.Observed = &Observed{p.text(`"decision":`), p.text(`"rule":`), p.text(`"rule_type":`), p.text(`"reason":`)}
		p.close()
	}
	x.Limits = p.limits(`"limits":[`)
	if p.eat(`"approval":{`) {
		x.Approval = &Approval{
			ID: p.fresh(`"id":`), Operator: p.text(`"operator":`), UID: p.text(`"uid":`), Login: p.text(`"login":`), Span: p.text(`"span":`),
			By: p.fresh(`"by":`), Method: p.text(`"method":`), Path: p.fresh(`"path":`), Count: int(p.int(`"count":`)), Until: p.int(`"until":`),
			Query: p.fresh(`"query_sha256":`), Body: p.fresh(`"body_sha256":`),
		}
		p.close()
	}
	if p.eat(`"tokens":{`) {
		t := &Tokens{
			Model: p.text(`"model":`), In: p.int(`"in":`), Out: p.int(`"out":`), Cached: p.int(`"cached":`), CacheWrite: p.int(`"cache_write":`),
			Cost: p.fresh(`"cost":`),
		}
		if p.eat(`"estimated":true`) {
			t.Estimated = true
			p.comma()
		}
		x.Tokens = t
		p.close()
	}
	x.Owner = p.text(`"owner":`)
	p.close()
}

// uses is a member that is an array of credentials.
func (p *parser) uses(key string) (uses []CredentialUse) {
	if !p.eat(key) {
		return nil
	}
	for !p.bad {
		if !p.eat("{") {
			break
		}
		uses = append(uses, CredentialUse{p.text(`"name":`), p.text(`"version":`)})
		if !p.eat("}") {
			break
		}
		if p.eat("]") {
			p.comma()
			return uses
		}
		if !p.eat(",") {
			break
		}
	}
	p.bad = true
	return nil
}

// limits is a member that is an array of limits.
func (p *parser) limits(key string) (limits []LimitUse) {
	if !p.eat(key) {
		return nil
	}
	for !p.bad {
		if !p.eat("{") {
			break
		}
		limits = append(limits, LimitUse{p.text(`"name":`), p.text(`"subject":`), p.int(`"period":`), p.int(`"uses":`)})
		if !p.eat("}") {
			break
		}
		if p.eat("]") {
			p.comma()
			return limits
		}
		if !p.eat(",") {
			break
		}
	}
	p.bad = true
	return nil
}

// eat takes what the rest of the line begins with.
func (p *parser) eat(s string) bool {
	if len(p.b) < len(s) || string(p.b[:len(s)]) != s {
		return false
	}
	p.b = p.b[len(s):]
	return true
}

// comma takes what follows a member: a comma with another member after it, or
// nothing where the object ends.
func (p *parser) comma() {
	switch {
	case len(p.b) > 1 && p.b[0] == ',' && p.b[1] == '"':
		p.b = p.b[1:]
	case len(p.b) > 0 && p.b[0] == '}':
	default:
		p.bad = true
	}
}

// close ends an object that is a member.
func (p *parser) close() {
	if !p.eat("}") {
		p.bad = true
		return
	}
	p.comma()
}

// int is the member of that key, or 0 where the next is another.
func (p *parser) int(key string) int64 {
	if !p.eat(key) {
		return 0
	}
	negative := p.eat("-")
	n, v := 0, int64(0)
	for ; n < len(p.b) && '0' <= p.b[n] && p.b[n] <= '9'; n++ {
		v = v*10 + int64(p.b[n]-'0')
		if n == 18 { // it may be too much for an int64
			p.bad = true
			return 0
		}
	}
	if n == 0 || n > 1 && p.b[0] == '0' {
		p.bad = true
		return 0
	}
	p.b = p.b[n:]
	p.comma()
	if negative {
		return -v
	}
	return v
}

// text is the member of that key, or "" where the next is another.
func (p *parser) text(key string) string {
	if !p.eat(key) {
		return ""
	}
	s := p.value(true)
	p.comma()
	return s
}

// fresh is text for what no two lines share.
func (p *parser) fresh(key string) string {
	if !p.eat(key) {
		return ""
	}
	s := p.value(false)
	p.comma()
	return s
}

// value is a string that needs no unescaping.
func (p *parser) value(shared bool) string {
	b := p.quoted()
	switch {
	case len(b) == 0:
		return ""
	case shared:
		return p.shared(b)
	}
	return string(b)
}

func (p *parser) quoted() []byte {
	if p.bad || !p.eat(`"`) {
		p.bad = true
		return nil
	}
	end := bytes.IndexByte(p.b, '"')
	if end < 0 || !plain(p.b[:end]) {
		p.bad = true
		return nil
	}
	b := p.b[:end]
	p.b = p.b[end+1:]
	return b
}

func (p *parser) shared(b []byte) string {
	if s, ok := p.names[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(s) <= maxSeenText {
		if p.names == nil || len(p.names) >= maxSeen {
			p.names = make(map[string]string, 64)
		}
		p.names[s] = s
	}
	return s
}

func (p *parser) endpoint(key string, e *Endpoint) *Endpoint {
	if !p.eat(key) {
		return nil
	}
	e.Hostname = p.text(`"hostname":`)
	e.IP = p.text(`"ip":`)
	e.Port = int(p.int(`"port":`))
	e.MAC = p.text(`"mac":`)
	p.close()
	return e
}

// list is a member that is an array of strings. Lists of the same names are one:
// nobody changes what was read.
func (p *parser) list(key string) []string {
	if !p.eat(key) {
		return nil
	}
	start := p.b
	var list []string
	if end := bytes.IndexByte(p.b, ']'); end >= 0 && end <= maxSeenText {
		// No bracket of a name ends it earlier than the array: what was found
		// under this text was read from the same.
		if seen, ok := p.lists[string(p.b[:end+1])]; ok {
			p.b = p.b[end+1:]
			p.comma()
			return seen
		}
	}
	for !p.bad {
		list = append(list, p.value(true))
		if p.eat("]") {
			break
		}
		if !p.eat(",") {
			p.bad = true
		}
	}
	if n := len(start) - len(p.b); !p.bad && n <= maxSeenText && bytes.IndexByte(start[:n], ']') == n-1 {
		if p.lists == nil || len(p.lists) >= maxSeen {
			p.lists = make(map[string][]string, 64)
		}
		p.lists[string(start[:n])] = list
	}
	p.comma()
	return list
}

// tagged is a member that is an object of strings, one for all that are alike.
func (p *parser) tagged(key string) map[string]string {
	if !p.eat(key) {
		return nil
	}
	start := p.b
	if end := bytes.IndexByte(p.b, '}'); end >= 0 && end <= maxSeenText {
		if seen, ok := p.tags[string(p.b[:end+1])]; ok {
			p.b = p.b[end+1:]
			p.comma()
			return seen
		}
	}
	tags := map[string]string{}
	for !p.bad && len(p.b) > 0 && p.b[0] != '}' {
		tag := p.value(true)
		if !p.eat(":") {
			p.bad = true
		}
		tags[tag] = p.value(true)
		p.comma()
	}
	if !p.eat("}") {
		p.bad = true
	}
	if n := len(start) - len(p.b); !p.bad && n <= maxSeenText && bytes.IndexByte(start[:n], '}') == n-1 {
		if p.tags == nil || len(p.tags) >= maxSeen {
			p.tags = make(map[string]map[string]string, 16)
		}
		p.tags[string(start[:n])] = tags
	}
	p.comma()
	return tags
}
