package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Observation puts sandboxes into observe mode for a while: everything is decided
// and recorded, and what the policy denies, or asks a person about, is carried
// all the same, without a credential that no rule gives, and by the upstream that
// a rule for its destination names. The floor always holds:
// the datapath, the classes of addresses, the bindings of credentials, verified
// TLS, the form of requests.
//
//	observe:
//	- {sandboxes: {names: [demo]}, until: 2026-12-01T00:00:00Z}
type Observation struct {
	// Sandboxes selects whose. It names some: there is no default.
	// Example: {names: [demo]}
	Sandboxes Selector `yaml:"sandboxes"`
	// Until is when it ends by itself, at most 30 days ahead.
	// Example: 2026-12-01T00:00:00Z
	Until time.Time `yaml:"until"`
}

// maxObserve bounds how far ahead observe mode may end.
const maxObserve = 30 * 24 * time.Hour

const typeObserve = "observe"

// Observed is a decision that observe mode has lifted.
type Observed struct {
	Action   Action
	Rule     string
	RuleType string
	Reason   string
}

// observations checks the document's list.
func (v *validator) observations() {
	for i, o := range v.doc.Observe {
		path := fmt.Sprintf("observe[%d]", i)
		if len(o.Sandboxes.Names) == 0 && len(o.Sandboxes.Tags) == 0 {
			v.fail(path+".sandboxes", "selects every sandbox there will ever be", "name some, as in {names: [demo]} or {tags: {team: support}}")
		}
		v.matches(path, nil, nil, nil, o.Sandboxes)
		if o.Until.IsZero() {
			v.fail(path, "has no end", "write until: and a time, as 2026-12-01T00:00:00Z, at most 30 days ahead")
			continue
		}
		v.until(path+".until", o.Until)
	}
}

// until checks when observe mode ends. One that has ended is no error: a
// configuration that could be used stays one.
func (v *validator) until(path string, end time.Time) {
	now := time.Now()
	switch {
	case end.IsZero():
	case end.After(now.Add(maxObserve)):
		v.fail(path, fmt.Sprintf("%s is more than 30 days ahead", end.Format(time.RFC3339)),
			"write one until "+now.Add(maxObserve).UTC().Truncate(24*time.Hour).Format(time.RFC3339))
	case !end.After(now):
		v.say(ObserveOver, path, "observe mode ended at "+end.Format(time.RFC3339)+": everything is enforced", "remove it")
	}
}

// observing is what of a document can be in observe mode.
type observing struct {
	list  []Observation
	rules []*rule // with an observe of their own
}

func newObserving(doc Document, rules []rule) *observing {
	o := &observing{list: doc.Observe}
	for i := range rules {
		if !rules[i].observe.IsZero() {
			o.rules = append(o.rules, &rules[i])
		}
	}
	if len(o.list) == 0 && len(o.rules) == 0 {
		return nil
	}
	return o
}

// enforced is the policy without observe mode.
func (p *Policy) enforced() *Policy {
	strict := *p
	strict.observing = nil
	return &strict
}

// observe lifts a denial, or an approval that is needed, if it is of what is in
// observe mode. What the floor refuses stays refused, and so does what could not
// be decided.
func (p *Policy) observe(ctx context.Context, d Decision, s subject, at time.Time) Decision {
	if d.RuleType == typeFloor || d.Err != nil {
		return d
	}
	if at.IsZero() {
		at = time.Now()
	}
	for _, o := range p.observing.list {
		if at.Before(o.Until) && o.Sandboxes.picks(s.Sandbox.Name, s.Sandbox.Tags) {
			return p.lift(d, d, typeObserve, s)
		}
	}
	active := p.active(s, at)
	if len(active) == 0 {
		return d
	}
	without := d
	if slices.ContainsFunc(active, func(r *rule) bool { return r.name == d.Rule && r.kind == d.RuleType }) {
		if without = p.without(ctx, active, s, at); without.Err != nil {
			return d
		}
		if without.Action == Allow || without.Action == Tunnel {
			without.Observed, without.Governed = d.observed(), p.governed(s)
			return without
		}
	}
	if without.RuleType == "" { // nothing but that no rule allows it
		for _, r := range active {
			if r.action != Deny && (s.Phase == PhaseDNS || slices.Contains(r.protocols, s.Protocol)) {
				return p.lift(d, without, r.name, s)
			}
		}
	}
	return without // which something denies that is enforced
}

// lift makes a refusal pass. The credentials of an approval go along: the rules
// that give them have matched.
func (p *Policy) lift(d, without Decision, by string, s subject) Decision {
	lifted := without
	lifted.Observed, lifted.Governed, lifted.Unjudged = d.observed(), p.governed(s), nil
	if lifted.Upstream == nil {
		lifted.Upstream = p.detour(s)
	}
	lifted.Action, lifted.Rule, lifted.RuleType = Allow, by, typeObserve
	if s.Phase == PhaseConnect && s.Protocol == ProtocolOther {
		lifted.Action = Tunnel
	}
	lifted.Reason = clean("observe mode lets it pass: " + d.Reason)
	return lifted
}

// detour is how what is lifted reaches its destination: as by the rule that would
// carry it.
func (p *Policy) detour(s subject) *Upstream { return p.reach(s, p.carrier(s)) }

// carrier is the rule that would carry the input: the one that decision.rego would
// name were there no deny and no team. It is nil where there is none.
func (p *Policy) carrier(s subject) *rule {
	var near [8]match
	var first match
	for _, m := range p.matches(near[:0], s) {
		switch {
		case m.does == denies, m.does == governs, m.does == reads:
		case first.rule == nil, m.does < first.does:
			first = m
		}
	}
	return first.rule
}

func (d Decision) observed() *Observed {
	return &Observed{Action: d.Action, Rule: d.Rule, RuleType: d.RuleType, Reason: d.Reason}
}

// active lists the rules in observe mode that speak about the input's destination
// and sandbox.
func (p *Policy) active(s subject, at time.Time) (list []*rule) {
	var near [8]*entry
	for _, e := range p.table.entries(near[:0], s.host, s.addr) {
		for _, r := range e.rules {
			if at.Before(r.observe) && (s.Phase == PhaseDNS || r.on(s.Destination.Port)) && r.sandboxes.picks(s.Sandbox.Name, s.Sandbox.Tags) {
				list = append(list, r)
			}
		}
	}
	return list
}

// governed tells whether egressAuth rules govern the input's destination.
func (p *Policy) governed(s subject) bool {
	var near [8]*entry
	for _, e := range p.table.entries(near[:0], s.host, s.addr) {
		for _, r := range e.rules {
			if r.kind == typeEgressAuth && r.on(s.Destination.Port) && r.sandboxes.picks(s.Sandbox.Name, s.Sandbox.Tags) {
				return true
			}
		}
	}
	return false
}

// without decides as if the rules were not there, but for what they allow.
func (p *Policy) without(ctx context.Context, rules []*rule, s subject, at time.Time) Decision {
	v := p.query.evaluation(s.Phase)
	v.view.last = true // it shows what the next input would not replace
	defer v.release()
	v.at = at
	v.view.showWith(slices.DeleteFunc(p.matches(nil, s), func(m match) bool {
		grants := m.does == authorises || m.does == allows || m.does == tunnels
		return !grants && slices.Contains(rules, m.rule)
	}), s)
	answer, err := p.query.eval(ctx, v)
	if err != nil {
		return p.undecided(err)
	}
	d, err := p.decode(answer, s)
	if err != nil {
		return p.undecided(err)
	}
	return p.floor(d, s)
}

// Lifting is one thing that is in observe mode.
type Lifting struct {
	// Sandboxes are selected by name and tags; a rule's are all that it is for.
	Names []string          `json:"names,omitempty"`
	Tags  map[string]string `json:"tags,omitempty"`
	Rule  string            `json:"rule,omitempty"` // whose own observe it is
	Until time.Time         `json:"until"`
}

// String says what is not enforced.
func (l Lifting) String() string {
	var parts []string
	for _, name := range l.Names {
		parts = append(parts, "sandbox "+quoted(name))
	}
	s := selection{tags: l.Tags}
	if len(l.Tags) > 0 {
		parts = append(parts, s.text())
	}
	what := strings.Join(parts, ", ")
	if l.Rule != "" {
		what = "rule " + l.Rule
	}
	return what + " until " + l.Until.UTC().Format(time.RFC3339)
}

// Observing lists what is in observe mode at a time.
func (p *Policy) Observing(at time.Time) (list []Lifting) {
	if p.observing == nil {
		return nil
	}
	for _, o := range p.observing.list {
		if at.Before(o.Until) {
			list = append(list, Lifting{Names: o.Sandboxes.Names, Tags: o.Sandboxes.Tags, Until: o.Until.UTC()})
		}
	}
	for _, r := range p.observing.rules {
		if at.Before(r.observe) {
			list = append(list, Lifting{Rule: r.name, Until: r.observe.UTC()})
		}
	}
	return list
}
