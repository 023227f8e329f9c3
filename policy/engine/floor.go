package engine

import (
	"fmt"
	"slices"
	"strings"

	"sallyport/policy"
	"sallyport/policy/rule"
)

// foldHeader is the form in which the names of headers are the same to every server.
func foldHeader(name string) string {
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

// meddled denies a request that a header makes another than the rules have seen, where
// they look at more than its host or give it a credential. The rule that decides can name
// headers that pass.
func (p *Policy) meddled(d policy.Decision, s rule.ParsedInput) policy.Decision {
	if s.Phase != policy.PhaseRequest || d.Action != policy.Allow && d.Action != policy.Approve {
		return d
	}
	for _, name := range s.Request.Headers {
		m := policy.Meddles(name)
		if m == "" || !p.selective(d, s) {
			continue
		}
		if r := p.rules[d.Rule]; r != nil && d.RuleType == r.Type && slices.ContainsFunc(r.Headers, func(h string) bool { return foldHeader(h) == foldHeader(name) }) {
			continue
		}
		no := p.refuse(policy.Clean(fmt.Sprintf("the header %s %s: it passes here where the rule that allows the request lists it under headers", name, m)), nil)
		no.Rule = "override-header"
		return no
	}
	return d
}

// selective tells whether more than the host decides about a request.
func (p *Policy) selective(d policy.Decision, s rule.ParsedInput) bool {
	if len(d.Inject) > 0 || d.Governed || p.team {
		return true
	}
	return p.some(s.Target(), func(r *rule.Rule) bool { return r.Conditional() })
}

// some tells whether there is such a rule among those whose destination takes in all of d.
func (p *Policy) some(d rule.Destination, is func(*rule.Rule) bool) bool {
	for r := range p.table.Around(d) {
		if is(r) {
			return true
		}
	}
	return false
}

func (p *Policy) bound(credential string, to rule.Destination, port uint16) bool {
	return p.some(to, func(r *rule.Rule) bool {
		return r.Type == policy.TypeEgressAuth && r.Credential == credential && r.OnPort(port)
	})
}

// floor applies what no policy can change: credentials go where they are bound,
// over TLS or by the login that they are for, one to a place, and only into a request.
func (p *Policy) floor(d policy.Decision, s rule.ParsedInput) policy.Decision {
	for i, in := range d.Inject {
		switch {
		case s.Protocol != in.Inject.Protocol() || s.Phase != policy.PhaseRequest:
			over := "TLS"
			if login := in.Inject.Protocol(); login.IsLogin() {
				over = string(login)
			}
			return p.refuse(fmt.Sprintf("credential %s goes into requests over %s only", policy.Clean(in.Credential), over), nil)
		case !p.bound(in.Credential, s.Target(), s.Destination.Port):
			return p.refuse(fmt.Sprintf("credential %s is not bound to %s:%d by any egressAuth rule", policy.Clean(in.Credential), s.Host, s.Destination.Port), nil)
		}
		if kinds := p.kinds[in.Credential]; kinds != nil && !slices.Contains(kinds, in.Inject.Kind()) {
			return p.refuse(fmt.Sprintf("credential %s may not be given as %s", policy.Clean(in.Credential), in.Inject.Kind()), nil)
		}
		for _, other := range d.Inject[:i] {
			if other.Inject.Place() == in.Inject.Place() {
				return p.refuse(fmt.Sprintf("credentials %s and %s would both go into the %s",
					other.Credential, in.Credential, policy.Clean(in.Inject.Place())), nil)
			}
		}
	}
	return d
}

// logsIn tells whether an egressAuth rule logs in by the protocol of a connection.
func (p *Policy) logsIn(s rule.ParsedInput) bool {
	for r := range p.table.For(s) {
		if r.Type == policy.TypeEgressAuth && r.Carries(s.Protocol) {
			return true
		}
	}
	return false
}

// inherited keeps credentials from forks, which is part of the floor: a rule that
// gives one gives it to a fork where it says inherit, and so does a team's Rego
// where a rule says so that binds the credential to the destination. The author of a rule
// that names a fork's parent has thought of one sandbox, and anything may have been
// done to its memory since.
func (p *Policy) inherited(d policy.Decision, s rule.ParsedInput) policy.Decision {
	if _, fork := s.Sandbox.Tags[policy.TagFork]; !fork || d.Action == policy.Deny {
		return d
	}
	if r := p.rules[d.Rule]; r != nil && r.Type == policy.TypeEgressAuth && d.RuleType == policy.TypeEgressAuth && !r.Inherit {
		return p.refuse(fmt.Sprintf("%s is for the sandbox that this is a fork of: a fork has what its rule gives if that says inherit: true", d.Rule), nil)
	}
	for _, in := range d.Inject {
		if !p.inherits(in.Credential, s) {
			return p.refuse(fmt.Sprintf("credential %s is that of the sandbox that this is a fork of: a fork has it if an egressAuth rule says inherit: true", policy.Clean(in.Credential)), nil)
		}
	}
	return d
}

// inherits reports whether some rule gives forks the credential at the destination.
func (p *Policy) inherits(credential string, s rule.ParsedInput) bool {
	return p.some(s.Target(), func(r *rule.Rule) bool {
		return r.Type == policy.TypeEgressAuth && r.Inherit && r.Credential == credential && r.OnPort(s.Destination.Port)
	})
}

// upstreamBy is how the destination of an input that a rule decides about is reached: by
// the rule's upstream or, where it has none, by that of another rule for the same
// destination, or for one within it, that selects the sandbox. The most exact
// destination comes first. Without a rule, where Rego decides, it is by that of any rule
// for the destination. nil: the public way.
func (p *Policy) upstreamBy(s rule.ParsedInput, by *rule.Rule) *policy.Upstream {
	if by != nil && by.Upstream != nil {
		return by.Upstream
	}
	for e := range p.table.Holding(s.Target()) {
		for _, r := range e.Rules {
			if r.Upstream != nil && r.OnPort(s.Destination.Port) && r.Sandboxes.Picks(s.Sandbox.Name, s.Sandbox.Tags) {
				return r.Upstream
			}
		}
		if by != nil && e.Destination.Same(by.Destination) {
			return nil
		}
	}
	return nil
}
