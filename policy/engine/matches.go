package engine

import (
	"sync"

	"sallyport/policy/rule"

	"github.com/open-policy-agent/opa/v1/ast"
)

// matches adds the rules that do something to an input: those with the most exact
// destination first, then in the order of the document. It is input.rules.
func (p *Policy) matches(list []rule.Match, s rule.ParsedInput) []rule.Match {
	m := s.Moment()
	for r := range p.table.For(s) {
		does := r.Unmatched(m)
		if e := r.Matched(m); e != 0 && r.MatchesRequest(s) {
			does = e
		}
		if does != 0 {
			list = append(list, rule.Match{Rule: r, Does: does})
		}
	}
	return list
}

// effectKeys are the names of what rules do in input.rules.
var effectKeys = [rule.EffectCount]*ast.Term{
	rule.Denies: ast.InternedTerm("deny"), rule.Approves: ast.InternedTerm("approve"), rule.Authorises: ast.InternedTerm("authorise"),
	rule.Governs: ast.InternedTerm("govern"), rule.Allows: ast.InternedTerm("allow"), rule.Reads: ast.InternedTerm("read"), rule.Tunnels: ast.InternedTerm("tunnel"),
}

// matchTerm is an element of input.rules.
func matchTerm(r *rule.Rule) *ast.Term {
	fields := [][2]*ast.Term{{keyRule, ast.StringTerm(r.Name)}, {keyType, ast.InternedTerm(r.Type)}}
	if r.Credential != "" {
		fields = append(fields, [2]*ast.Term{keyInject, ast.ObjectTerm(
			[2]*ast.Term{keyCredential, ast.StringTerm(r.Credential)},
			[2]*ast.Term{keyRule, ast.StringTerm(r.Name)},
		)})
	}
	return ast.ObjectTerm(fields...)
}

// ruleTerms are the elements of input.rules by the place of their rule, each made when
// it is first needed: of many thousand rules, most are for what nobody does today.
type ruleTerms []func() *ast.Term

func newRuleTerms(rules []rule.Rule) ruleTerms {
	terms := make(ruleTerms, len(rules))
	for i := range rules {
		terms[i] = sync.OnceValue(func() *ast.Term { return matchTerm(&rules[i]) })
	}
	return terms
}

// grouped is input.rules of some matches.
func (terms ruleTerms) grouped(list []rule.Match) ast.Object {
	var groups [rule.EffectCount][]*ast.Term
	for _, m := range list {
		groups[m.Does] = append(groups[m.Does], terms[m.Rule.Index]())
	}
	o := ast.NewObject()
	for does, terms := range groups {
		if terms != nil {
			o.Insert(effectKeys[does], ast.ArrayTerm(terms...))
		}
	}
	return o
}
