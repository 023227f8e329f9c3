package policy

import (
	"fmt"
	"reflect"
)

// reach is how the destination of an input that a rule decides about is reached: by
// the rule's upstream or, where it has none, by that of another rule for the same
// destination, or for one within it, that selects the sandbox. The most exact
// destination comes first. Without a rule, where Rego decides, it is by that of any rule
// for the destination. nil: the public way.
func (p *Policy) reach(s subject, by *rule) *Upstream {
	if by != nil && by.upstream != nil {
		return by.upstream
	}
	var near [8]*entry
	for _, e := range p.table.entries(near[:0], s.host, s.addr) {
		for _, r := range e.rules {
			if r.upstream != nil && r.on(s.Destination.Port) && r.sandboxes.picks(s.Sandbox.Name, s.Sandbox.Tags) {
				return r.upstream
			}
		}
		if by != nil && e.destination.key() == by.destination.key() {
			return nil
		}
	}
	return nil
}

// upstreams finds rules that say different things about how one destination is reached.
func (v *validator) upstreams() {
	byDestination := map[string][]*rule{}
	for i := range v.rules {
		r := &v.rules[i]
		if r.upstream == nil {
			continue
		}
		key := r.destination.key()
		for _, o := range byDestination[key] {
			if portsMeet(o.ports, r.ports) && o.sandboxes.meets(r.sandboxes) && !reflect.DeepEqual(o.upstream, r.upstream) {
				v.say(BadUpstream, r.at+".upstream",
					fmt.Sprintf("differs from that of the rule %s (%s), which is for the same destination", o.name, o.at),
					"write it in one of the two: a rule without upstream takes the other's")
				break
			}
		}
		byDestination[key] = append(byDestination[key], r)
	}
}
