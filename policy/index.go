package policy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// effect is what a rule does to an input: see decision.rego. 0 is nothing.
type effect int

const (
	denies effect = iota + 1
	approves
	authorises
	governs
	allows
	reads
	tunnels

	effectCount = iota + 1
)

// effectKeys are their names in input.rules.
var effectKeys = [effectCount]*ast.Term{
	denies: ast.InternedTerm("deny"), approves: ast.InternedTerm("approve"), authorises: ast.InternedTerm("authorise"),
	governs: ast.InternedTerm("govern"), allows: ast.InternedTerm("allow"), reads: ast.InternedTerm("read"), tunnels: ast.InternedTerm("tunnel"),
}

// moment is a phase and what is carried.
type moment struct {
	phase    Phase
	protocol Protocol
}

var moments = [...]moment{
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

// term is the rule and all that it does, in each moment, to what its pattern
// matches and to what it does not: an entry of data.sallyport.index, which
// testing.rego makes input.rules of.
func (r *rule) term() *ast.Term {
	fields := [][2]*ast.Term{
		{ast.InternedTerm("pattern"), ast.StringTerm(r.linePattern())},
		{ast.InternedTerm("effects"), ast.ObjectTerm(
			[2]*ast.Term{ast.InternedTerm(true), momentTable(r.effect)},
			[2]*ast.Term{ast.InternedTerm(false), momentTable(r.unmatched)},
		)},
	}
	r.lazy.term().Value.(ast.Object).Foreach(func(key, value *ast.Term) { fields = append(fields, [2]*ast.Term{key, value}) })
	return ast.ObjectTerm(fields...)
}

func momentTable(effect func(moment) effect) *ast.Term {
	var fields [][2]*ast.Term
	for _, m := range moments {
		if e := effect(m); e != 0 {
			fields = append(fields, [2]*ast.Term{ast.StringTerm(m.String()), effectKeys[e]})
		}
	}
	return ast.ObjectTerm(fields...)
}

// data builds the documents that decision.rego reads, beside the team's own:
//
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
	root.Insert(ast.StringTerm("sallyport"), ast.ObjectTerm([2]*ast.Term{ast.StringTerm("contributed"), team.lacks()}))
	return root, nil
}
