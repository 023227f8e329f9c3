package engine

import "sallyport/policy"

// nameSet has the names that rules select sandboxes by.
type nameSet map[string]bool

func sandboxNames(doc policy.Document) nameSet {
	all := nameSet{}
	add := func(s policy.Selector) {
		for _, name := range s.Names {
			all[name] = true
		}
	}
	for _, r := range doc.Egress {
		add(r.Sandboxes)
	}
	for _, r := range doc.EgressAuth {
		add(r.Sandboxes)
	}
	for _, r := range doc.Expose {
		add(r.Sandboxes)
	}
	for _, o := range doc.Observe {
		add(o.Sandboxes)
	}
	for _, l := range doc.Limits {
		add(l.Sandboxes)
	}
	return all
}

// Names tells whether a rule selects sandboxes by this name: whoever makes one of
// that name has what the rule gives. What the team's Rego does with names it does
// not know.
func (p *Policy) Names(name string) bool { return p.named[name] }
