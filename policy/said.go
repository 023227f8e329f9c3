package policy

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// Said is one thing that a team's Rego contributes to an input, whether it decides
// or not.
type Said struct {
	Set string // deny, approve, allow or inject
	// By is the package of a deny or approve, the rule of an allow, the credential
	// of an inject.
	By string
	// Reason is what it says, if it says anything.
	Reason string
}

// maxSaid bounds what is listed of a team's Rego.
const maxSaid = 50

// said lists all that the team's Rego contributes, deny first. A decision asks for
// no more of it than it needs.
func (p *Policy) said(ctx context.Context, s subject, at time.Time) ([]Said, error) {
	var list []Said
	for _, set := range p.query.sets {
		values, err := p.contributes(ctx, s, set, at)
		if err != nil {
			return nil, fmt.Errorf("asking for %s: %w", set, err)
		}
		list = append(list, values...)
	}
	slices.SortFunc(list, func(a, b Said) int {
		return cmp.Or(cmp.Compare(slices.Index(contributed, a.Set), slices.Index(contributed, b.Set)),
			strings.Compare(a.By, b.By), strings.Compare(a.Reason, b.Reason))
	})
	return list[:min(len(list), maxSaid)], nil
}

func (p *Policy) contributes(ctx context.Context, s subject, set string, at time.Time) (list []Said, err error) {
	v := p.query.evaluation(s.Phase)
	defer v.release()
	v.view.show(p, s)
	v.began, v.late = time.Now(), false
	if at.IsZero() {
		at = v.began
	}
	err = p.query.query(v, valueOf("data.sallyport.contributed."+set)).WithTime(at).Iter(ctx, func(r topdown.QueryResult) error {
		values, ok := r[answer].Value.(ast.Set)
		if !ok {
			return fmt.Errorf("it is %v, not a set", ast.ValueName(r[answer].Value))
		}
		values.Foreach(func(t *ast.Term) { list = append(list, saidBy(set, t)) })
		return nil
	})
	return list, err
}

func saidBy(set string, t *ast.Term) Said {
	said := Said{Set: set}
	o, ok := t.Value.(ast.Object)
	if !ok {
		said.Reason = clean("malformed: " + t.String())
		return said
	}
	get := func(key *ast.Term) string {
		if v := o.Get(key); v != nil {
			if text, ok := v.Value.(ast.String); ok {
				return clean(string(text))
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
