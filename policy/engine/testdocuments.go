package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"sallyport/policy/rego"
	"sallyport/policy/rule"

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
	for _, e := range p.table.All() {
		for _, buckets := range e.Buckets {
			for _, b := range buckets {
				var entries []*ast.Term
				for _, r := range b.Rules {
					entries = append(entries, entryTerm(r))
				}
				index = append(index, [2]*ast.Term{ast.StringTerm(b.Key), ast.ArrayTerm(entries...)})
			}
		}
	}
	return ast.NewObject([2]*ast.Term{ast.StringTerm("sallyport"), ast.ObjectTerm(
		[2]*ast.Term{ast.StringTerm("index"), ast.ObjectTerm(index...)},
		[2]*ast.Term{ast.StringTerm("selectors"), selectorsTerm(p.selectors)},
		[2]*ast.Term{ast.StringTerm("places"), places(p.rules)},
		[2]*ast.Term{ast.StringTerm("bodies"), wanted(p.rules)},
		[2]*ast.Term{ast.StringTerm("limits"), p.limits.term()},
	)})
}

func places(rules map[string]*rule.Rule) *ast.Term {
	o := ast.NewObject()
	for name, r := range rules {
		if r.Credential != "" {
			o.Insert(ast.StringTerm(name), ast.StringTerm(r.Inject.Place()))
		}
	}
	return ast.NewTerm(o)
}

func wanted(rules map[string]*rule.Rule) *ast.Term {
	o := ast.NewObject()
	for name, r := range rules {
		if r.Body == nil {
			continue
		}
		view := keyJSON
		if r.Body.GraphQL > 0 {
			view = keyGraphQL
		}
		o.Insert(ast.StringTerm(name), ast.ObjectTerm(
			[2]*ast.Term{ast.StringTerm("view"), view},
			[2]*ast.Term{ast.StringTerm("max"), ast.NumberTerm(json.Number(strconv.FormatInt(r.Body.Max(), 10)))},
		))
	}
	return ast.NewTerm(o)
}

// term is data.sallyport.limits.
func (ls *limitTable) term() *ast.Term {
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
			d, _ := rule.ParseDestination(l.Destination) // validated
			port := "*"
			if d.Port != 0 {
				port = strconv.Itoa(int(d.Port))
			}
			o.Insert(ast.StringTerm("destinations"), ast.ArrayTerm(ast.StringTerm(d.Key()+":"+port)))
		}
		var chosen []*ast.Term
		for _, s := range rule.Selections(l.Sandboxes) {
			chosen = append(chosen, selectionTerm(s))
		}
		o.Insert(ast.StringTerm("selectors"), ast.ArrayTerm(chosen...))
		list = append(list, ast.NewTerm(o))
	}
	return ast.ArrayTerm(list...)
}

// term is {name, tags}.
func selectionTerm(s rule.Selection) *ast.Term {
	tags := make([][2]*ast.Term, 0, len(s.Tags))
	for tag, value := range s.Tags {
		tags = append(tags, [2]*ast.Term{ast.StringTerm(tag), ast.StringTerm(value)})
	}
	parts := [][2]*ast.Term{{keyTags, ast.NewTerm(ast.NewObject(tags...))}}
	if s.Name != "" {
		parts = append(parts, [2]*ast.Term{keyName, ast.StringTerm(s.Name)})
	}
	return ast.NewTerm(ast.NewObject(parts...))
}

// term is data.sallyport.selectors: {key: {name, tags}}.
func selectorsTerm(all *rule.Selectors) *ast.Term {
	var fields [][2]*ast.Term
	add := func(s rule.Selection) {
		fields = append(fields, [2]*ast.Term{ast.StringTerm(s.Key), selectionTerm(s)})
	}
	if all.Anyone {
		add(rule.Selection{Key: rule.Everyone})
	}
	for _, list := range all.ByName {
		for _, s := range list {
			add(s)
		}
	}
	for _, list := range all.ByTag {
		for _, s := range list {
			add(s)
		}
	}
	return ast.NewTerm(ast.NewObject(fields...))
}

// effectKeys are their names in input.rules.
var effectKeys = [rule.EffectCount]*ast.Term{
	rule.Denies: ast.InternedTerm("deny"), rule.Approves: ast.InternedTerm("approve"), rule.Authorises: ast.InternedTerm("authorise"),
	rule.Governs: ast.InternedTerm("govern"), rule.Allows: ast.InternedTerm("allow"), rule.Reads: ast.InternedTerm("read"), rule.Tunnels: ast.InternedTerm("tunnel"),
}

// term is the rule and all that it does, in each moment, to what its pattern
// matches and to what it does not: an entry of data.sallyport.index, which
// testing.rego makes input.rules of.
func entryTerm(r *rule.Rule) *ast.Term {
	fields := [][2]*ast.Term{
		{ast.InternedTerm("pattern"), ast.StringTerm(r.LinePattern())},
		{ast.InternedTerm("effects"), ast.ObjectTerm(
			[2]*ast.Term{ast.InternedTerm(true), momentTable(r.Effect)},
			[2]*ast.Term{ast.InternedTerm(false), momentTable(r.Unmatched)},
		)},
	}
	matchTerm(r).Value.(ast.Object).Foreach(func(key, value *ast.Term) { fields = append(fields, [2]*ast.Term{key, value}) })
	return ast.ObjectTerm(fields...)
}

func momentTable(effect func(rule.Moment) rule.Effect) *ast.Term {
	var fields [][2]*ast.Term
	for _, m := range rule.Moments {
		if e := effect(m); e != 0 {
			fields = append(fields, [2]*ast.Term{ast.StringTerm(m.String()), effectKeys[e]})
		}
	}
	return ast.ObjectTerm(fields...)
}

// data builds the documents that decision.rego reads, beside the team's own:
//
//	data.sallyport.contributed[SET] = what no package of the team defines
func (p *Policy) data(team *rego.Team) (ast.Object, error) {
	value, err := ast.InterfaceToValue(team.Data)
	if err != nil {
		return nil, fmt.Errorf("reading the team's data: %w", err)
	}
	root, ok := value.(ast.Object)
	if !ok {
		return nil, errors.New("the team's data is not an object")
	}
	root.Insert(ast.StringTerm("sallyport"), ast.ObjectTerm([2]*ast.Term{ast.StringTerm("contributed"), team.Lacks()}))
	return root, nil
}
