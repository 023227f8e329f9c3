package engine

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"

	"sallyport/policy"
	"sallyport/policy/rule"

	"github.com/open-policy-agent/opa/v1/ast"
)

// exposed finds expose rules by port. Those for every port have the key 0.
type exposeTable map[uint16][]compiledExposeRule

type compiledExposeRule struct {
	policy.ExposeRule
	paths *regexp.Regexp // nil: all
}

func newExposeTable(rules []policy.ExposeRule) exposeTable {
	all := exposeTable{}
	for _, r := range rules {
		if r.SSH != nil {
			continue // see overSSH
		}
		e := compiledExposeRule{ExposeRule: r}
		if r.Paths != nil {
			expression := rule.GlobPattern(r.Paths)
			if r.Action == policy.Deny {
				expression = rule.LoosePattern(r.Paths)
			}
			e.paths = regexp.MustCompile("^" + expression + "$")
		}
		ports := r.Ports
		if ports == nil {
			ports = []uint16{0}
		}
		for _, port := range slices.Compact(slices.Sorted(slices.Values(ports))) {
			all[port] = append(all[port], e)
		}
	}
	return all
}

// of lists the rules about a port of a sandbox.
func (x exposeTable) of(s policy.Sandbox, port uint16) (list []compiledExposeRule) {
	for _, key := range [2]uint16{port, 0} {
		for _, e := range x[key] {
			if e.Sandboxes.Picks(s.Name, s.Tags) {
				list = append(list, e)
			}
		}
	}
	return list
}

// Exposable tells whether some expose rule allows some request to a port of a
// sandbox, and no rule denies all of them. The team's Rego may deny each all the
// same.
func (p *Policy) Exposable(s policy.Sandbox, port uint16) bool {
	allowed := false
	for _, e := range p.exposed.of(s, port) {
		if e.Action == policy.Deny && e.Methods == nil && e.paths == nil {
			return false
		}
		allowed = allowed || e.Action != policy.Deny
	}
	return allowed && port != policy.AgentPort
}

// inbound decides about a request to a sandbox: denied by an expose rule or the
// team's Rego, else allowed by an expose rule, else denied. Limits, approvals and
// observe mode are of what leaves.
func (p *Policy) inbound(ctx context.Context, s rule.ParsedInput, at time.Time) policy.Decision {
	d := policy.Decision{Action: policy.Deny, Reason: policy.Clean(fmt.Sprintf("no expose rule allows %s %s at port %d of %s", s.Request.Method, s.Request.Path, s.Destination.Port, s.Host)), Revision: p.revision}
	if s.Destination.Port == policy.AgentPort {
		return p.refuse("the port of the sandbox's agent cannot be exposed", nil)
	}
	if s.Host != s.Sandbox.Name {
		return p.refuse("the destination is not the sandbox that is asked", nil)
	}
	for _, e := range p.exposed.of(s.Sandbox, s.Destination.Port) {
		if e.Methods != nil && !slices.Contains(e.Methods, s.Request.Method) || e.paths != nil && !e.paths.MatchString(s.Request.Path) {
			continue
		}
		if e.Action == policy.Deny {
			return policy.Decision{Action: policy.Deny, Rule: e.Name, RuleType: policy.TypeExpose, Reason: policy.Clean("denied by rule " + e.Name), Revision: p.revision}
		}
		if d.Action != policy.Allow {
			d = policy.Decision{Action: policy.Allow, Rule: e.Name, RuleType: policy.TypeExpose, Reason: policy.Clean("allowed by rule " + e.Name), Revision: p.revision}
		}
	}
	if d.Action != policy.Allow {
		return d
	}
	for _, name := range s.Request.Headers {
		if m := policy.Meddles(name); m == policy.OtherResource && (p.team || slices.ContainsFunc(p.exposed.of(s.Sandbox, s.Destination.Port), func(e compiledExposeRule) bool { return e.Methods != nil || e.paths != nil })) {
			no := p.refuse(policy.Clean(fmt.Sprintf("the header %s %s, which no expose rule has seen", name, m)), nil)
			no.Rule = "override-header"
			return no
		}
	}
	if p.query.denies == nil {
		return d
	}
	return p.teamDenies(ctx, s, at, d)
}

// teamDenies asks the team's Rego whether it denies what is allowed.
func (p *Policy) teamDenies(ctx context.Context, s rule.ParsedInput, at time.Time, d policy.Decision) policy.Decision {
	v := p.query.evaluationOf(p.query.denies, s.Phase)
	defer v.release()
	v.at = at
	v.document.set(p, s)
	answer, err := p.query.evalWithRetry(ctx, v)
	if err != nil {
		return p.undecided(err)
	}
	set, ok := answer.(ast.Set)
	if !ok {
		return p.undecided(fmt.Errorf("deny is %v, not a set", ast.ValueName(answer)))
	}
	if set.Len() == 0 {
		return d
	}
	first := set.Slice()[0] // sorted
	o, ok := first.Value.(ast.Object)
	if !ok {
		return p.undecided(fmt.Errorf("a deny is %v, not an object", ast.ValueName(first.Value)))
	}
	rule, err := text(o, keyRule)
	if err != nil {
		return p.undecided(err)
	}
	reason, err := text(o, ast.InternedTerm("reason"))
	if err != nil {
		return p.undecided(err)
	}
	return policy.Decision{Action: policy.Deny, Rule: policy.Clean(rule), RuleType: policy.TypeRego, Reason: policy.Clean(reason), Revision: p.revision}
}
