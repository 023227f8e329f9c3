package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
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
	destination destination
	rules       []*rule
	ports       []uint16
	buckets     map[uint16]map[string]*bucket // by port and selector
}

// bucket holds the rules of one destination, port and selection of sandboxes, in the
// order of the document.
type bucket struct {
	key   string // DESTINATION:PORT SELECTOR
	rules []*rule
}

// everyPort is the port of a bucket for rules that speak about all of them.
const everyPort = 0

func newTable(rules []rule) *table {
	t := &table{
		exact:    map[string]*entry{},
		wildcard: map[string]*entry{},
		prefix:   map[netip.Prefix]*entry{},
	}
	for i := range rules {
		r := &rules[i]
		r.lazy = newLazy(r)
		e := t.entry(r.destination)
		e.rules = append(e.rules, r)
		for _, port := range r.keyPorts() {
			for _, s := range r.sandboxes.selections() {
				e.add(r, port, s.text())
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
		return made(t.wildcard, d.host, d)
	case addressRange:
		if d.prefix.Addr().Is4() {
			t.lengths4 = append(t.lengths4, d.prefix.Bits())
		} else {
			t.lengths6 = append(t.lengths6, d.prefix.Bits())
		}
		return made(t.prefix, d.prefix, d)
	default:
		return made(t.exact, d.host, d)
	}
}

func (e *entry) add(r *rule, port uint16, selector string) {
	if e.buckets[port] == nil {
		e.ports = append(e.ports, port)
		e.buckets[port] = map[string]*bucket{}
	}
	b := e.buckets[port][selector]
	if b == nil {
		b = &bucket{key: e.destination.key() + ":" + portName(port) + " " + selector}
		e.buckets[port][selector] = b
	}
	if !slices.Contains(b.rules, r) {
		b.rules = append(b.rules, r)
	}
}

func portName(port uint16) string {
	if port == everyPort {
		return "*"
	}
	return strconv.Itoa(int(port))
}

func made[K comparable](m map[K]*entry, k K, d destination) *entry {
	e := m[k]
	if e == nil {
		e = &entry{destination: d, buckets: map[uint16]map[string]*bucket{}}
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

// buckets adds the buckets that hold the rules for an input, the most exact
// destination first.
func (t *table) buckets(list []*bucket, s subject, all *selectors) []*bucket {
	var near [8]*entry
	var names [8]string
	picking := all.picking(names[:0], s.Sandbox)
	for _, e := range t.entries(near[:0], s.host, s.addr) {
		ports := [...]uint16{s.Destination.Port, everyPort}
		asked := ports[:]
		if s.Phase == PhaseDNS {
			asked = e.ports
		}
		for _, port := range asked {
			on := e.buckets[port]
			if on == nil {
				continue
			}
			for _, selector := range picking {
				if b := on[selector]; b != nil {
					list = append(list, b)
				}
			}
		}
	}
	return list
}

// around lists the rules whose destination takes in all of d.
func (t *table) around(d destination) []*rule {
	var rules []*rule
	for _, e := range t.holding(d) {
		rules = append(rules, e.rules...)
	}
	return rules
}

// authorising lists the entry's egressAuth rules, which come after the others.
func (e *entry) authorising() []*rule {
	first, _ := slices.BinarySearchFunc(e.rules, true, func(r *rule, _ bool) int {
		if r.kind == typeEgressAuth {
			return 0
		}
		return -1
	})
	return e.rules[first:]
}

// holding lists the entries whose destination takes in all of d, the most exact
// first.
func (t *table) holding(d destination) []*entry {
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
	return list
}

// all lists the entries.
func (t *table) all() []*entry {
	entries := slices.Collect(maps.Values(t.exact))
	entries = slices.AppendSeq(entries, maps.Values(t.wildcard))
	return slices.AppendSeq(entries, maps.Values(t.prefix))
}
