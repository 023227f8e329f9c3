package policy

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
)

// AgentPort is where the first process of a sandbox listens for the host. No rule
// exposes it.
const AgentPort = 1023

// maxExpose bounds the expose rules, since those of a port are tried one by one.
const maxExpose = 1000

// ExposeRule says which requests may reach a port of a sandbox. The port has to
// be exposed besides, by an operator and until a time, and who asks has to show
// that exposure's token.
type ExposeRule struct {
	// Name appears in decisions, denials and the audit, and is given once; needed.
	// Example: previews
	Name string `yaml:"name"`
	// Sandboxes selects whose ports the rule is for. Default: every sandbox.
	// Example: {tags: {team: web}}
	Sandboxes Selector `yaml:"sandboxes"`
	// Ports lists the TCP ports inside of the sandbox. Default: every port for
	// deny; needed to allow requests or forwarded connections.
	// Example: [8000, 5173]
	Ports []uint16 `yaml:"ports" json:",omitempty"`
	// Methods lists HTTP methods in upper case. Default: all.
	// Example: [GET, HEAD]
	Methods []string `yaml:"methods" json:",omitempty"`
	// Paths lists globs over the normalised path, as EgressRule's. Default: all.
	// Example: ["/docs/**"]
	Paths []string `yaml:"paths" json:",omitempty"`
	// SSH makes the rule one for SSH access in place of requests, and lists what of
	// it: shell (shells and commands), sftp (files), forward (connections to Ports).
	// Default: a rule for requests; a deny without ports, methods and paths is for
	// SSH access too.
	// Example: [shell, sftp]
	SSH []Protocol `yaml:"ssh" json:",omitempty"`
	// Action is allow (default) or deny.
	// Example: deny
	Action Action `yaml:"action" json:",omitempty"`
}

// exposed finds expose rules by port. Those for every port have the key 0.
type exposed map[uint16][]exposure

type exposure struct {
	ExposeRule
	paths *regexp.Regexp // nil: all
}

func newExposed(rules []ExposeRule) exposed {
	all := exposed{}
	for _, r := range rules {
		if r.SSH != nil {
			continue // see overSSH
		}
		e := exposure{ExposeRule: r}
		if r.Paths != nil {
			expression := globPattern(r.Paths)
			if r.Action == Deny {
				expression = loosePattern(r.Paths)
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
func (x exposed) of(s Sandbox, port uint16) (list []exposure) {
	for _, key := range [2]uint16{port, 0} {
		for _, e := range x[key] {
			if e.Sandboxes.picks(s.Name, s.Tags) {
				list = append(list, e)
			}
		}
	}
	return list
}

// Exposable tells whether some expose rule allows some request to a port of a
// sandbox, and no rule denies all of them. The team's Rego may deny each all the
// same.
func (p *Policy) Exposable(s Sandbox, port uint16) bool {
	allowed := false
	for _, e := range p.exposed.of(s, port) {
		if e.Action == Deny && e.Methods == nil && e.paths == nil {
			return false
		}
		allowed = allowed || e.Action != Deny
	}
	return allowed && port != AgentPort
}

// inbound decides about a request to a sandbox: denied by an expose rule or the
// team's Rego, else allowed by an expose rule, else denied. Limits, approvals and
// observe mode are of what leaves.
func (p *Policy) inbound(ctx context.Context, s subject, at time.Time) Decision {
	d := Decision{Action: Deny, Reason: clean(fmt.Sprintf("no expose rule allows %s %s at port %d of %s", s.Request.Method, s.Request.Path, s.Destination.Port, s.host)), Revision: p.revision}
	if s.Destination.Port == AgentPort {
		return p.refuse("the port of the sandbox's agent cannot be exposed", nil)
	}
	if s.host != s.Sandbox.Name {
		return p.refuse("the destination is not the sandbox that is asked", nil)
	}
	for _, e := range p.exposed.of(s.Sandbox, s.Destination.Port) {
		if e.Methods != nil && !slices.Contains(e.Methods, s.Request.Method) || e.paths != nil && !e.paths.MatchString(s.Request.Path) {
			continue
		}
		if e.Action == Deny {
			return Decision{Action: Deny, Rule: e.Name, RuleType: typeExpose, Reason: clean("denied by rule " + e.Name), Revision: p.revision}
		}
		if d.Action != Allow {
			d = Decision{Action: Allow, Rule: e.Name, RuleType: typeExpose, Reason: clean("allowed by rule " + e.Name), Revision: p.revision}
		}
	}
	if d.Action != Allow {
		return d
	}
	for _, name := range s.Request.Headers {
		if m := Meddles(name); m == OtherResource && (p.team || slices.ContainsFunc(p.exposed.of(s.Sandbox, s.Destination.Port), func(e exposure) bool { return e.Methods != nil || e.paths != nil })) {
			no := p.refuse(clean(fmt.Sprintf("the header %s %s, which no expose rule has seen", name, m)), nil)
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
func (p *Policy) teamDenies(ctx context.Context, s subject, at time.Time, d Decision) Decision {
	v := p.query.of(p.query.denies, s.Phase)
	defer v.release()
	v.at = at
	v.view.show(p, s)
	answer, err := p.query.patient(ctx, v)
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
	return Decision{Action: Deny, Rule: clean(rule), RuleType: typeRego, Reason: clean(reason), Revision: p.revision}
}

// exposes checks the expose rules.
func (v *validator) exposes() {
	if n := len(v.doc.Expose); n > maxExpose {
		v.fail("expose", fmt.Sprintf("are %d, more than %d", n, maxExpose), "select sandboxes by tags, so that one rule is for many")
		return
	}
	for i, e := range v.doc.Expose {
		v.expose(fmt.Sprintf("expose[%d]", i), e)
	}
}

func (v *validator) expose(path string, e ExposeRule) {
	actions := []string{string(Allow), string(Deny)}
	if e.Action != "" && !slices.Contains(actions, string(e.Action)) {
		fix := "write allow or deny"
		if near := Nearest(string(e.Action), actions); near != "" {
			fix = "did you mean " + near + "?"
		}
		v.say(BadAction, path+".action", fmt.Sprintf("%q is not an action", e.Action), fix)
	}
	switch other, taken := v.names[e.Name]; {
	case e.Name == "":
		v.say(BadName, path, "has no name", "write name: and what the audit shall call it")
	case !label(e.Name):
		v.say(BadName, path+".name", fmt.Sprintf("%q is not a name", e.Name), "write 1 to 200 visible ASCII characters; spaces may stand between them")
	case taken:
		v.say(BadName, path, fmt.Sprintf("the name %q is already that of %s", e.Name, other), "give each of the two a name of its own with name:")
	default:
		v.names[e.Name] = path
	}
	if e.SSH != nil {
		v.overSSH(path, e)
	} else if e.Ports == nil && e.Action != Deny {
		v.say(BadPort, path, "has no ports", "write ports: and those that requests may reach")
	}
	if slices.Contains(e.Ports, AgentPort) && e.Action != Deny {
		v.say(BadPort, path+".ports", fmt.Sprintf("%d is where the sandbox's own agent listens, which nobody is exposed to", AgentPort), "remove it")
	}
	if slices.ContainsFunc(e.Methods, func(m string) bool { return strings.EqualFold(m, "CONNECT") || strings.EqualFold(m, "TRACE") }) && e.Action != Deny {
		v.say(NeverMatches, path+".methods", "CONNECT and TRACE are never carried to a sandbox", "remove them")
	}
	v.matches(path, e.Ports, e.Methods, e.Paths, e.Sandboxes)
}
