package policy

import "fmt"

// TagFork is the tag of a sandbox that is a fork of another, whatever its value.
// Users can give none that begins so.
const TagFork = "sallyport.fork"

// TagLineage is the tag of a fork with the ID of the sandbox that its lineage began
// with.
const TagLineage = "sallyport.lineage"

// inherited keeps credentials from forks, which is part of the floor: a rule that
// gives one gives it to a fork where it says inherit, and so does a team's Rego
// where a rule says so that binds the credential to the destination. Who names a
// fork's parent in a rule has thought of one sandbox, and anything may have been
// done to its memory since.
func (p *Policy) inherited(d Decision, s subject) Decision {
	if _, fork := s.Sandbox.Tags[TagFork]; !fork || d.Action == Deny {
		return d
	}
	if r := p.rules[d.Rule]; r != nil && r.kind == typeEgressAuth && d.RuleType == typeEgressAuth && !r.inherit {
		return p.refuse(fmt.Sprintf("%s is for the sandbox that this is a fork of: a fork has what its rule gives if that says inherit: true", d.Rule), nil)
	}
	for _, in := range d.Inject {
		if !p.inherits(in.Credential, s) {
			return p.refuse(fmt.Sprintf("credential %s is that of the sandbox that this is a fork of: a fork has it if an egressAuth rule says inherit: true", clean(in.Credential)), nil)
		}
	}
	return d
}

// inherits reports whether some rule gives forks the credential at the destination.
func (p *Policy) inherits(credential string, s subject) bool {
	var near [8]*entry
	for _, e := range p.table.entries(near[:0], s.host, s.addr) {
		for _, r := range e.rules {
			if r.kind == typeEgressAuth && r.inherit && r.credential == credential && r.on(s.Destination.Port) {
				return true
			}
		}
	}
	return false
}
