package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport/policy"
	"sallyport/policy/finding"
	"sallyport/policy/pathvariants"
	"sallyport/policy/rule"
)

// maxNear bounds the rules that an Explanation lists.
const maxNear = 20

// Explain decides like Decide and says what each rule for the destination, and the
// team's Rego, made of the input.
func (p *Policy) Explain(ctx context.Context, in policy.Input) policy.Explanation {
	return p.ExplainAt(ctx, in, time.Time{})
}

// ExplainAt explains what [Policy.DecideAt] decides.
func (p *Policy) ExplainAt(ctx context.Context, in policy.Input, at time.Time) policy.Explanation {
	e := policy.Explanation{Decision: p.DecideAt(ctx, in, at)}
	for _, in := range e.Decision.Inject {
		e.Credentials = append(e.Credentials, in.Credential)
	}
	s, err := rule.ParseInput(in)
	if err != nil {
		return e
	}
	for s := range s.Variants() {
		said, err := p.contributions(ctx, s, at)
		if err != nil {
			said = []policy.Contribution{{Reason: policy.Clean("the team's Rego could not be asked: " + err.Error())}}
		}
		for _, said := range said {
			if !slices.Contains(e.Contributions, said) && len(e.Contributions) < maxContributions {
				e.Contributions = append(e.Contributions, said)
			}
		}
		if s.Request != nil && s.SentPath != "" && pathvariants.Several(s.SentPath) {
			d := p.decide(ctx, s, at)
			e.Variants = append(e.Variants, policy.PathVariant{Path: s.Request.Path, Action: d.Action, Rule: d.Rule, RuleType: d.RuleType, Reason: d.Reason})
		}
	}
	if s.Phase == policy.PhaseInbound || s.Phase == policy.PhaseSSH {
		return e // the rules below are of what leaves
	}
	for r := range p.table.Around(s.Target()) {
		e.Near = append(e.Near, nearRule(r, failed(r, s)))
	}
	if len(e.Near) == 0 {
		e.Near = p.alike(s.Host)
	}
	slices.SortFunc(e.Near, func(a, b policy.Near) int {
		return cmp.Or(cmp.Compare(len(a.Failed), len(b.Failed)), strings.Compare(a.Rule, b.Rule))
	})
	e.Near = e.Near[:min(len(e.Near), maxNear)]
	return e
}

// failed lists the parts of the rule that the input does not fit.
func failed(r *rule.Rule, s rule.ParsedInput) []string {
	var parts []string
	if !r.Sandboxes.Picks(s.Sandbox.Name, s.Sandbox.Tags) {
		parts = append(parts, "sandbox")
	}
	if _, fork := s.Sandbox.Tags[policy.TagFork]; fork && r.Type == policy.TypeEgressAuth && !r.Inherit {
		parts = append(parts, "fork")
	}
	if s.Phase == policy.PhaseDNS {
		return parts
	}
	if !r.OnPort(s.Destination.Port) {
		parts = append(parts, "port")
	}
	if !r.Carries(s.Protocol) {
		switch s.Protocol {
		case policy.ProtocolHTTP:
			parts = append(parts, "plain")
		default:
			parts = append(parts, "action")
		}
	}
	if s.Request == nil {
		return parts
	}
	if r.Methods != nil && !slices.Contains(r.Methods, s.Request.Method) {
		parts = append(parts, "method")
	}
	if r.Paths != nil && !matchesVariants(r, s) {
		parts = append(parts, "path")
	}
	if r.Body != nil && r.MissesBody(s.Request) != nil {
		parts = append(parts, "body")
	}
	return parts
}

// matchesVariants tells whether the rule's paths match the request's, in whatever reading for a
// rule that denies or asks a person, and else in each.
func matchesVariants(r *rule.Rule, s rule.ParsedInput) bool {
	some := r.Action == policy.Deny || r.Action == policy.Approve
	for s := range s.Variants() {
		if r.MatchesPath(s.Request.Path) == some {
			return some
		}
	}
	return !some
}

// alike lists the rules whose hosts differ from host by a slip of the keyboard
// or lie in the same domain.
func (p *Policy) alike(host string) []policy.Near {
	_, domain, _ := strings.Cut(host, ".")
	var list []policy.Near
	for _, r := range p.rules {
		d := r.Destination
		if d.Kind == rule.AddressRange {
			continue
		}
		_, theirs, _ := strings.Cut(d.Host, ".")
		neighbours := strings.Contains(domain, ".") && (theirs == domain || d.Host == domain)
		if neighbours || d.Host == host || finding.EditDistance(d.Host, host, 3) < 3 {
			list = append(list, nearRule(r, []string{"host"}))
		}
	}
	return list
}

func nearRule(r *rule.Rule, failed []string) policy.Near {
	n := policy.Near{
		Rule: r.Name, RuleType: r.Type, Action: r.Action, Destination: r.Destination.Key(), Position: r.Position, Failed: failed,
	}
	for _, part := range failed {
		n.Wants = append(n.Wants, wants(r, part))
	}
	return n
}

// wants says what fits a part of the rule.
func wants(r *rule.Rule, part string) string {
	var list []string
	switch part {
	case "host":
		list = []string{r.Destination.Key()}
	case "sandbox":
		list = append(list, r.Sandboxes.Names...)
		for _, tag := range slices.Sorted(maps.Keys(r.Sandboxes.Tags)) {
			list = append(list, policy.Quoted(tag)+"="+policy.Quoted(r.Sandboxes.Tags[tag]))
		}
	case "fork":
		list = []string{"inherit: true"}
	case "port":
		for _, port := range r.Ports {
			list = append(list, strconv.Itoa(int(port)))
		}
	case "plain":
		list = []string{"TLS"}
		if r.Type == policy.TypeEgress {
			list = []string{"TLS; plain: true in the rule allows HTTP without it"}
		}
	case "action":
		list = []string{"TLS or HTTP; action: tunnel in an egress rule allows other bytes"}
		if r.Inject.Protocol() != policy.ProtocolTLS {
			list = []string{string(r.Inject.Protocol())}
		}
	case "method":
		list = r.Methods
	case "path":
		list = r.Paths
	}
	if more := len(list) - maxWants; more > 0 {
		list = append(slices.Clone(list[:maxWants]), fmt.Sprintf("… (%d more)", more))
	}
	return strings.Join(list, ", ")
}

// maxWants bounds what a Near says of each part.
const maxWants = 8
