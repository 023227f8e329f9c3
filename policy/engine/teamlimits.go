package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"sallyport/policy"
	"sallyport/policy/rule"
	"sallyport/policy/validate"

	"github.com/open-policy-agent/opa/v1/ast"
)

// maxTeamLimits bounds those that a team's Rego gives one request.
const maxTeamLimits = 32

// bounded adds the limits that apply to what is allowed. What a team's Rego
// limits in a form that cannot be read is denied.
func (p *Policy) bounded(ctx context.Context, d policy.Decision, s rule.ParsedInput, at time.Time) policy.Decision {
	if !passes(d.Action, s.Phase) {
		return d
	}
	d.Lenient = p.lenient(s, at)
	if p.query.limits == nil {
		return p.limited(d, s, nil)
	}
	team, err := p.teamLimits(ctx, s, at)
	if err != nil {
		if shown(s.Request) {
			err = quiet(err)
		}
		return p.undecided(err)
	}
	return p.limited(d, s, team)
}

// limited adds the limits of the document and of the team that a decision falls under.
func (p *Policy) limited(d policy.Decision, s rule.ParsedInput, team []*compiledLimit) policy.Decision {
	d.Limits = p.limits.apply(nil, s, d.Inject)
	for _, l := range team {
		if p.limits != nil && p.limits.names[l.Name] != nil {
			return p.undecided(fmt.Errorf("a limit of the team's is named %q, as one of sallyport.yaml's is", l.Name))
		}
		d.Limits = l.apply(d.Limits, s, d.Inject)
	}
	for i := range d.Limits {
		if d.Limits[i].Cost > 0 {
			d.Limits[i].Prices = p.priced.at(s)
		}
	}
	return d
}

// lenient tells whether the sandbox is in observe mode.
func (p *Policy) lenient(s rule.ParsedInput, at time.Time) bool {
	if p.observing == nil {
		return false
	}
	if at.IsZero() {
		at = time.Now()
	}
	return slices.ContainsFunc(p.observing.list, func(o policy.Observation) bool {
		return at.Before(o.Until) && o.Sandboxes.Picks(s.Sandbox.Name, s.Sandbox.Tags)
	})
}

// passes tells whether something is carried after the decision.
func passes(a policy.Action, at policy.Phase) bool {
	switch at {
	case policy.PhaseRequest:
		return a == policy.Allow || a == policy.Approve
	case policy.PhaseConnect:
		return a == policy.Tunnel || a == policy.Approve
	}
	return false
}

// teamLimits asks the team's Rego.
func (p *Policy) teamLimits(ctx context.Context, s rule.ParsedInput, at time.Time) ([]*compiledLimit, error) {
	v := p.query.evaluationOf(p.query.limits[s.Phase], s.Phase)
	defer v.release()
	v.at = at
	v.document.set(p, s)
	answer, err := p.query.evalWithRetry(ctx, v)
	if err != nil {
		return nil, err
	}
	return readTeamLimits(answer)
}

// readTeamLimits reads data.sallyport.contributed.limits.
func readTeamLimits(answer ast.Value) ([]*compiledLimit, error) {
	list, ok := answer.(*ast.Array)
	if !ok {
		return nil, fmt.Errorf("the team's limits are %v, not an array", ast.ValueName(answer))
	}
	if list.Len() > maxTeamLimits {
		return nil, fmt.Errorf("the team's limits: at most %d apply to one request, got %d", maxTeamLimits, list.Len())
	}
	limits := make([]*compiledLimit, 0, list.Len())
	names := map[string]bool{}
	err := list.Iter(func(t *ast.Term) error {
		l, err := teamLimit(t.Value)
		if err != nil {
			return fmt.Errorf("a limit must be {\"name\": …, \"per\": …, \"every\": …, \"requests\": …}: %w, got %.200s", err, policy.Clean(t.String()))
		}
		if names[l.Name] {
			return fmt.Errorf("two limits of one request are named %q", l.Name)
		}
		names[l.Name] = true
		limits = append(limits, l)
		return nil
	})
	return limits, err
}

// teamLimit reads a limit by the rules that sallyport.yaml's are read by.
func teamLimit(v ast.Value) (*compiledLimit, error) {
	var l policy.Limit
	if err := decodeTerm(v, &l, true); err != nil {
		return nil, err
	}
	if err := validate.CheckLimit(l); err != nil {
		return nil, err
	}
	if l.Per == "" {
		l.Per = policy.PerSandbox
	}
	return &compiledLimit{Limit: l, open: policy.NewOpening(l.Hours)}, nil
}

// decodeTerm reads a value of Rego's into a struct; strict refuses keys that it does not have.
func decodeTerm(v ast.Value, into any, strict bool) error {
	plain, err := ast.JSON(v)
	if err != nil {
		return err
	}
	text, err := json.Marshal(plain)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if strict {
		decoder.DisallowUnknownFields()
	}
	return decoder.Decode(into)
}
