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
	if e := r.matched(m); e != 0 {
		return e
	}
	return r.unmatched(m)
}

// unmatched is what the rule does whether its pattern matches or not, or 0.
func (r *rule) unmatched(m moment) effect {
	if r.kind == typeEgressAuth && m.phase != PhaseDNS {
		return governs
	}
	return 0
}

func (r *rule) matched(m moment) effect {
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
//	data.sallyport.contributed[SET] = what no package of the team defines
func (p *Policy) data(team *team) (ast.Object, error) {
	value, err := ast.InterfaceToValue(team.data)
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
			term := r.term(shared)
			for _, port := range r.keyPorts() {
				for _, s := range r.sandboxes.selections() {
					key := e.keys[port][s.text()].term
					lists[key] = append(lists[key], term)
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
		[2]*ast.Term{ast.StringTerm("contributed"), team.lacks()},
	)))
	return root, nil
}

// effectTerms shares the few effect tables that there are among all rules.
type effectTerms map[[2][6]effect]*ast.Term

// term is what a rule does at each moment to what its pattern matches, and to
// what it does not.
func (shared effectTerms) term(matched, unmatched func(moment) effect) *ast.Term {
	var table [2][6]effect
	for i, m := range moments {
		table[0][i], table[1][i] = matched(m), unmatched(m)
	}
	if shared[table] == nil {
		shared[table] = ast.ObjectTerm(
			[2]*ast.Term{ast.InternedTerm(true), momentTable(table[0])},
			[2]*ast.Term{ast.InternedTerm(false), momentTable(table[1])},
		)
	}
	return shared[table]
}

func momentTable(effects [6]effect) *ast.Term {
	var fields [][2]*ast.Term
	for i, m := range moments {
		if effects[i] != 0 {
			fields = append(fields, [2]*ast.Term{momentTerms[m], ast.InternedTerm(int(effects[i]))})
		}
	}
	return ast.ObjectTerm(fields...)
}

var momentTerms = func() map[moment]*ast.Term {
	terms := make(map[moment]*ast.Term, len(moments))
	for _, m := range moments {
		terms[m] = ast.StringTerm(m.String())
	}
	return terms
}()

// term is the rule's entry in the index.
func (r *rule) term(shared effectTerms) *ast.Term {
	fields := [][2]*ast.Term{
		{keyRule, ast.StringTerm(r.name)},
		{keyType, ast.InternedTerm(r.kind)},
		{ast.InternedTerm("pattern"), ast.StringTerm(r.linePattern())},
		{ast.InternedTerm("effects"), shared.term(r.effect, r.unmatched)},
	}
	if r.credential != "" {
		fields = append(fields, [2]*ast.Term{keyInject, ast.ObjectTerm(
			[2]*ast.Term{keyCredential, ast.StringTerm(r.credential)},
			[2]*ast.Term{keyRule, ast.StringTerm(r.name)},
		)})
	}
	return ast.ObjectTerm(fields...)
}

// lookupTerm is input.lookup: the keys of the index for this input.
func (p *Policy) lookupTerm(s subject) *ast.Term {
	line := ast.InternedEmptyString
	if s.Request != nil {
		line = ast.StringTerm(s.Request.Method + " " + s.Request.Path)
	}
	return ast.ObjectTerm(
		[2]*ast.Term{keyKeys, p.keysTerm(s)},
		[2]*ast.Term{keyMoment, momentTerms[moment{s.Phase, s.Protocol}]},
		[2]*ast.Term{keyLine, line},
	)
}

func (p *Policy) keysTerm(s subject) *ast.Term {
	var near [8]*entry
	var names [8]string
	var found [8]indexKey
	picking, keys := p.selectors.picking(names[:0], s.Sandbox), found[:0]
	for _, e := range p.table.entries(near[:0], s.host, s.addr) {
		ports := [...]uint16{s.Destination.Port, everyPort}
		asked := ports[:]
		if s.Phase == PhaseDNS {
			asked = e.ports
		}
		for _, port := range asked {
			for _, selector := range picking {
				if key, ok := e.keys[port][selector]; ok {
					keys = append(keys, key)
				}
			}
		}
	}
	switch len(keys) {
	case 0:
		return ast.InternedEmptyArray
	case 1:
		return keys[0].alone
	}
	terms := make([]*ast.Term, len(keys))
	for i, key := range keys {
		terms[i] = key.term
	}
	return ast.ArrayTerm(terms...)
}
