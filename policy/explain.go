package policy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport/policy/pathvariants"
)

// maxNear bounds the rules that an Explanation lists.
const maxNear = 20

// Explanation says what would be decided and why.
type Explanation struct {
	Decision Decision
	// Credentials names what would be injected.
	Credentials []string
	// Near lists the rules for the host, those that fit best first; where there
	// is none, those for hosts that are spelled alike.
	Near []Near
	// Said lists what the team's Rego contributes to this input.
	Said []Said
	// Readings says what would be decided of each reading of the path, where it has
	// several: those of encoded slashes.
	Readings []Reading `json:",omitempty"`
}

// Reading is one way to read a path, and what would be decided of that alone.
type Reading struct {
	Path     string
	Action   Action
	Rule     string
	RuleType string
	Reason   string
}

// Near is a rule and the parts of it that the input failed on: host, sandbox, fork,
// port, plain, action, method, path, body. A deny that failed on something did not deny.
type Near struct {
	Rule        string
	RuleType    string
	Action      Action
	Destination string
	Position    Position
	Failed      []string
	// Wants says for each of Failed what the rule would have fitted.
	Wants []string
}

// Explain decides like Decide and says what each rule for the destination, and the
// team's Rego, made of the input.
func (p *Policy) Explain(ctx context.Context, in Input) Explanation {
	return p.ExplainAt(ctx, in, time.Time{})
}

// ExplainAt explains what [Policy.DecideAt] decides.
func (p *Policy) ExplainAt(ctx context.Context, in Input, at time.Time) Explanation {
	e := Explanation{Decision: p.DecideAt(ctx, in, at)}
	for _, in := range e.Decision.Inject {
		e.Credentials = append(e.Credentials, in.Credential)
	}
	s, err := read(in)
	if err != nil {
		return e
	}
	for s := range s.readings() {
		said, err := p.said(ctx, s, at)
		if err != nil {
			said = []Said{{Reason: clean("the team's Rego could not be asked: " + err.Error())}}
		}
		for _, said := range said {
			if !slices.Contains(e.Said, said) && len(e.Said) < maxSaid {
				e.Said = append(e.Said, said)
			}
		}
		if s.Request != nil && s.sent != "" && pathvariants.Several(s.sent) {
			d := p.decide(ctx, s, at)
			e.Readings = append(e.Readings, Reading{s.Request.Path, d.Action, d.Rule, d.RuleType, d.Reason})
		}
	}
	if s.Phase == PhaseInbound || s.Phase == PhaseSSH {
		return e // the rules below are of what leaves
	}
	for _, entry := range p.table.entries(nil, s.host, s.addr) {
		for _, r := range entry.rules {
			e.Near = append(e.Near, r.near(r.failed(s)))
		}
	}
	if len(e.Near) == 0 {
		e.Near = p.alike(s.host)
	}
	slices.SortFunc(e.Near, func(a, b Near) int {
		return cmp.Or(cmp.Compare(len(a.Failed), len(b.Failed)), strings.Compare(a.Rule, b.Rule))
	})
	e.Near = e.Near[:min(len(e.Near), maxNear)]
	return e
}

// failed lists the parts of the rule that the input does not fit.
func (r *rule) failed(s subject) []string {
	var parts []string
	if !r.sandboxes.picks(s.Sandbox.Name, s.Sandbox.Tags) {
		parts = append(parts, "sandbox")
	}
	if _, fork := s.Sandbox.Tags[TagFork]; fork && r.kind == typeEgressAuth && !r.inherit {
		parts = append(parts, "fork")
	}
	if s.Phase == PhaseDNS {
		return parts
	}
	if !r.on(s.Destination.Port) {
		parts = append(parts, "port")
	}
	if !slices.Contains(r.protocols, s.Protocol) {
		switch s.Protocol {
		case ProtocolHTTP:
			parts = append(parts, "plain")
		default:
			parts = append(parts, "action")
		}
	}
	if s.Request == nil {
		return parts
	}
	if r.methods != nil && !slices.Contains(r.methods, s.Request.Method) {
		parts = append(parts, "method")
	}
	if r.paths != nil && !r.fits(s) {
		parts = append(parts, "path")
	}
	if r.body != nil && r.misses(s.Request) != nil {
		parts = append(parts, "body")
	}
	return parts
}

// fits tells whether the rule's paths match the request's, in whatever reading for a
// rule that denies or asks a person, and else in each.
func (r *rule) fits(s subject) bool {
	some := r.action == Deny || r.action == Approve
	for s := range s.readings() {
		if r.matchesPath(s.Request.Path) == some {
			return some
		}
	}
	return !some
}

// alike lists the rules whose hosts differ from host by a slip of the keyboard
// or lie in the same domain.
func (p *Policy) alike(host string) []Near {
	_, domain, _ := strings.Cut(host, ".")
	var list []Near
	for _, r := range p.rules {
		d := r.destination
		if d.kind == addressRange {
			continue
		}
		_, theirs, _ := strings.Cut(d.host, ".")
		neighbours := strings.Contains(domain, ".") && (theirs == domain || d.host == domain)
		if neighbours || d.host == host || distance(d.host, host, 3) < 3 {
			list = append(list, r.near([]string{"host"}))
		}
	}
	return list
}

func (r *rule) near(failed []string) Near {
	n := Near{
		Rule: r.name, RuleType: r.kind, Action: r.action, Destination: r.destination.key(), Position: r.position, Failed: failed,
	}
	for _, part := range failed {
		n.Wants = append(n.Wants, r.wants(part))
	}
	return n
}

// wants says what fits a part of the rule.
func (r *rule) wants(part string) string {
	var list []string
	switch part {
	case "host":
		list = []string{r.destination.key()}
	case "sandbox":
		list = append(list, r.sandboxes.Names...)
		for _, tag := range slices.Sorted(maps.Keys(r.sandboxes.Tags)) {
			list = append(list, quoted(tag)+"="+quoted(r.sandboxes.Tags[tag]))
		}
	case "fork":
		list = []string{"inherit: true"}
	case "port":
		for _, port := range r.ports {
			list = append(list, strconv.Itoa(int(port)))
		}
	case "plain":
		list = []string{"TLS"}
		if r.kind == typeEgress {
			list = []string{"TLS; plain: true in the rule allows HTTP without it"}
		}
	case "action":
		list = []string{"TLS or HTTP; action: tunnel in an egress rule allows other bytes"}
	case "method":
		list = r.methods
	case "path":
		list = r.paths
	}
	if more := len(list) - maxWants; more > 0 {
		list = append(slices.Clone(list[:maxWants]), fmt.Sprintf("… (%d more)", more))
	}
	return strings.Join(list, ", ")
}

// maxWants bounds what a Near says of each part.
const maxWants = 8
