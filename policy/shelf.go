package policy

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/open-policy-agent/opa/v1/ast"
)

// shelf holds the rules of one destination, port and selection of sandboxes, as
// decision.rego takes them.
type shelf struct {
	key     string // DESTINATION:PORT SELECTOR
	rules   []*rule
	judging []*rule // those that have to see a request's body
	// name and rest are the ranks of the first rule, in phase dns and later.
	name, rest int
	common     *common
	terms      atomic.Pointer[terms] // nil until somebody asks
}

// terms is what a shelf says in each of moments. It is made when the shelf is
// first asked: of many thousand rules, most are for what nobody does today.
type terms struct {
	// lists has input.lookup.rules where this is the only shelf. It is nil where
	// none of the rules does anything.
	lists [len(moments)]*ast.Array
	alone [len(moments)]answers // of the same, where lists has something
}

// common is what the shelves of a table share while they make their terms.
type common struct {
	mu      sync.Mutex
	effects effectTerms // guarded by mu
}

// at is the shelf's terms.
func (s *shelf) at() *terms {
	if t := s.terms.Load(); t != nil {
		return t
	}
	s.common.mu.Lock()
	defer s.common.mu.Unlock()
	t := s.terms.Load()
	if t == nil {
		t = s.fill()
		s.terms.Store(t)
	}
	return t
}

// stock arranges the shelves. Their rules are ranked as shelves finds them: by
// destination, port and selection, and then in an order that is always the same.
func (t *table) stock(all *selectors) {
	shared := &common{effects: effectTerms{}}
	for _, e := range t.all() {
		first := e.destination.vagueness() * maxRank
		rank := first
		list := e.order(all)
		for _, p := range list {
			p.shelf.rest = rank
			rank += len(p.shelf.rules)
		}
		// A name has no port, so that those of the rules are as they are written.
		slices.SortStableFunc(list, func(a, b place) int {
			return cmp.Compare(slices.Index(e.ports, a.port), slices.Index(e.ports, b.port))
		})
		rank = first
		for _, p := range list {
			p.shelf.name = rank
			rank += len(p.shelf.rules)
			p.shelf.common = shared
		}
	}
}

// maxRank is more than there can be rules on the shelves of a destination.
const maxRank = 1 << 32

// vagueness is 0 for a host, and less for the more exact of two that hold the
// same host or address.
func (d destination) vagueness() int {
	switch d.kind {
	case wildcardHost:
		return 128 - strings.Count(d.host, ".") // a name has at most 127 labels
	case addressRange:
		return 128 - d.prefix.Bits()
	}
	return 0
}

// place is where a shelf stands in an entry.
type place struct {
	port     uint16
	selector int
	shelf    *shelf
}

// order lists the shelves: a port before every port, and then as picking does.
func (e *entry) order(all *selectors) []place {
	var list []place
	for port, shelves := range e.shelves {
		for selector, s := range shelves {
			s.arrange()
			list = append(list, place{port, all.place[selector], s})
		}
	}
	slices.SortFunc(list, func(a, b place) int {
		// everyPort is the lowest number, and comes last.
		return cmp.Or(cmp.Compare(a.port-1, b.port-1), cmp.Compare(a.selector, b.selector), strings.Compare(a.shelf.key, b.shelf.key))
	})
	return list
}

// arrange orders the rules by what they do and are called.
func (s *shelf) arrange() {
	defer func() {
		for _, r := range s.rules {
			if r.body != nil {
				s.judging = append(s.judging, r)
			}
		}
	}()
	if len(s.rules) < 2 {
		return
	}
	terms := make(map[*rule]*ast.Term, len(s.rules))
	for _, r := range s.rules {
		terms[r] = r.term()
	}
	slices.SortFunc(s.rules, func(a, b *rule) int { return terms[a].Value.Compare(terms[b].Value) })
}

// fill makes the terms. Whatever is the same in two moments is made once. The
// caller holds common.mu, which guards the rules' lone too.
func (s *shelf) fill() *terms {
	var items [len(moments)][]*ast.Term
	var last [len(moments)]*rule // of those in items
	for n, r := range s.rules {
		made := map[item]*ast.Term{}
		pattern := ast.InternedEmptyString
		if r.conditional() {
			pattern = ast.StringTerm(r.linePattern())
		}
		for i, m := range moments {
			it := item{
				effects: s.common.effects.term(r.effect(m), r.unmatched(m)),
				rank:    s.rest + n,
				injects: r.credential != "" && m.phase == PhaseRequest,
			}
			if m.phase == PhaseDNS {
				it.rank = s.name + n
			}
			if r.joined && r.effect(m) == authorises {
				it.effects = s.common.effects.term(joins, r.unmatched(m))
			}
			if it.effects == nil {
				continue
			}
			if made[it] == nil {
				made[it] = ast.ArrayTerm(pattern, it.effects, r.by(it.rank, it.injects))
			}
			items[i] = append(items[i], made[it])
			last[i] = r
		}
	}
	t := &terms{}
	for i, list := range items {
		if list == nil {
			continue
		}
		if like := slices.IndexFunc(items[:i], func(l []*ast.Term) bool { return slices.Equal(l, list) }); like >= 0 {
			t.lists[i], t.alone[i] = t.lists[like], t.alone[like]
			continue
		}
		t.lists[i], t.alone[i] = ast.NewArray(list...), unsettled
		if len(list) == 1 {
			t.alone[i] = last[i].answers(moments[i], list[0].Value.(*ast.Array))
		}
	}
	return t
}

// item is an element of input.lookup.rules for one rule and pattern.
type item struct {
	effects *ast.Term
	rank    int
	injects bool
}

// by is what decision.rego says of a rule that decides.
func (r *rule) by(rank int, injects bool) *ast.Term {
	set := ast.InternedEmptySet
	if injects {
		if r.alone.set == nil {
			r.alone = lone{ast.NewSet(r.injectTerm()), []Injection{{Credential: r.credential, Inject: r.inject}}}
		}
		set = ast.NewTerm(r.alone.set)
	}
	return ast.ArrayTerm(ast.InternedTerm(rank), ast.InternedTerm(r.kind), ast.StringTerm(r.name), set)
}

// answers are input.lookup.settled and input.lookup.depends.
type answers struct{ settled, depends *ast.Array }

var (
	unsettled = answers{emptyArray, emptyArray}
	silence   = answers{ast.NewArray(nobody), emptyArray} // where no rule does anything
)

// answers says what comes of the rule at a moment where it is alone, which item,
// an element of input.lookup.rules, says too.
func (r *rule) answers(m moment, item *ast.Array) answers {
	pattern, by := item.Elem(0), item.Elem(2)
	matched, unmatched := answer(r.effect(m), by), answer(r.unmatched(m), by)
	switch {
	case r.joined || matched == nil || r.conditional() && unmatched == nil:
		return unsettled
	case !r.conditional():
		return answers{ast.NewArray(matched), emptyArray}
	}
	either := ast.ObjectTerm([2]*ast.Term{ast.InternedTerm(true), matched}, [2]*ast.Term{ast.InternedTerm(false), unmatched})
	return answers{emptyArray, ast.NewArray(pattern, either)}
}

// answer is decision.rego's document where an effect alone says it all, or nil.
func answer(e effect, by *ast.Term) *ast.Term {
	if e == 0 {
		return nobody
	}
	outcome := outcomes.Get(e.term())
	if outcome == nil {
		return nil
	}
	return ast.ArrayTerm(outcome, by)
}

// alone is what one shelf says where no other says anything.
func alone(shelves []*shelf, at int) answers {
	found := silence
	speaking := 0
	for _, sh := range shelves {
		if t := sh.at(); t.lists[at] != nil {
			speaking++
			found = t.alone[at]
		}
	}
	if speaking > 1 {
		return unsettled
	}
	return found
}

// outcomes and nobody are decision.rego's, read from there.
var (
	outcomes = constant("outcomes").Value.(ast.Object)
	nobody   = constant("nobody")
)

// constant is the value of a rule of decision.rego that has no body.
func constant(rule ast.Var) *ast.Term {
	source, _ := sources.ReadFile("decision.rego") // which is part of the program
	for _, r := range ast.MustParseModule(string(source)).Rules {
		if r.Head.Name == rule {
			return r.Head.Value
		}
	}
	panic("decision.rego has no " + string(rule))
}

// lone is what a rule injects that authorises alone, in Rego's form, by its very
// place, and in the decision's, which nobody changes.
type lone struct {
	set     ast.Set
	decided []Injection
}

// effectTerms shares the few pairs of effects that there are among all rules.
type effectTerms map[[2]effect]*ast.Term

// term is {true: matched, false: unmatched} without what is none, or nil.
func (shared effectTerms) term(matched, unmatched effect) *ast.Term {
	pair := [2]effect{matched, unmatched}
	if pair == [2]effect{} {
		return nil
	}
	if shared[pair] == nil {
		var fields [][2]*ast.Term
		if matched != 0 {
			fields = append(fields, [2]*ast.Term{ast.InternedTerm(true), matched.term()})
		}
		if unmatched != 0 {
			fields = append(fields, [2]*ast.Term{ast.InternedTerm(false), unmatched.term()})
		}
		shared[pair] = ast.ObjectTerm(fields...)
	}
	return shared[pair]
}
