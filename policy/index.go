package policy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// effect is what a rule does at a moment: see decision.rego. The lowest decides.
type effect int

const (
	denies     effect = 1
	approves   effect = 2
	authorises effect = 3
	governs    effect = 4
	allows     effect = 5
	reads      effect = 6
	tunnels    effect = 7
)

// moment is a phase and what is carried.
type moment struct {
	phase    Phase
	protocol Protocol
}

var moments = []moment{
	{PhaseDNS, ""},
	{PhaseConnect, ProtocolTLS},
	{PhaseConnect, ProtocolHTTP},
	{PhaseConnect, ProtocolOther},
	{PhaseRequest, ProtocolTLS},
	{PhaseRequest, ProtocolHTTP},
}

func (m moment) String() string {
	if m.protocol == "" {
		return string(m.phase)
	}
	return string(m.phase) + "/" + string(m.protocol)
}

// effect is what the rule does at a moment to what its pattern matches, or 0.
func (r *rule) effect(m moment) effect {
	carried := m.phase == PhaseDNS || slices.Contains(r.protocols, m.protocol)
	switch {
	case r.action == Deny:
		return r.denial(m)
	case !carried:
		return 0
	case m.phase == PhaseDNS:
		return allows // whatever comes of it, the name is worth an address
	case m.protocol == ProtocolOther && r.action != Approve:
		return tunnels
	case r.kind == typeEgressAuth:
		return authorises
	case r.action == Approve:
		if m.phase == PhaseConnect && m.protocol != ProtocolOther {
			return allows // the request is what a person is asked about
		}
		return approves
	case r.action == Tunnel && m.phase == PhaseConnect:
		return tunnels
	}
	return allows
}

func (r *rule) denial(m moment) effect {
	switch {
	case m.phase == PhaseDNS:
		// A name is refused when nothing about it can be allowed.
		if r.conditional() || r.ports != nil {
			return 0
		}
	case m.phase == PhaseConnect && m.protocol != ProtocolOther && r.conditional():
		return reads // the request decides
	}
	// What cannot be read cannot be shown to be none of the denied requests.
	return denies
}

// data builds the documents that decision.rego looks rules up in, beside the
// team's own:
//
//	data.sallyport.index[DESTINATION:PORT SELECTOR] = [entry, …]
//	data.sallyport.selectors[SELECTOR] = {name, tags}
func (p *Policy) data(team map[string]any) (ast.Object, error) {
	value, err := ast.InterfaceToValue(team)
	if err != nil {
		return nil, fmt.Errorf("reading the team's data: %w", err)
	}
	root, ok := value.(ast.Object)
	if !ok {
		return nil, errors.New("the team's data is not an object")
	}
	shared := effectTerms{}
	var index [][2]*ast.Term
	for _, e := range p.table.all() {
		lists := map[*ast.Term][]*ast.Term{}
		for _, r := range e.rules {
			terms := r.terms(shared)
			for _, port := range r.keyPorts() {
				for _, s := range r.sandboxes.selections() {
					key := e.keys[port][s.text()]
					lists[key] = append(lists[key], terms...)
				}
			}
		}
		for key, list := range lists {
			index = append(index, [2]*ast.Term{key, ast.ArrayTerm(list...)})
		}
	}
	root.Insert(ast.StringTerm("sallyport"), ast.NewTerm(ast.NewObject(
		[2]*ast.Term{ast.StringTerm("index"), ast.NewTerm(ast.NewObject(index...))},
		[2]*ast.Term{ast.StringTerm("selectors"), p.selectors.term()},
	)))
	return root, nil
}

// effectTerms shares the few effect tables that there are among all rules.
type effectTerms map[[6]effect]*ast.Term

func (shared effectTerms) term(of func(moment) effect) *ast.Term {
	var table [6]effect
	var fields [][2]*ast.Term
	for i, m := range moments {
		if table[i] = of(m); table[i] != 0 {
			fields = append(fields, [2]*ast.Term{momentTerms[m], ast.InternedTerm(int(table[i]))})
		}
	}
	if shared[table] == nil {
		shared[table] = ast.NewTerm(ast.NewObject(fields...))
	}
	return shared[table]
}

var momentTerms = func() map[moment]*ast.Term {
	terms := make(map[moment]*ast.Term, len(moments))
	for _, m := range moments {
		terms[m] = ast.StringTerm(m.String())
	}
	return terms
}()

// terms are the rule's entries in the index: itself, and for an egressAuth rule
// another that governs whether the request matches or not.
func (r *rule) terms(shared effectTerms) []*ast.Term {
	entry := func(pattern string, effects *ast.Term) *ast.Term {
		fields := [][2]*ast.Term{
			{keyRule, ast.StringTerm(r.name)},
			{keyType, ast.InternedTerm(r.kind)},
			{ast.InternedTerm("pattern"), ast.StringTerm(pattern)},
			{ast.InternedTerm("effects"), effects},
		}
		if r.credential != "" {
			fields = append(fields, [2]*ast.Term{keyInject, ast.ObjectTerm(
				[2]*ast.Term{keyCredential, ast.StringTerm(r.credential)},
				[2]*ast.Term{keyRule, ast.StringTerm(r.name)},
			)})
		}
		return ast.NewTerm(ast.NewObject(fields...))
	}
	list := []*ast.Term{entry(r.linePattern(), shared.term(r.effect))}
	if r.kind == typeEgressAuth {
		list = append(list, entry("", shared.term(func(m moment) effect {
			if m.phase == PhaseDNS {
				return 0
			}
			return governs
		})))
	}
	return list
}

// lookupTerm is input.lookup: the keys of the index for this input.
func (p *Policy) lookupTerm(s subject) *ast.Term {
	keys := make([]*ast.Term, 0, 4)
	picking := p.selectors.picking(s.Sandbox)
	add := func(bySelector map[string]*ast.Term) {
		for _, selector := range picking {
			if key := bySelector[selector]; key != nil {
				keys = append(keys, key)
			}
		}
	}
	for e := range p.table.entries(s.host, s.addr) {
		if s.Phase == PhaseDNS {
			for _, port := range e.keys {
				add(port)
			}
			continue
		}
		add(e.keys[s.Destination.Port])
		add(e.keys[everyPort])
	}
	line := ast.InternedEmptyString
	if s.Request != nil {
		line = ast.StringTerm(s.Request.Method + " " + s.Request.Path)
	}
	return ast.NewTerm(ast.NewObject(
		[2]*ast.Term{keyKeys, ast.ArrayTerm(keys...)},
		[2]*ast.Term{keyMoment, momentTerms[moment{s.Phase, s.Protocol}]},
		[2]*ast.Term{keyLine, line},
	))
}
