package engine

import (
	"errors"
	"fmt"
	"time"

	"sallyport/policy"
	"sallyport/policy/body"
	"sallyport/policy/rule"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// Need is what has to be known of a request's body before Decide is asked about
// in: which rules that could match it ask for one. Request.Body counts for nothing.
func (p *Policy) Need(in policy.Input) policy.Need {
	if !p.bodies || in.Phase != policy.PhaseRequest {
		return policy.Need{}
	}
	s, err := rule.ParseInput(in)
	if err != nil {
		return policy.Need{}
	}
	var n policy.Need
	for s := range s.Variants() {
		for _, r := range p.BodyRules(s) {
			n.Max = max(n.Max, r.Body.Max())
			n.JSON, n.GraphQL = n.JSON || r.Body.JSON > 0, n.GraphQL || r.Body.GraphQL > 0
		}
	}
	return n
}

// BodyRules lists the rules with a body that speak about a request, whatever its body is.
func (p *Policy) BodyRules(s rule.ParsedInput) (found []*rule.Rule) {
	for r := range p.table.For(s) {
		if r.Body != nil && r.Carries(s.Protocol) && r.MatchesRequest(s) {
			found = append(found, r)
		}
	}
	return found
}

// missingBody denies a request whose body a rule has to see and cannot. The others
// of its rules have no say: what is not there would slip through a team's deny. A
// rule in observe mode is named where no other denies.
func (p *Policy) missingBody(s rule.ParsedInput, at time.Time) (d policy.Decision, denied bool) {
	for _, r := range p.BodyRules(s) {
		fault := r.MissesBody(s.Request)
		if fault == nil {
			continue
		}
		enforced := !r.Observing(at)
		if denied && !enforced {
			continue
		}
		d = policy.Decision{
			Action: policy.Deny, RuleType: r.Type, Rule: policy.Clean(r.Name), Revision: p.revision, Unjudged: fault,
			Upstream: r.Upstream, // by which it goes where observe mode lifts this
			Reason:   policy.Clean(fmt.Sprintf("the rule %s decides by the request's body: %v", r.Name, fault)),
		}
		if denied = true; enforced {
			break
		}
	}
	return d, denied
}

// shown tells whether there is something of the body to show.
func shown(q *policy.Request) bool {
	return q != nil && q.Body != nil && (q.Body.JSON != nil || q.Body.GraphQL != nil)
}

var (
	keyJSON    = ast.StringTerm("json")
	keyGraphQL = ast.StringTerm("graphql")
)

// bodyValue is the body in Rego's form.
func bodyValue(b *policy.Body) ast.Value {
	o := ast.NewObject()
	if b.JSON != nil {
		o.Insert(keyJSON, ast.NewTerm(ast.MustInterfaceToValue(*b.JSON)))
	}
	if b.GraphQL != nil {
		o.Insert(keyGraphQL, ast.NewTerm(ast.MustInterfaceToValue(*b.GraphQL)))
	}
	return o
}

// quiet leaves out of an error what may quote the request's body: it goes into
// logs and events.
func quiet(err error) error {
	var e *topdown.Error
	switch {
	case err == nil, errors.Is(err, errTimeout), errors.Is(err, errUndefined):
		return err
	case errors.As(err, &e):
		return fmt.Errorf("%s at %v; its text may quote the request's body", e.Code, e.Location)
	}
	return errors.New("an error whose text may quote the request's body")
}

// Show returns the input with what the policy has to see of its request's body, as
// the gateway makes it. A nil body is one that nothing is known of.
func (p *Policy) Show(in policy.Input, content *body.Raw) policy.Input {
	if in.Request == nil || content == nil {
		return in
	}
	q := *in.Request
	in.Request = &q
	need := p.Need(in)
	if need.Max == 0 {
		return in
	}
	switch fault := body.Unsuited(content.Header, content.Size == 0); {
	case fault != nil:
		q.Body = policy.NoBody(fault)
	case content.Size > need.Max:
		q.Body = policy.NoBody(policy.TooLong(need.Max))
	default:
		q.Body = body.Read(need, content.Text)
	}
	return in
}

// NeedsBody tells whether the policy has to see a body that the input is without.
func (p *Policy) NeedsBody(in policy.Input) bool {
	return in.Request != nil && in.Request.Body == nil && p.Need(in).Max > 0
}

// Fit returns a recorded decision with its Unfit set where the policy has to see a
// body, which no record has. A body that is refused for its size is none of those.
func (p *Policy) Fit(r policy.Recorded) policy.Recorded {
	if r.Unfit != "" || !p.NeedsBody(r.Input) {
		return r
	}
	fault := p.unsent(r.Input)
	if fault == nil {
		r.Unfit = policy.UnfitBody
		return r
	}
	q := *r.Input.Request
	q.Body, r.Input.Request = policy.NoBody(fault), &q
	return r
}

// unsent is why no body of the request's size can be judged, whatever is in it, or nil.
func (p *Policy) unsent(in policy.Input) error {
	switch most := p.Need(in).Max; {
	case in.Request.Size == 0:
		return body.ErrNone
	case in.Request.Size > most:
		return policy.TooLong(most)
	}
	return nil
}
