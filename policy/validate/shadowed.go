package validate

import (
	"fmt"
	"slices"

	"sallyport/policy"
	"sallyport/policy/finding"
	"sallyport/policy/rule"
)

// compareRules finds the pairs of egressAuth rules that would put two credentials
// into one place of a request, the egress rules that an egressAuth rule leaves
// without effect, and the rules that another leaves nothing to decide: see shadows. A case
// that depends on tags that a sandbox may or may not have is left to the decision, which
// denies then.
//
// Each rule is compared with those of its own destination and of the wider ones
// around it, so that 10,000 rules of as many hosts take no longer than reading
// them. So do 10,000 egress rules of one host, of which not all are compared.
func compareRules(doc policy.Document, rules []rule.Rule) []finding.Finding {
	t := rule.NewTable(rules)
	var findings []finding.Finding
	for i := range rules {
		narrow := &rules[i]
		around := slices.Collect(t.Holding(narrow.Destination))
		governed := false
		for _, e := range around {
			for _, wide := range e.Authorising() {
				if wide == narrow || narrow.Type == policy.TypeEgressAuth && e.Destination.Same(narrow.Destination) && wide.Index > narrow.Index {
					continue
				}
				if f, found := conflict(narrow, wide); found {
					f.Position = doc.Position(f.Path)
					findings = append(findings, f)
					governed = governed || f.Kind == finding.Governed
				}
			}
		}
		if governed {
			continue // one reason why a rule is of no use is enough
		}
		if f, found := shadowedByAny(narrow, around); found {
			f.Position = doc.Position(f.Path)
			findings = append(findings, f)
		}
	}
	return findings
}

// maxCompared bounds how many rules of one destination a rule is compared with
// to find that it is of no use. That is a warning, and can miss some.
const maxCompared = 64

// shadowedByAny says why a rule is of no use, for the first of those around it that
// makes it so. Of two that cover each other the later one is.
func shadowedByAny(narrow *rule.Rule, around []*rule.Entry) (finding.Finding, bool) {
	for _, e := range around {
		same := e.Destination.Same(narrow.Destination)
		for _, wide := range e.Rules[:min(len(e.Rules), maxCompared)] {
			if wide == narrow || same && wide.Index > narrow.Index && wide.Action == narrow.Action && subsumes(narrow, wide) {
				continue
			}
			if f, found := shadows(narrow, wide); found {
				return f, true
			}
		}
	}
	return finding.Finding{}, false
}

// conflict compares a rule with an egressAuth rule whose destination holds its own.
func conflict(a, b *rule.Rule) (finding.Finding, bool) {
	if !selectorsMeet(a.Sandboxes, b.Sandboxes) || !meet(a.Ports, b.Ports) {
		return finding.Finding{}, false
	}
	switch {
	case a.Type == policy.TypeEgressAuth && b.Type == policy.TypeEgressAuth:
		if !meet(a.Methods, b.Methods) || !pathsMeet(a.Paths, b.Paths) || a.Inject.Place() != b.Inject.Place() {
			return finding.Finding{}, false
		}
		return finding.Finding{
			Kind:    finding.OnePlace,
			Path:    a.Path,
			Message: fmt.Sprintf("overlaps with %s (%s): both put a credential into the %s of the same requests", b.Name, b.Path, a.Inject.Place()),
			Fix:     "make their methods, paths, ports or sandboxes exclude each other, or inject into different places",
		}, true
	case a.Type == policy.TypeEgress && (a.Action == policy.Allow || a.Action == policy.Tunnel) && b.Type == policy.TypeEgressAuth && governsAll(a, b):
		return finding.Finding{
			Kind:     finding.Governed,
			Severity: finding.Warning,
			Path:     a.Path,
			Message:  fmt.Sprintf("has no effect: the egressAuth rule %s (%s) governs this destination", b.Name, b.Path),
			Fix:      "remove it, or widen the egressAuth rule's methods and paths instead",
		}, true
	}
	return finding.Finding{}, false
}

// governsAll reports whether the egressAuth rule b governs all that a speaks about.
func governsAll(a, b *rule.Rule) bool {
	for _, port := range a.Ports {
		if !slices.Contains(b.Ports, port) {
			return false
		}
	}
	return selectorReaches(b.Sandboxes, a.Sandboxes) && (len(a.Sandboxes.Names) < 2 || len(b.Sandboxes.Names) == 0)
}

// meet reports whether two lists, of which nil has all, have something in common.
func meet[T comparable](a, b []T) bool {
	return a == nil || b == nil || slices.ContainsFunc(a, func(x T) bool { return slices.Contains(b, x) })
}

func pathsMeet(a, b []string) bool {
	return a == nil || b == nil || slices.ContainsFunc(a, func(p string) bool {
		return slices.ContainsFunc(b, func(q string) bool { return globsMeet(p, q) })
	})
}
