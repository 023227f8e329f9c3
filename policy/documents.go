package policy

import "github.com/open-policy-agent/opa/v1/ast"

// documents makes data.sallyport.index and .selectors, which testing.rego reads:
// what a document says, for tests. A decision finds its rules in Go.
func documents(p *Policy) ast.Object {
	var index [][2]*ast.Term
	for _, e := range p.table.all() {
		for _, shelves := range e.shelves {
			for _, s := range shelves {
				var entries []*ast.Term
				for _, r := range s.rules {
					entries = append(entries, r.term())
				}
				index = append(index, [2]*ast.Term{ast.StringTerm(s.key), ast.ArrayTerm(entries...)})
			}
		}
	}
	return ast.NewObject([2]*ast.Term{ast.StringTerm("sallyport"), ast.ObjectTerm(
		[2]*ast.Term{ast.StringTerm("index"), ast.ObjectTerm(index...)},
		[2]*ast.Term{ast.StringTerm("selectors"), p.selectors.term()},
	)})
}

// term is data.sallyport.selectors: {key: {name, tags}}.
func (all *selectors) term() *ast.Term {
	var fields [][2]*ast.Term
	add := func(s selection) {
		tags := make([][2]*ast.Term, 0, len(s.tags))
		for tag, value := range s.tags {
			tags = append(tags, [2]*ast.Term{ast.StringTerm(tag), ast.StringTerm(value)})
		}
		parts := [][2]*ast.Term{{keyTags, ast.NewTerm(ast.NewObject(tags...))}}
		if s.name != "" {
			parts = append(parts, [2]*ast.Term{keyName, ast.StringTerm(s.name)})
		}
		fields = append(fields, [2]*ast.Term{ast.StringTerm(s.key), ast.NewTerm(ast.NewObject(parts...))})
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
