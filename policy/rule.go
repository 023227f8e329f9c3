package policy

import (
	"net/textproto"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	typeEgress     = "egress"
	typeEgressAuth = "egressAuth"
	typeRego       = "rego"
	typeExpose     = "expose"
	typeFloor      = "floor"

	// TypeLimit is the RuleType of a limit that denies.
	TypeLimit = "limit"
)

// rule is an egress or egressAuth rule with its defaults filled in.
type rule struct {
	name        string
	kind        string // typeEgress or typeEgressAuth
	action      Action
	destination destination
	ports       []uint16 // nil: every port
	protocols   []Protocol
	methods     []string // nil: every method
	paths       []string // nil: every path
	rawPath     bool
	headers     []string // that pass though they are refused otherwise
	sandboxes   Selector
	credential  string
	inject      Inject
	upstream    *Upstream
	inherit     bool      // forks have the credential too
	cookies     bool      // pass
	observe     time.Time // until when it is not enforced
	body        *BodyView // nil: bodies are not read
	at          string    // the rule's path in the document: egress[0]
	place       int       // and among all rules
	position    Position  // and in the file
	lazy        *lazy
}

// conditional reports whether the rule speaks about some requests only.
func (r rule) conditional() bool { return r.methods != nil || r.paths != nil }

func (e EgressRule) rule(d destination) rule {
	r := rule{
		name:        e.Name,
		kind:        typeEgress,
		action:      e.Action,
		destination: d,
		methods:     e.Methods,
		paths:       e.Paths,
		rawPath:     e.RawPath,
		headers:     e.Headers,
		sandboxes:   e.Sandboxes,
		upstream:    e.Upstream,
		observe:     e.Observe,
		body:        e.Body,
		protocols:   []Protocol{ProtocolTLS},
	}
	if r.name == "" {
		r.name = e.Destination
	}
	if r.action == "" {
		r.action = Allow
	}
	r.ports = portsOf(e.Ports, d)
	explicit := r.ports != nil
	if e.Plain || r.action == Deny {
		r.protocols = append(r.protocols, ProtocolHTTP)
	}
	switch r.action {
	case Deny, Tunnel:
		r.protocols = append(r.protocols, ProtocolOther)
	default:
		// A name, and a port of the web, stand for something that is read: an
		// unknown protocol there is most likely a way round that. Who means
		// bytes unread says tunnel.
		web := slices.Contains(r.ports, 443) || slices.Contains(r.ports, 80)
		if explicit && (d.prefix.IsValid() || r.action == Approve) && !web && !r.conditional() && r.body == nil {
			r.protocols = append(r.protocols, ProtocolOther)
		}
	}
	if !explicit && (r.action == Allow || r.action == Tunnel) {
		r.ports = []uint16{443}
		if e.Plain {
			r.ports = append(r.ports, 80)
		}
	}
	return r
}

func (e EgressAuthRule) rule(d destination) rule {
	r := rule{
		name:        e.Name,
		kind:        typeEgressAuth,
		action:      Allow,
		destination: d,
		ports:       portsOf(e.Ports, d),
		protocols:   []Protocol{ProtocolTLS},
		methods:     e.Methods,
		paths:       e.Paths,
		rawPath:     e.RawPath,
		headers:     e.Headers,
		sandboxes:   e.Sandboxes,
		credential:  e.AuthRef,
		upstream:    e.Upstream,
		inherit:     e.Inherit,
		cookies:     e.Cookies == PassCookies,
		observe:     e.Observe,
		body:        e.Body,
	}
	if r.name == "" {
		r.name = e.AuthRef + "@" + e.Destination
	}
	if r.ports == nil {
		r.ports = []uint16{443}
	}
	if e.Inject != nil {
		r.inject = *e.Inject
	}
	return r
}

func portsOf(ports []uint16, d destination) []uint16 {
	if len(ports) > 0 {
		return ports
	}
	if d.port != 0 {
		return []uint16{d.port}
	}
	return nil
}

// place names where an injection goes: two into one place cannot both arrive.
// The zero Inject is the default, a bearer token.
func (i Inject) place() string {
	switch {
	case i.Header != nil:
		return "header " + textproto.CanonicalMIMEHeaderKey(i.Header.Name)
	case i.Query != nil:
		return "query parameter " + i.Query.Name
	default:
		return "header Authorization"
	}
}

// on reports whether the rule speaks about the port.
func (r *rule) on(port uint16) bool { return r.ports == nil || slices.Contains(r.ports, port) }

// keyPorts lists the ports that the rule has keys for in the index.
func (r *rule) keyPorts() []uint16 {
	if r.ports == nil {
		return []uint16{everyPort}
	}
	return r.ports
}

// linePattern matches the lines "METHOD PATH" that the rule speaks about, and
// the empty line of a moment when there is no request yet. The empty pattern
// matches all.
func (r *rule) linePattern() string {
	if !r.conditional() {
		return ""
	}
	method, path := "[^ ]+", ".*"
	if r.methods != nil {
		quoted := make([]string, len(r.methods))
		for i, m := range r.methods {
			quoted[i] = regexp.QuoteMeta(m)
		}
		method = strings.Join(quoted, "|")
	}
	if r.paths != nil {
		path = r.pathExpression()
	}
	return "^(?:|(?:" + method + ") (?s:" + path + "))$"
}

func (r *rule) pathPattern() *regexp.Regexp {
	return regexp.MustCompile("^(?s:" + r.pathExpression() + ")$")
}

// pathExpression matches the paths that the rule speaks about. One that denies, or
// asks a person, is also about what a server may take for them.
func (r *rule) pathExpression() string {
	if r.action == Deny || r.action == Approve {
		return loosePattern(r.paths)
	}
	return globPattern(r.paths)
}
