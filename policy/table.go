package policy

import (
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
	ports []uint16
	keys  map[uint16]map[string]indexKey // of data.sallyport.index, by port and selector
}

// indexKey is a key, and an array of that key alone.
type indexKey struct{ term, alone *ast.Term }

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
		e.ports = append(e.ports, port)
		e.keys[port] = map[string]indexKey{}
	}
	if e.keys[port][selector].term == nil {
		key := ast.StringTerm(d.key() + ":" + portName(port) + " " + selector)
		e.keys[port][selector] = indexKey{key, ast.ArrayTerm(key)}
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
		e = &entry{keys: map[uint16]map[string]indexKey{}}
		m[k] = e
	}
	return e
}

// host adds the entries that name a host to list, the most exact first.
func (t *table) host(list []*entry, host string) []*entry {
	if e := t.exact[host]; e != nil {
		list = append(list, e)
	}
	return t.parents(list, host)
}

// parents adds the wildcard entries below which host lies.
func (t *table) parents(list []*entry, host string) []*entry {
	for {
		_, rest, found := strings.Cut(host, ".")
		if !found {
			return list
		}
		if e := t.wildcard[rest]; e != nil {
			list = append(list, e)
		}
		host = rest
	}
}

// within adds the entries whose prefix holds p, the longest first.
func (t *table) within(list []*entry, p netip.Prefix) []*entry {
	lengths := t.lengths4
	if p.Addr().Is6() {
		lengths = t.lengths6
	}
	for _, bits := range lengths {
		if bits > p.Bits() {
			continue
		}
		outer, _ := p.Addr().Prefix(bits)
		if e := t.prefix[outer]; e != nil {
			list = append(list, e)
		}
	}
	return list
}

// entries adds what names a host that readHost has read, the most exact first.
func (t *table) entries(list []*entry, host string, addr netip.Addr) []*entry {
	if addr.IsValid() {
		return t.within(list, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return t.host(list, host)
}

// around lists the rules whose destination takes in all of d.
func (t *table) around(d destination) []*rule {
	var list []*entry
	switch d.kind {
	case addressRange:
		list = t.within(nil, d.prefix)
	case wildcardHost:
		if e := t.wildcard[d.host]; e != nil {
			list = append(list, e)
		}
		list = t.parents(list, d.host)
	default:
		list = t.host(nil, d.host)
	}
	var rules []*rule
	for _, e := range list {
		rules = append(rules, e.rules...)
	}
	return rules
}

// all lists the entries.
func (t *table) all() []*entry {
	entries := slices.Collect(maps.Values(t.exact))
	entries = slices.AppendSeq(entries, maps.Values(t.wildcard))
	return slices.AppendSeq(entries, maps.Values(t.prefix))
}
