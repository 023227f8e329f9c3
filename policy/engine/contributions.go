package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sallyport/policy"
	"sallyport/policy/rego"
	"sallyport/policy/rule"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// maxContributions bounds what is listed of a team's Rego.
const maxContributions = 50

// contributions lists all that the team's Rego contributes, deny first. A decision asks for
// no more of it than it needs.
func (p *Policy) contributions(ctx context.Context, s rule.ParsedInput, at time.Time) ([]policy.Contribution, error) {
	var list []policy.Contribution
	for _, set := range p.query.sets {
		values, err := p.contributionsTo(ctx, s, set, at)
		if err != nil {
			return nil, fmt.Errorf("asking for %s: %w", set, err)
		}
		list = append(list, values...)
	}
	slices.SortFunc(list, func(a, b policy.Contribution) int {
		return cmp.Or(cmp.Compare(slices.Index(rego.SetNames, a.Set), slices.Index(rego.SetNames, b.Set)),
			strings.Compare(a.By, b.By), strings.Compare(a.Reason, b.Reason))
	})
	return list[:min(len(list), maxContributions)], nil
}

func (p *Policy) contributionsTo(ctx context.Context, s rule.ParsedInput, set string, at time.Time) (list []policy.Contribution, err error) {
	v := p.query.evaluation(s.Phase)
	defer v.release()
	v.document.set(p, s)
	v.began, v.late = time.Now(), false
	if at.IsZero() {
		at = v.began
	}
	err = p.query.query(v, valueOf("data.sallyport.contributed."+set)).WithTime(at).Iter(ctx, func(r topdown.QueryResult) error {
		values, ok := r[answer].Value.(ast.Set)
		if !ok {
			return fmt.Errorf("it is %v, not a set", ast.ValueName(r[answer].Value))
		}
		values.Foreach(func(t *ast.Term) { list = append(list, contributionOf(set, t)) })
		return nil
	})
	return list, err
}

func contributionOf(set string, t *ast.Term) policy.Contribution {
	said := policy.Contribution{Set: set}
	o, ok := t.Value.(ast.Object)
	if !ok {
		said.Reason = policy.Clean("malformed: " + t.String())
		return said
	}
	get := func(key *ast.Term) string {
		if v := o.Get(key); v != nil {
			if text, ok := v.Value.(ast.String); ok {
				return policy.Clean(string(text))
			}
		}
		return ""
	}
	said.By, said.Reason = get(keyRule), get(ast.InternedTerm("reason"))
	if set == "inject" {
		said.By = get(keyCredential)
	}
	return said
}
