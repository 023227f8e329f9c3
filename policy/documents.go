package policy

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/open-policy-agent/opa/v1/ast"
)

// documents makes what testing.rego and floor.rego read: what a document says, for
// tests. A decision finds its rules in Go.
//
//	data.sallyport.index[KEY] = entries of the rules of a bucket
//	data.sallyport.selectors[KEY] = {name, tags}
//	data.sallyport.places[RULE] = where its credential goes
//	data.sallyport.bodies[RULE] = {view, max} of the bodies that it has to see
//	data.sallyport.limits = [{name, per, credential, destinations, selectors}]
func documents(p *Policy) ast.Object {
	var index [][2]*ast.Term
	for _, e := range p.table.all() {
		for _, buckets := range e.buckets {
			for _, b := range buckets {
				var entries []*ast.Term
				for _, r := range b.rules {
					entries = append(entries, r.term())
				}
				index = append(index, [2]*ast.Term{ast.StringTerm(b.key), ast.ArrayTerm(entries...)})
			}
		}
	}
	return ast.NewObject([2]*ast.Term{ast.StringTerm("sallyport"), ast.ObjectTerm(
		[2]*ast.Term{ast.StringTerm("index"), ast.ObjectTerm(index...)},
		[2]*ast.Term{ast.StringTerm("selectors"), p.selectors.term()},
		[2]*ast.Term{ast.StringTerm("places"), places(p.rules)},
		[2]*ast.Term{ast.StringTerm("bodies"), wanted(p.rules)},
		[2]*ast.Term{ast.StringTerm("limits"), p.limits.term()},
	)})
}

func places(rules map[string]*rule) *ast.Term {
	o := ast.NewObject()
	for name, r := range rules {
		if r.credential != "" {
			o.Insert(ast.StringTerm(name), ast.StringTerm(r.inject.place()))
		}
	}
	return ast.NewTerm(o)
}

func wanted(rules map[string]*rule) *ast.Term {
	o := ast.NewObject()
	for name, r := range rules {
		if r.body == nil {
			continue
		}
		view := keyJSON
		if r.body.GraphQL > 0 {
			view = keyGraphQL
		}
		o.Insert(ast.StringTerm(name), ast.ObjectTerm(
			[2]*ast.Term{ast.StringTerm("view"), view},
			[2]*ast.Term{ast.StringTerm("max"), ast.NumberTerm(json.Number(strconv.FormatInt(r.body.size(), 10)))},
		))
	}
	return ast.NewTerm(o)
}

// term is data.sallyport.limits.
func (ls *limits) term() *ast.Term {
	if ls == nil {
		return ast.ArrayTerm()
	}
	var list []*ast.Term
	for _, name := range slices.Sorted(maps.Keys(ls.names)) {
		l := ls.names[name]
		o := ast.NewObject([2]*ast.Term{keyName, ast.StringTerm(name)}, [2]*ast.Term{ast.StringTerm("per"), ast.StringTerm(l.Per)})
		if l.Credential != "" {
			o.Insert(keyCredential, ast.StringTerm(l.Credential))
		}
		if l.Destination != "" {
			d, _ := parseDestination(l.Destination) // validated
			port := "*"
			if d.port != 0 {
				port = strconv.Itoa(int(d.port))
			}
			o.Insert(ast.StringTerm("destinations"), ast.ArrayTerm(ast.StringTerm(d.key()+":"+port)))
		}
		var selections []*ast.Term
		for _, s := range l.Sandboxes.selections() {
			selections = append(selections, s.term())
		}
		o.Insert(ast.StringTerm("selectors"), ast.ArrayTerm(selections...))
		list = append(list, ast.NewTerm(o))
	}
	return ast.ArrayTerm(list...)
}

// term is {name, tags}.
func (s selection) term() *ast.Term {
	tags := make([][2]*ast.Term, 0, len(s.tags))
	for tag, value := range s.tags {
		tags = append(tags, [2]*ast.Term{ast.StringTerm(tag), ast.StringTerm(value)})
	}
	parts := [][2]*ast.Term{{keyTags, ast.NewTerm(ast.NewObject(tags...))}}
	if s.name != "" {
		parts = append(parts, [2]*ast.Term{keyName, ast.StringTerm(s.name)})
	}
	return ast.NewTerm(ast.NewObject(parts...))
}

// term is data.sallyport.selectors: {key: {name, tags}}.
func (all *selectors) term() *ast.Term {
	var fields [][2]*ast.Term
	add := func(s selection) {
		fields = append(fields, [2]*ast.Term{ast.StringTerm(s.key), s.term()})
	}
	if all.anyone {
		add(selection{key: everyone})
	}
	for _, list := range all.byName {
		for _, s := range list {
			add(s)
		}
	}
	for _, list := range all.byTag {
		for _, s := range list {
			add(s)
		}
	}
	return ast.NewTerm(ast.NewObject(fields...))
}
