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

// exposeRule is one of what may reach a sandbox: requests, or SSH access. Each is tried.
type exposeRule struct {
	policy.ExposeRule
	paths *regexp.Regexp // nil: all
}

func newExposeRules(rules []policy.ExposeRule) []exposeRule {
	list := make([]exposeRule, len(rules))
	for i, r := range rules {
		list[i].ExposeRule = r
		if r.Paths != nil {
			pattern := rule.GlobPattern
			if r.Action == policy.Deny {
				pattern = rule.LoosePattern
			}
			list[i].paths = regexp.MustCompile("^" + pattern(r.Paths) + "$")
		}
	}
	return list
}

// selective tells whether the rule is about some requests only.
func (e *exposeRule) selective() bool { return e.Methods != nil || e.paths != nil }

func (e *exposeRule) isFor(s policy.Sandbox, port uint16) bool {
	return (e.Ports == nil || slices.Contains(e.Ports, port)) && e.Sandboxes.Picks(s.Name, s.Tags)
}

// matches tells whether the rule is about what is asked of a sandbox. A denial of all requests
// is about SSH access too, where ports are those of forwarded connections.
func (e *exposeRule) matches(s rule.ParsedInput) bool {
	port := s.Destination.Port
	switch {
	case s.Phase == policy.PhaseInbound:
		return e.SSH == nil && e.isFor(s.Sandbox, port) &&
			(e.Methods == nil || slices.Contains(e.Methods, s.Request.Method)) && (e.paths == nil || e.paths.MatchString(s.Request.Path))
	case e.SSH == nil:
		return e.Action == policy.Deny && e.Ports == nil && !e.selective() && e.isFor(s.Sandbox, port)
	case s.Protocol == policy.ProtocolForward:
		return slices.Contains(e.SSH, s.Protocol) && e.isFor(s.Sandbox, port)
	}
	return slices.Contains(e.SSH, s.Protocol) && e.Sandboxes.Picks(s.Sandbox.Name, s.Sandbox.Tags)
}

// Exposable tells whether some expose rule allows some request to a port of a
// sandbox, and no rule denies all of them. The team's Rego may deny each all the
// same.
func (p *Policy) Exposable(s policy.Sandbox, port uint16) bool {
	allowed := false
	for i := range p.exposed {
		e := &p.exposed[i]
		if e.SSH != nil || !e.isFor(s, port) {
			continue
		}
		if e.Action == policy.Deny && !e.selective() {
			return false
		}
		allowed = allowed || e.Action != policy.Deny
	}
	return allowed && port != policy.AgentPort
}

// entering decides about what is asked of a sandbox, by a request or over SSH: denied by an
// expose rule or the team's Rego, else allowed by an expose rule, else denied. Limits,
// approvals and observe mode are of what leaves.
func (p *Policy) entering(ctx context.Context, s rule.ParsedInput, at time.Time) policy.Decision {
	port, forward := s.Destination.Port, s.Protocol == policy.ProtocolForward
	what := fmt.Sprintf("%s over SSH for %s", s.Protocol, s.Host)
	switch {
	case s.Host != s.Sandbox.Name:
		return p.refuse("the destination is not the sandbox that is asked", nil)
	case s.Phase == policy.PhaseInbound && port == policy.AgentPort:
		return p.refuse("the port of the sandbox's agent cannot be exposed", nil)
	case s.Phase == policy.PhaseInbound:
		what = fmt.Sprintf("%s %s at port %d of %s", s.Request.Method, s.Request.Path, port, s.Host)
	case forward && port == policy.AgentPort:
		return p.refuse("the port of the sandbox's agent cannot be forwarded", nil)
	case forward:
		what = fmt.Sprintf("forwarding over SSH to port %d of %s", port, s.Host)
	case port != policy.SSHPort:
		return p.refuse(fmt.Sprintf("%s has the port %d, not %d", s.Protocol, port, policy.SSHPort), nil)
	}
	d := policy.Decision{Action: policy.Deny, Reason: policy.Clean("no expose rule allows " + what), Revision: p.revision}
	for i := range p.exposed {
		e := &p.exposed[i]
		if !e.matches(s) || e.Action != policy.Deny && d.Action == policy.Allow {
			continue
		}
		d.Action, d.Rule, d.RuleType, d.Reason = policy.Allow, e.Name, policy.TypeExpose, policy.Clean("allowed by rule "+e.Name)
		if e.Action == policy.Deny {
			d.Action, d.Reason = policy.Deny, policy.Clean("denied by rule "+e.Name)
			return d
		}
	}
	if d.Action != policy.Allow {
		return d
	}
	if no, denied := p.unseenResource(s); denied {
		return no
	}
	if p.query.denies == nil {
		return d
	}
	return p.teamDenies(ctx, s, at, d)
}

// unseenResource denies a request with a header that names another resource, where more than
// the port decides.
func (p *Policy) unseenResource(s rule.ParsedInput) (d policy.Decision, denied bool) {
	if s.Request == nil {
		return d, false
	}
	for _, name := range s.Request.Headers {
		if m := policy.Meddles(name); m == policy.OtherResource && (p.team || slices.ContainsFunc(p.exposed, func(e exposeRule) bool {
			return e.SSH == nil && e.selective() && e.isFor(s.Sandbox, s.Destination.Port)
		})) {
			d = p.refuse(policy.Clean(fmt.Sprintf("the header %s %s, which no expose rule has seen", name, m)), nil)
			d.Rule = "override-header"
			return d, true
		}
	}
	return d, false
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
	reason, err := text(o, keyReason)
	if err != nil {
		return p.undecided(err)
	}
	return policy.Decision{Action: policy.Deny, Rule: policy.Clean(rule), RuleType: policy.TypeRego, Reason: policy.Clean(reason), Revision: p.revision}
}
