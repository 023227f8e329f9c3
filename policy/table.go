package policy

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// table finds rules by destination in a number of steps that depends on the
// labels of a host and on the prefix lengths in use, not on the number of rules.
type table struct {
	exact    map[string]*entry
	wildcard map[string]*entry // without "*."
	prefix   map[netip.Prefix]*entry
	lengths4 []int // prefix lengths in use, longest first
	lengths6 []int
}

// entry holds the rules of one destination.
type entry struct {
	rules []*rule
	keys  map[uint16]map[string]*ast.Term // of data.sallyport.index, by port and selector
}

// everyPort is the port of a key for rules that speak about all of them.
const everyPort = 0

func newTable(rules []rule) *table {
	t := &table{
		exact:    map[string]*entry{},
		wildcard: map[string]*entry{},
		prefix:   map[netip.Prefix]*entry{},
	}
	for i := range rules {
		r := &rules[i]
		e := t.entry(r.destination)
		e.rules = append(e.rules, r)
		for _, port := range r.keyPorts() {
			for _, s := range r.sandboxes.selections() {
				e.add(port, s.text(), r.destination)
			}
		}
	}
	for _, lengths := range []*[]int{&t.lengths4, &t.lengths6} {
		slices.Sort(*lengths)
		*lengths = slices.Compact(*lengths)
		slices.Reverse(*lengths)
	}
	return t
}

func (t *table) entry(d destination) *entry {
	switch d.kind {
	case wildcardHost:
		return made(t.wildcard, d.host)
	case addressRange:
		if d.prefix.Addr().Is4() {
			t.lengths4 = append(t.lengths4, d.prefix.Bits())
		} else {
			t.lengths6 = append(t.lengths6, d.prefix.Bits())
		}
		return made(t.prefix, d.prefix)
	default:
		return made(t.exact, d.host)
	}
}

func (e *entry) add(port uint16, selector string, d destination) {
	if e.keys[port] == nil {
		e.keys[port] = map[string]*ast.Term{}
	}
	if e.keys[port][selector] == nil {
		e.keys[port][selector] = ast.StringTerm(d.key() + ":" + portName(port) + " " + selector)
	}
}

func portName(port uint16) string {
	if port == everyPort {
		return "*"
	}
	return strconv.Itoa(int(port))
}

func made[K comparable](m map[K]*entry, k K) *entry {
	e := m[k]
	if e == nil {
		e = &entry{keys: map[uint16]map[string]*ast.Term{}}
		m[k] = e
	}
	return e
}

// host yields the entries that name a host, the most exact first.
func (t *table) host(host string) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		if e := t.exact[host]; e != nil && !yield(e) {
			return
		}
		t.parents(host)(yield)
	}
}

// parents yields the wildcard entries below which host lies.
func (t *table) parents(host string) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for {
			_, rest, found := strings.Cut(host, ".")
			if !found {
				return
			}
			if e := t.wildcard[rest]; e != nil && !yield(e) {
				return
			}
			host = rest
		}
	}
}

// within yields the entries whose prefix holds p, the longest first.
func (t *table) within(p netip.Prefix) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		lengths := t.lengths4
		if p.Addr().Is6() {
			lengths = t.lengths6
		}
		for _, bits := range lengths {
			if bits > p.Bits() {
				continue
			}
			outer, _ := p.Addr().Prefix(bits)
			if e := t.prefix[outer]; e != nil && !yield(e) {
				return
			}
		}
	}
}

// entries yields what names a host that readHost has read, the most exact first.
func (t *table) entries(host string, addr netip.Addr) iter.Seq[*entry] {
	if addr.IsValid() {
		return t.within(netip.PrefixFrom(addr, addr.BitLen()))
	}
	return t.host(host)
}

// around lists the rules whose destination takes in all of d.
func (t *table) around(d destination) []*rule {
	var rules []*rule
	add := func(e *entry) bool { rules = append(rules, e.rules...); return true }
	switch d.kind {
	case addressRange:
		t.within(d.prefix)(add)
	case wildcardHost:
		if e := t.wildcard[d.host]; e != nil {
			add(e)
		}
		t.parents(d.host)(add)
	default:
		t.host(d.host)(add)
	}
	return rules
}

// all lists the entries.
func (t *table) all() []*entry {
	entries := slices.Collect(maps.Values(t.exact))
	entries = slices.AppendSeq(entries, maps.Values(t.wildcard))
	return slices.AppendSeq(entries, maps.Values(t.prefix))
}
