package rule

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	"sallyport/policy"
)

// table finds rules by destination in a number of steps that depends on the
// labels of a host and on the prefix lengths in use, not on the number of rules.
type Table struct {
	exact    map[string]*Entry
	wildcard map[string]*Entry // without "*."
	prefix   map[netip.Prefix]*Entry
	lengths4 []int // prefix lengths in use, longest first
	lengths6 []int
}

// entry holds the rules of one destination.
type Entry struct {
	Destination Destination
	Rules       []*Rule
	ports       []uint16
	Buckets     map[uint16]map[string]*Bucket // by port and selector
}

// bucket holds the rules of one destination, port and selection of sandboxes, in the
// order of the document.
type Bucket struct {
	Rules []*Rule
}

// everyPort is the port of a bucket for rules that speak about all of them.
const EveryPort = 0

func NewTable(rules []Rule) *Table {
	t := &Table{
		exact:    map[string]*Entry{},
		wildcard: map[string]*Entry{},
		prefix:   map[netip.Prefix]*Entry{},
	}
	for i := range rules {
		r := &rules[i]
		r.path = sync.OnceValue(r.pathPattern)
		e := t.entry(r.Destination)
		e.Rules = append(e.Rules, r)
		for _, port := range r.keyPorts() {
			for _, s := range Selections(r.Sandboxes) {
				e.Add(r, port, s.Text())
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

func (t *Table) entry(d Destination) *Entry {
	switch d.Kind {
	case WildcardHost:
		return made(t.wildcard, d.Host, d)
	case AddressRange:
		if d.prefix.Addr().Is4() {
			t.lengths4 = append(t.lengths4, d.prefix.Bits())
		} else {
			t.lengths6 = append(t.lengths6, d.prefix.Bits())
		}
		return made(t.prefix, d.prefix, d)
	default:
		return made(t.exact, d.Host, d)
	}
}

func (e *Entry) Add(r *Rule, port uint16, selector string) {
	if e.Buckets[port] == nil {
		e.ports = append(e.ports, port)
		e.Buckets[port] = map[string]*Bucket{}
	}
	b := e.Buckets[port][selector]
	if b == nil {
		b = &Bucket{}
		e.Buckets[port][selector] = b
	}
	if !slices.Contains(b.Rules, r) {
		b.Rules = append(b.Rules, r)
	}
}

func made[K comparable](m map[K]*Entry, k K, d Destination) *Entry {
	e := m[k]
	if e == nil {
		e = &Entry{Destination: d, Buckets: map[uint16]map[string]*Bucket{}}
		m[k] = e
	}
	return e
}

// host adds the entries that name a host to list, the most exact first.
func (t *Table) host(list []*Entry, host string) []*Entry {
	if e := t.exact[host]; e != nil {
		list = append(list, e)
	}
	return t.parents(list, host)
}

// parents adds the wildcard entries below which host lies.
func (t *Table) parents(list []*Entry, host string) []*Entry {
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
func (t *Table) within(list []*Entry, p netip.Prefix) []*Entry {
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

// entries adds what names a host that hostname.Parse has read, the most exact first.
func (t *Table) Entries(list []*Entry, host string, addr netip.Addr) []*Entry {
	if addr.IsValid() {
		return t.within(list, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return t.host(list, host)
}

// buckets adds the buckets that hold the rules for an input, the most exact
// destination first.
func (t *Table) Buckets(list []*Bucket, s ParsedInput, all *Selectors) []*Bucket {
	var near [8]*Entry
	var names [8]string
	picking := all.Picking(names[:0], s.Sandbox)
	for _, e := range t.Entries(near[:0], s.Host, s.Addr) {
		ports := [...]uint16{s.Destination.Port, EveryPort}
		asked := ports[:]
		if s.Phase == policy.PhaseDNS {
			asked = e.ports
		}
		for _, port := range asked {
			on := e.Buckets[port]
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
func (t *Table) Around(d Destination) []*Rule {
	var rules []*Rule
	for _, e := range t.Holding(d) {
		rules = append(rules, e.Rules...)
	}
	return rules
}

// authorising lists the entry's egressAuth rules, which come after the others.
func (e *Entry) Authorising() []*Rule {
	first, _ := slices.BinarySearchFunc(e.Rules, true, func(r *Rule, _ bool) int {
		if r.Type == policy.TypeEgressAuth {
			return 0
		}
		return -1
	})
	return e.Rules[first:]
}

// holding lists the entries whose destination takes in all of d, the most exact
// first.
func (t *Table) Holding(d Destination) []*Entry {
	var list []*Entry
	switch d.Kind {
	case AddressRange:
		list = t.within(nil, d.prefix)
	case WildcardHost:
		if e := t.wildcard[d.Host]; e != nil {
			list = append(list, e)
		}
		list = t.parents(list, d.Host)
	default:
		list = t.host(nil, d.Host)
	}
	return list
}
