package rule

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"sallyport/policy"
)

// Table finds rules in a number of steps that depends on the labels of a host, on the prefix
// lengths in use and on the selectors of a sandbox's tags, not on the number of rules.
type Table struct {
	entries  map[Destination]*Entry // without a port
	lengths4 []int                  // prefix lengths in use, longest first
	lengths6 []int
	selectors
}

// Entry holds the rules of one destination, in the order of the document.
type Entry struct {
	Destination Destination
	Rules       []*Rule
	ports       []uint16
	buckets     map[bucket][]*Rule
}

// bucket is what the rules of one destination are found by. Port everyPort is of rules about
// all ports.
type bucket struct {
	port     uint16
	selector string
}

const everyPort = 0

// NewTable returns a table of rules, which it readies to be matched.
func NewTable(rules []Rule) *Table {
	t := &Table{entries: map[Destination]*Entry{}, selectors: newSelectors(rules)}
	for i := range rules {
		r := &rules[i]
		r.path = sync.OnceValue(r.pathPattern)
		t.add(r)
	}
	for _, lengths := range []*[]int{&t.lengths4, &t.lengths6} {
		slices.Sort(*lengths)
		*lengths = slices.Compact(*lengths)
		slices.Reverse(*lengths)
	}
	return t
}

func (t *Table) add(r *Rule) {
	d := r.Destination
	d.Port = 0
	e := t.entries[d]
	if e == nil {
		e = &Entry{Destination: d, buckets: map[bucket][]*Rule{}}
		t.entries[d] = e
		if d.Kind == AddressRange && d.prefix.Addr().Is4() {
			t.lengths4 = append(t.lengths4, d.prefix.Bits())
		} else if d.Kind == AddressRange {
			t.lengths6 = append(t.lengths6, d.prefix.Bits())
		}
	}
	e.Rules = append(e.Rules, r)
	ports := r.Ports
	if ports == nil {
		ports = []uint16{everyPort}
	}
	for _, port := range ports {
		if !slices.Contains(e.ports, port) {
			e.ports = append(e.ports, port)
		}
		for _, s := range selections(r.Sandboxes) {
			b := bucket{port, s.key}
			if !slices.Contains(e.buckets[b], r) {
				e.buckets[b] = append(e.buckets[b], r)
			}
		}
	}
}

// Holding gives the entries whose destination takes in all of d, the most exact first.
func (t *Table) Holding(d Destination) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		if d.Kind == AddressRange {
			lengths := t.lengths4
			if d.prefix.Addr().Is6() {
				lengths = t.lengths6
			}
			for _, bits := range lengths {
				if bits > d.prefix.Bits() {
					continue
				}
				outer, _ := d.prefix.Addr().Prefix(bits)
				if e := t.entries[Destination{Kind: AddressRange, prefix: outer}]; e != nil && !yield(e) {
					return
				}
			}
			return
		}
		d.Port = 0
		for found := true; found; _, d.Host, found = strings.Cut(d.Host, ".") {
			if e := t.entries[d]; e != nil && !yield(e) {
				return
			}
			d.Kind = WildcardHost
		}
	}
}

// Around gives the rules whose destination takes in all of d, those of the most exact one first.
func (t *Table) Around(d Destination) iter.Seq[*Rule] {
	return func(yield func(*Rule) bool) {
		for e := range t.Holding(d) {
			for _, r := range e.Rules {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// For gives the rules about an input's destination, port and sandbox, those of the most exact
// destination first.
func (t *Table) For(s ParsedInput) iter.Seq[*Rule] {
	return func(yield func(*Rule) bool) {
		var keys [8]string
		picking := t.picking(keys[:0], s.Sandbox)
		ports := [...]uint16{s.Destination.Port, everyPort}
		for e := range t.Holding(s.Target()) {
			asked := ports[:]
			if s.Phase == policy.PhaseDNS {
				asked = e.ports
			}
			for _, port := range asked {
				for _, selector := range picking {
					for _, r := range e.buckets[bucket{port, selector}] {
						if !yield(r) {
							return
						}
					}
				}
			}
		}
	}
}

// Authorising lists the entry's egressAuth rules, which come after the others.
func (e *Entry) Authorising() []*Rule {
	first := slices.IndexFunc(e.Rules, func(r *Rule) bool { return r.Type == policy.TypeEgressAuth })
	if first < 0 {
		return nil
	}
	return e.Rules[first:]
}

// selectors find the selections that pick a sandbox, by its name and tags.
type selectors struct {
	everyone bool // some rule is for every sandbox
	byName   map[string][]selection
	byTag    map[[2]string][]selection // by the first tag it asks for
}

// selection is a name or none, tags or none, and the key that stands for them. A
// Selector with several names is several selections.
type selection struct {
	key  string
	name string
	tags map[string]string
}

func selections(s policy.Selector) []selection {
	if len(s.Names) == 0 {
		return []selection{{s.String(), "", s.Tags}}
	}
	list := make([]selection, len(s.Names))
	for i, name := range s.Names {
		list[i] = selection{policy.Selector{Names: []string{name}, Tags: s.Tags}.String(), name, s.Tags}
	}
	return list
}

func newSelectors(rules []Rule) selectors {
	all := selectors{byName: map[string][]selection{}, byTag: map[[2]string][]selection{}}
	seen := map[string]bool{}
	for i := range rules {
		for _, s := range selections(rules[i].Sandboxes) {
			if seen[s.key] {
				continue
			}
			seen[s.key] = true
			switch {
			case s.name != "":
				all.byName[s.name] = append(all.byName[s.name], s)
			case len(s.tags) > 0:
				tag := slices.Min(slices.Collect(maps.Keys(s.tags)))
				at := [2]string{tag, s.tags[tag]}
				all.byTag[at] = append(all.byTag[at], s)
			default:
				all.everyone = true
			}
		}
	}
	return all
}

// picking adds the keys that pick a sandbox, in an order that is always the same.
func (all *selectors) picking(keys []string, s policy.Sandbox) []string {
	if all.everyone {
		keys = append(keys, "") // of the zero Selector
	}
	add := func(list []selection) {
		for _, by := range list {
			if policy.Tagged(by.tags, s.Tags) {
				keys = append(keys, by.key)
			}
		}
	}
	add(all.byName[s.Name])
	tagless := len(keys)
	if len(all.byTag) > 0 {
		for tag, value := range s.Tags {
			add(all.byTag[[2]string{tag, value}])
		}
	}
	slices.Sort(keys[tagless:])
	return keys
}

// Target is the destination of an input, without its port.
func (s ParsedInput) Target() Destination {
	if s.Addr.IsValid() {
		return Destination{Kind: AddressRange, prefix: netip.PrefixFrom(s.Addr, s.Addr.BitLen())}
	}
	return Destination{Kind: ExactHost, Host: s.Host}
}
