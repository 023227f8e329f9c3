package engine

import (
	"fmt"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// mutant is a module with one small mistake in it.
type mutant struct {
	what   string // rule: before → after; the same until the rule changes
	module *ast.Module
}

// site is a place where a mistake can be made, in one copy of a module.
type site struct {
	what string
	make func()
}

// mutants makes every mistake that a person might, one at a time: a condition left
// out or turned round, a branch or a rule left out, another operator, number, text
// or truth value, one side of a union.
func mutants(m *ast.Module) []mutant {
	var list []mutant
	for i := range sites(m.Copy()) {
		module := m.Copy()
		s := sites(module)[i]
		s.make()
		list = append(list, mutant{s.what, module})
	}
	return list
}

// sites lists where mistakes can be made in m, always in the same order.
func sites(m *ast.Module) []site {
	var all []site
	heads := map[string]int{}
	for i, r := range m.Rules {
		name := r.Head.Ref().String()
		if heads[name]++; heads[name] > 1 {
			name = fmt.Sprintf("%s#%d", name, heads[name])
		}
		all = append(all, site{name + ": rule → nothing", func() {
			m.Rules = append(m.Rules[:i:i], m.Rules[i+1:]...)
		}})
		all = append(all, inRule(name, r)...)
	}
	return all
}

func inRule(name string, r *ast.Rule) []site {
	var all []site
	add := func(before, after string, make func()) {
		all = append(all, site{fmt.Sprintf("%s: %s → %s", name, oneLine(before), oneLine(after)), make})
	}
	inTerm(r.Head.Key, add)
	inTerm(r.Head.Value, add)
	for i, e := range r.Body {
		text := e.String()
		if len(r.Body) > 1 {
			add(text, "nothing", func() { r.Body = append(r.Body[:i:i], r.Body[i+1:]...) })
		} else if text != "true" {
			add(text, "true", func() { r.Body = ast.NewBody(ast.NewExpr(ast.BooleanTerm(true))) })
		}
		if _, declares := e.Terms.(*ast.SomeDecl); !declares && text != "true" {
			add(text, "not "+text, func() { e.Negated = !e.Negated })
		}
		inExpr(e, add)
	}
	if r.Else == nil {
		return all
	}
	add("else", "nothing", func() { r.Else = nil })
	add("first branch", "nothing", func() { r.Head.Value, r.Body, r.Else = r.Else.Head.Value, r.Else.Body, r.Else.Else })
	return append(all, inRule(name+" else", r.Else)...)
}

// operators that are easily taken for each other.
var operators = map[string]string{
	"eq": "neq", "equal": "neq", "neq": "equal", "gt": "gte", "gte": "gt", "lt": "lte", "lte": "lt",
	"min": "max", "max": "min", "or": "and", "and": "or", "plus": "minus", "minus": "plus",
}

func inExpr(e *ast.Expr, add func(string, string, func())) {
	switch terms := e.Terms.(type) {
	case *ast.Term:
		inTerm(terms, add)
	case []*ast.Term:
		inCall(terms, e.String(), add)
	case *ast.SomeDecl:
		for _, t := range terms.Symbols {
			inTerm(t, add)
		}
	case *ast.Every:
		for _, e := range terms.Body {
			inExpr(e, add)
		}
	}
}

func inCall(terms []*ast.Term, text string, add func(string, string, func())) {
	if other := operators[terms[0].Value.String()]; other != "" {
		add(text, other, func() { terms[0] = ast.NewTerm(ast.Ref{ast.VarTerm(other)}) })
	}
	for _, t := range terms[1:] {
		inTerm(t, add)
	}
}

func inTerm(t *ast.Term, add func(string, string, func())) {
	if t == nil {
		return
	}
	text := t.String()
	switch v := t.Value.(type) {
	case ast.String:
		if v != "other" {
			add(text, `"other"`, func() { t.Value = ast.String("other") })
		} else {
			add(text, `"tls"`, func() { t.Value = ast.String("tls") })
		}
	case ast.Number:
		if n, whole := v.Int(); whole {
			add(text, fmt.Sprint(n+1), func() { t.Value = ast.InternedTerm(n + 1).Value })
		} else {
			add(text, "9", func() { t.Value = ast.InternedTerm(9).Value })
		}
	case ast.Boolean:
		add(text, fmt.Sprint(!v), func() { t.Value = !v })
	case ast.Ref:
		for i, part := range v[1:] {
			if _, known := part.Value.(ast.Number); known {
				inTerm(part, add)
			}
			if _, known := part.Value.(ast.String); known && i > 0 && i == len(v)-2 {
				add(text, "other key", func() { part.Value = ast.String("other") })
			}
			if inner, known := part.Value.(ast.Call); known {
				inCall(inner, text, add)
			}
		}
	case *ast.Array:
		v.Foreach(func(t *ast.Term) { inTerm(t, add) })
	case ast.Set:
		v.Foreach(func(e *ast.Term) {
			add(text, "without "+e.String(), func() {
				t.Value = ast.NewSet(others(v.Slice(), e)...)
			})
		})
	case ast.Object:
		v.Foreach(func(key, value *ast.Term) {
			inTerm(value, add)
			if v.Len() > 1 {
				add(text, "without "+key.String(), func() {
					left := ast.NewObject()
					v.Foreach(func(k, value *ast.Term) {
						if !k.Equal(key) {
							left.Insert(k, value)
						}
					})
					t.Value = left
				})
			}
		})
	case ast.Call:
		inCall(v, text, add)
		if len(v) == 3 {
			add(text, v[1].String(), func() { t.Value = v[1].Value })
			add(text, v[2].String(), func() { t.Value = v[2].Value })
		}
	case *ast.ArrayComprehension:
		inTerm(v.Term, add)
		inBody(v.Body, add)
	case *ast.SetComprehension:
		inTerm(v.Term, add)
		inBody(v.Body, add)
	case *ast.ObjectComprehension:
		inTerm(v.Value, add)
		inBody(v.Body, add)
	}
}

func inBody(body ast.Body, add func(string, string, func())) {
	for _, e := range body {
		if _, declares := e.Terms.(*ast.SomeDecl); !declares {
			add(e.String(), "not", func() { e.Negated = !e.Negated })
		}
		inExpr(e, add)
	}
}

func others(all []*ast.Term, but *ast.Term) []*ast.Term {
	var left []*ast.Term
	for _, t := range all {
		if !t.Equal(but) {
			left = append(left, t)
		}
	}
	return left
}

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 90 {
		return s[:87] + "…"
	}
	return s
}
