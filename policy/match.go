package policy

import (
	"regexp"
	"slices"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
)

// match is a rule that speaks about an input, and what it does there.
type match struct {
	rule *rule
	does effect
}

// matches adds the rules that do something to an input: those with the most exact
// destination first, then in the order of the document. It is input.rules.
func (p *Policy) matches(list []match, s subject) []match {
	m := moment{s.Phase, s.Protocol}
	var near [8]*bucket
	for _, b := range p.table.buckets(near[:0], s, p.selectors) {
		for _, r := range b.rules {
			does := r.unmatched(m)
			if e := r.matched(m); e != 0 && r.speaks(s) {
				does = e
			}
			if does != 0 {
				list = append(list, match{r, does})
			}
		}
	}
	return list
}

// speaks tells whether a request is one of the rule's methods and paths.
func (r *rule) speaks(s subject) bool {
	return s.Request == nil ||
		(r.methods == nil || slices.Contains(r.methods, s.Request.Method)) && (r.paths == nil || r.matchesPath(s.Request.Path))
}

func (r *rule) matchesPath(path string) bool { return r.lazy.path().MatchString(path) }

// lazy is what is made of a rule when it is first needed: of many thousand rules, most
// are for what nobody does today.
type lazy struct {
	path func() *regexp.Regexp
	term func() *ast.Term
}

func newLazy(r *rule) *lazy {
	return &lazy{
		path: sync.OnceValue(r.pathPattern),
		term: sync.OnceValue(r.matchTerm),
	}
}

// matchTerm is an element of input.rules.
func (r *rule) matchTerm() *ast.Term {
	fields := [][2]*ast.Term{{keyRule, ast.StringTerm(r.name)}, {keyType, ast.InternedTerm(r.kind)}}
	if r.credential != "" {
		fields = append(fields, [2]*ast.Term{keyInject, ast.ObjectTerm(
			[2]*ast.Term{keyCredential, ast.StringTerm(r.credential)},
			[2]*ast.Term{keyRule, ast.StringTerm(r.name)},
		)})
	}
	return ast.ObjectTerm(fields...)
}

// grouped is input.rules of some matches.
func grouped(list []match) ast.Object {
	var groups [effectCount][]*ast.Term
	for _, m := range list {
		groups[m.does] = append(groups[m.does], m.rule.lazy.term())
	}
	o := ast.NewObject()
	for does, terms := range groups {
		if terms != nil {
			o.Insert(effectKeys[does], ast.ArrayTerm(terms...))
		}
	}
	return o
}
