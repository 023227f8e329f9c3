// Package rule holds the rules of sallyport.yaml in compiled form, and finds those that
// match an input.
//
// [FromEgress] and [FromEgressAuth] fill in the defaults of a rule. A [Table] finds the
// rules for a destination, a port and a sandbox in a number of steps that does not depend
// on how many rules there are. [ParseInput] checks an input and brings its host into the
// form that rules are kept in. The package decides nothing: see package engine.
//
// To add a key to rules: a field of policy.EgressRule or policy.EgressAuthRule, its check in
// policy/validate/validate.go, its compiled form here, and what policy/engine/decide.go does
// with it.
package rule

import (
	"errors"
	"regexp"
	"slices"
	"time"

	"sallyport/policy"
	"sallyport/policy/finding"
)

// Rule is an egress or egressAuth rule with its defaults filled in.
type Rule struct {
	Name        string
	Type        string // policy.TypeEgress or policy.TypeEgressAuth
	Action      policy.Action
	Destination Destination
	Ports       []uint16 // nil: every port
	Protocols   []policy.Protocol
	Methods     []string // nil: every method
	Paths       []string // nil: every path
	RawPath     bool
	Headers     []string // that pass though they are refused otherwise
	Sandboxes   policy.Selector
	Credential  string
	Inject      policy.Inject
	Upstream    *policy.Upstream
	Inherit     bool                  // forks have the credential too
	Cookies     bool                  // pass
	DenyOwn     bool                  // what the sandbox has of its own in the injected place
	Observe     time.Time             // until when it is not enforced
	Body        *policy.BodyView      // nil: bodies are not read
	Path        string                // the rule's path in the document: egress[0]
	Index       int                   // and among all rules
	Position    finding.Position      // and in the file
	path        func() *regexp.Regexp // of Paths, compiled when it is first needed
}

// Conditional reports whether the rule speaks about some requests only.
func (r Rule) Conditional() bool { return r.Methods != nil || r.Paths != nil }

func FromEgress(e policy.EgressRule, d Destination) Rule {
	r := Rule{
		Name:        e.Name,
		Type:        policy.TypeEgress,
		Action:      e.Action,
		Destination: d,
		Methods:     e.Methods,
		Paths:       e.Paths,
		RawPath:     e.RawPath,
		Headers:     e.Headers,
		Sandboxes:   e.Sandboxes,
		Upstream:    e.Upstream,
		Observe:     e.Observe,
		Body:        e.Body,
		Protocols:   []policy.Protocol{policy.ProtocolTLS},
	}
	if r.Name == "" {
		r.Name = e.Destination
	}
	if r.Action == "" {
		r.Action = policy.Allow
	}
	r.Ports = PortsOf(e.Ports, d)
	explicit := r.Ports != nil
	if e.Plain || r.Action == policy.Deny {
		r.Protocols = append(r.Protocols, policy.ProtocolHTTP)
	}
	switch r.Action {
	case policy.Deny, policy.Tunnel:
		r.Protocols = append(r.Protocols, policy.ProtocolOther)
	default:
		// A name, and a port of the web, stand for something that is read: an
		// unknown protocol there is most likely a way round that. An author who means bytes
		// unread says tunnel.
		web := slices.Contains(r.Ports, 443) || slices.Contains(r.Ports, 80)
		if explicit && (d.prefix.IsValid() || r.Action == policy.Approve) && !web && !r.Conditional() && r.Body == nil {
			r.Protocols = append(r.Protocols, policy.ProtocolOther)
		}
	}
	if !explicit && (r.Action == policy.Allow || r.Action == policy.Tunnel) {
		r.Ports = []uint16{443}
		if e.Plain {
			r.Ports = append(r.Ports, 80)
		}
	}
	return r
}

func FromEgressAuth(e policy.EgressAuthRule, d Destination) Rule {
	r := Rule{
		Name:        e.Name,
		Type:        policy.TypeEgressAuth,
		Action:      policy.Allow,
		Destination: d,
		Ports:       PortsOf(e.Ports, d),
		Methods:     e.Methods,
		Paths:       e.Paths,
		RawPath:     e.RawPath,
		Headers:     e.Headers,
		Sandboxes:   e.Sandboxes,
		Credential:  e.AuthRef,
		Upstream:    e.Upstream,
		Inherit:     e.Inherit,
		Cookies:     e.Cookies == policy.PassCookies,
		DenyOwn:     e.Own == policy.DenyOwn,
		Observe:     e.Observe,
		Body:        e.Body,
	}
	if r.Name == "" {
		r.Name = e.AuthRef + "@" + e.Destination
	}
	if e.Inject != nil {
		r.Inject = *e.Inject
	}
	protocol := r.Inject.Protocol()
	r.Protocols = []policy.Protocol{protocol}
	if r.Ports == nil {
		r.Ports = []uint16{protocol.Port()}
	}
	if protocol == policy.ProtocolSSH && r.Methods == nil {
		r.Methods = []string{policy.SSHUploadPack}
	}
	return r
}

func PortsOf(ports []uint16, d Destination) []uint16 {
	if len(ports) > 0 {
		return ports
	}
	if d.Port != 0 {
		return []uint16{d.Port}
	}
	return nil
}

// Carries tells whether the rule is about what a connection of a protocol carries.
func (r *Rule) Carries(p policy.Protocol) bool {
	return slices.Contains(r.Protocols, p) || p.IsOther() && slices.Contains(r.Protocols, policy.ProtocolOther)
}

// OnPort reports whether the rule speaks about the port.
func (r *Rule) OnPort(port uint16) bool { return r.Ports == nil || slices.Contains(r.Ports, port) }

// pathPattern matches the paths that the rule speaks about. A rule that denies, or asks a
// person, is also about the paths that a server may take for them.
func (r *Rule) pathPattern() *regexp.Regexp {
	pattern := GlobPattern
	if r.Action == policy.Deny || r.Action == policy.Approve {
		pattern = LoosePattern
	}
	return regexp.MustCompile("^" + pattern(r.Paths) + "$")
}

// Observing tells whether the rule is in observe mode at a time, of which zero is now.
func (r *Rule) Observing(at time.Time) bool {
	if at.IsZero() && !r.Observe.IsZero() {
		at = time.Now()
	}
	return at.Before(r.Observe)
}

// MissesBody is why the rule cannot see what it has to, or nil.
func (r *Rule) MissesBody(q *policy.Request) error {
	b := q.Body
	switch {
	case b == nil:
		return errBodyUnread
	case b.Fault != nil:
		return b.Fault
	case b.Size > r.Body.Max():
		return policy.TooLong(r.Body.Max())
	case r.Body.JSON > 0 && b.JSON != nil:
		return nil
	case r.Body.JSON > 0:
		return errBodyUnread
	case len(q.QueryKeys) > 0:
		return errBodyParameters
	case b.GraphQLFault != nil:
		return b.GraphQLFault
	case b.GraphQL == nil:
		return errBodyUnread
	}
	return nil
}

var (
	errBodyUnread     = errors.New("it was not read")
	errBodyParameters = errors.New("a GraphQL request has no query parameters, which some servers take for its query")
)
