package engine

import (
	"context"
	"slices"
	"time"

	"sallyport/policy"
	"sallyport/policy/rule"
)

// observing is what of a document can be in observe mode.
type observing struct {
	list  []policy.Observation
	rules []*rule.Rule // with an observe of their own
}

func newObserving(doc policy.Document, rules []rule.Rule) *observing {
	o := &observing{list: doc.Observe}
	for i := range rules {
		if !rules[i].Observe.IsZero() {
			o.rules = append(o.rules, &rules[i])
		}
	}
	if len(o.list) == 0 && len(o.rules) == 0 {
		return nil
	}
	return o
}

// WithoutObserve is the policy without observe mode.
func (p *Policy) WithoutObserve() *Policy {
	strict := *p
	strict.observing = nil
	return &strict
}

// observe lifts a denial, or an approval that is needed, if it is of what is in
// observe mode. A request that the floor refuses stays refused, and so does one that could
// not be decided.
func (p *Policy) observe(ctx context.Context, d policy.Decision, s rule.ParsedInput, at time.Time) policy.Decision {
	if d.RuleType == policy.TypeFloor || d.Err != nil {
		return d
	}
	if at.IsZero() {
		at = time.Now()
	}
	for _, o := range p.observing.list {
		if at.Before(o.Until) && o.Sandboxes.Picks(s.Sandbox.Name, s.Sandbox.Tags) {
			return p.lift(d, d, policy.TypeObserve, s)
		}
	}
	active := p.active(s, at)
	if len(active) == 0 {
		return d
	}
	without := d
	if slices.ContainsFunc(active, func(r *rule.Rule) bool { return r.Name == d.Rule && r.Type == d.RuleType }) {
		if without = p.decideWithout(ctx, active, s, at); without.Err != nil {
			return d
		}
		if without.Action == policy.Allow || without.Action == policy.Tunnel {
			without.Observed, without.Governed = observedOf(d), p.Governed(s)
			return without
		}
	}
	if without.RuleType == "" { // nothing but that no rule allows it
		for _, r := range active {
			if r.Action != policy.Deny && (s.Phase == policy.PhaseDNS || r.Carries(s.Protocol)) {
				return p.lift(d, without, r.Name, s)
			}
		}
	}
	return without // which something denies that is enforced
}

// lift makes a refusal pass. The credentials of an approval go along: the rules
// that give them have matched.
func (p *Policy) lift(d, without policy.Decision, by string, s rule.ParsedInput) policy.Decision {
	lifted := without
	lifted.Observed, lifted.Governed, lifted.Unjudged = observedOf(d), p.Governed(s), nil
	if lifted.Upstream == nil {
		lifted.Upstream = p.UpstreamOf(s)
	}
	lifted.Action, lifted.Rule, lifted.RuleType = policy.Allow, by, policy.TypeObserve
	if s.Phase == policy.PhaseConnect && s.Protocol.IsOther() && !lifted.Authorised {
		lifted.Action = policy.Tunnel
	}
	lifted.Reason = policy.Clean("observe mode lets it pass: " + d.Reason)
	return lifted
}

// UpstreamOf is how an input that observe mode lifts reaches its destination: as by the rule
// that would carry it.
func (p *Policy) UpstreamOf(s rule.ParsedInput) *policy.Upstream {
	return p.upstreamBy(s, p.carryingRule(s))
}

// carryingRule is the rule that would carry the input: the one that decision.rego would
// name were there no deny and no team. It is nil where there is none.
func (p *Policy) carryingRule(s rule.ParsedInput) *rule.Rule {
	var near [8]rule.Match
	var first rule.Match
	for _, m := range p.matches(near[:0], s) {
		switch {
		case m.Does == rule.Denies, m.Does == rule.Governs, m.Does == rule.Reads:
		case first.Rule == nil, m.Does < first.Does:
			first = m
		}
	}
	return first.Rule
}

func observedOf(d policy.Decision) *policy.Observed {
	return &policy.Observed{Action: d.Action, Rule: d.Rule, RuleType: d.RuleType, Reason: d.Reason}
}

// active lists the rules in observe mode that speak about the input's destination
// and sandbox.
func (p *Policy) active(s rule.ParsedInput, at time.Time) (list []*rule.Rule) {
	for r := range p.table.Around(s.Target()) {
		if at.Before(r.Observe) && (s.Phase == policy.PhaseDNS || r.OnPort(s.Destination.Port)) && r.Sandboxes.Picks(s.Sandbox.Name, s.Sandbox.Tags) {
			list = append(list, r)
		}
	}
	return list
}

// Governed tells whether egressAuth rules govern the input's destination.
func (p *Policy) Governed(s rule.ParsedInput) bool {
	return p.some(s.Target(), func(r *rule.Rule) bool {
		return r.Type == policy.TypeEgressAuth && r.OnPort(s.Destination.Port) && r.Sandboxes.Picks(s.Sandbox.Name, s.Sandbox.Tags)
	})
}

// decideWithout decides as if the rules were not there, but for what they allow.
func (p *Policy) decideWithout(ctx context.Context, rules []*rule.Rule, s rule.ParsedInput, at time.Time) policy.Decision {
	v := p.query.evaluation(s.Phase)
	v.document.last = true // it shows what the next input would not replace
	defer v.release()
	v.at = at
	v.document.setWith(p.terms, slices.DeleteFunc(p.matches(nil, s), func(m rule.Match) bool {
		grants := m.Does == rule.Authorises || m.Does == rule.Allows || m.Does == rule.Tunnels
		return !grants && slices.Contains(rules, m.Rule)
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

// Observing lists what is in observe mode at a time.
func (p *Policy) Observing(at time.Time) (list []policy.Lifting) {
	if p.observing == nil {
		return nil
	}
	for _, o := range p.observing.list {
		if at.Before(o.Until) {
			list = append(list, policy.Lifting{Names: o.Sandboxes.Names, Tags: o.Sandboxes.Tags, Until: o.Until.UTC()})
		}
	}
	for _, r := range p.observing.rules {
		if at.Before(r.Observe) {
			list = append(list, policy.Lifting{Rule: r.Name, Until: r.Observe.UTC()})
		}
	}
	return list
}
