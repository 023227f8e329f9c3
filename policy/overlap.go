package policy

import (
	"fmt"
	"slices"
)

// overlaps finds the pairs of egressAuth rules that would put two credentials
// into one place of a request, the egress rules that an egressAuth rule leaves
// without effect, and the rules that another leaves nothing to decide: see shadow. What depends on tags that a sandbox may or may not
// have is left to the decision, which denies then.
//
// Each rule is compared with those of its own destination and of the wider ones
// around it, so that 10,000 rules of as many hosts take no longer than reading
// them. So do 10,000 egress rules of one host, of which not all are compared.
func overlaps(doc Document, rules []rule) []Finding {
	t := newTable(rules)
	var findings []Finding
	for i := range rules {
		narrow := &rules[i]
		around := t.holding(narrow.destination)
		governed := false
		for _, e := range around {
			for _, wide := range e.authorising() {
				if wide == narrow || narrow.kind == typeEgressAuth && e.destination.same(narrow.destination) && wide.place > narrow.place {
					continue
				}
				if f, found := clash(narrow, wide); found {
					f.Position = doc.position(f.Path)
					findings = append(findings, f)
					governed = governed || f.Kind == Governed
				}
			}
		}
		if governed {
			continue // one reason why a rule is of no use is enough
		}
		if f, found := useless(narrow, around); found {
			f.Position = doc.position(f.Path)
			findings = append(findings, f)
		}
	}
	return findings
}

// maxCompared bounds how many rules of one destination a rule is compared with
// to find that it is of no use. That is a warning, and can miss some.
const maxCompared = 64

// useless says why a rule is of no use, for the first of those around it that
// makes it so. Of two that cover each other the later one is.
func useless(narrow *rule, around []*entry) (Finding, bool) {
	for _, e := range around {
		same := e.destination.same(narrow.destination)
		for _, wide := range e.rules[:min(len(e.rules), maxCompared)] {
			if wide == narrow || same && wide.place > narrow.place && wide.action == narrow.action && narrow.covers(wide) {
				continue
			}
			if f, found := shadow(narrow, wide); found {
				return f, true
			}
		}
	}
	return Finding{}, false
}

// clash compares a rule with an egressAuth rule whose destination holds its own.
func clash(a, b *rule) (Finding, bool) {
	if !a.sandboxes.meets(b.sandboxes) || !portsMeet(a.ports, b.ports) {
		return Finding{}, false
	}
	switch {
	case a.kind == typeEgressAuth && b.kind == typeEgressAuth:
		if !methodsMeet(a.methods, b.methods) || !pathsMeet(a.paths, b.paths) || a.inject.place() != b.inject.place() {
			return Finding{}, false
		}
		return Finding{
			Kind:    OnePlace,
			Path:    a.at,
			Message: fmt.Sprintf("overlaps with %s (%s): both put a credential into the %s of the same requests", b.name, b.at, a.inject.place()),
			Fix:     "make their methods, paths, ports or sandboxes exclude each other, or inject into different places",
		}, true
	case a.kind == typeEgress && (a.action == Allow || a.action == Tunnel) && b.kind == typeEgressAuth && covered(a, b):
		return Finding{
			Kind:     Governed,
			Severity: Warning,
			Path:     a.at,
			Message:  fmt.Sprintf("has no effect: the egressAuth rule %s (%s) governs this destination", b.name, b.at),
			Fix:      "remove it, or widen the egressAuth rule's methods and paths instead",
		}, true
	}
	return Finding{}, false
}

// covered reports whether the egressAuth rule b governs all that a speaks about.
func covered(a, b *rule) bool {
	for _, port := range a.ports {
		if !slices.Contains(b.ports, port) {
			return false
		}
	}
	return b.sandboxes.reaches(a.sandboxes) && (len(a.sandboxes.Names) < 2 || len(b.sandboxes.Names) == 0)
}

func portsMeet(a, b []uint16) bool {
	return a == nil || b == nil || slices.ContainsFunc(a, func(p uint16) bool { return slices.Contains(b, p) })
}

func methodsMeet(a, b []string) bool {
	return a == nil || b == nil || slices.ContainsFunc(a, func(m string) bool { return slices.Contains(b, m) })
}

func pathsMeet(a, b []string) bool {
	return a == nil || b == nil || slices.ContainsFunc(a, func(p string) bool {
		return slices.ContainsFunc(b, func(q string) bool { return globsMeet(p, q) })
	})
}
