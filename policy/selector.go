package policy

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// picks reports whether a sandbox with this name ("" for any) and these tags is
// selected.
func (s Selector) picks(name string, tags map[string]string) bool {
	if len(s.Names) > 0 && !slices.Contains(s.Names, name) {
		return false
	}
	return tagged(s.Tags, tags)
}

func tagged(want, got map[string]string) bool {
	for tag, value := range want {
		if v, ok := got[tag]; !ok || v != value {
			return false
		}
	}
	return true
}

// meets reports whether one selector for certain picks a sandbox that the other
// was written for: one that has a name and the tags that it asks for, and no more.
func (s Selector) meets(t Selector) bool { return s.reaches(t) || t.reaches(s) }

func (s Selector) reaches(t Selector) bool {
	if len(t.Names) == 0 {
		return s.picks("", t.Tags)
	}
	return slices.ContainsFunc(t.Names, func(name string) bool { return s.picks(name, t.Tags) })
}

// selectors finds the keys of data.sallyport.selectors that pick a sandbox, by
// its name and tags rather than by trying them all.
type selectors struct {
	anyone bool // some rule is for every sandbox
	byName map[string][]selection
	byTag  map[[2]string][]selection // by the first tag it asks for
}

// selection is a name or none, tags or none, and the key that stands for them. A
// Selector with several names is several selections.
type selection struct {
	key  string
	name string
	tags map[string]string
}

func newSelectors(rules []rule) *selectors {
	all := &selectors{
		byName: map[string][]selection{},
		byTag:  map[[2]string][]selection{},
	}
	seen := map[string]bool{}
	for i := range rules {
		for _, s := range rules[i].sandboxes.selections() {
			s.key = s.text()
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
				all.anyone = true
			}
		}
	}
	return all
}

func (s Selector) selections() []selection {
	if len(s.Names) == 0 {
		return []selection{{tags: s.Tags}}
	}
	list := make([]selection, len(s.Names))
	for i, name := range s.Names {
		list[i] = selection{name: name, tags: s.Tags}
	}
	return list
}

// everyone is the key of the zero Selector.
const everyone = "*"

// text is unambiguous, since it quotes names and tags.
func (s selection) text() string {
	if s.name == "" && len(s.tags) == 0 {
		return everyone
	}
	var parts []string
	if s.name != "" {
		parts = append(parts, "name="+quoted(s.name))
	}
	for _, tag := range slices.Sorted(maps.Keys(s.tags)) {
		parts = append(parts, "tag "+quoted(tag)+"="+quoted(s.tags[tag]))
	}
	return strings.Join(parts, " ")
}

func quoted(s string) string {
	if token(s) {
		return s
	}
	return strconv.Quote(s)
}

// picking adds the keys that pick a sandbox, in an order that is always the same.
func (all *selectors) picking(keys []string, s Sandbox) []string {
	if all.anyone {
		keys = append(keys, everyone)
	}
	for _, by := range all.byName[s.Name] {
		if tagged(by.tags, s.Tags) {
			keys = append(keys, by.key)
		}
	}
	if len(all.byTag) == 0 {
		return keys
	}
	tagless := len(keys)
	for tag, value := range s.Tags {
		for _, by := range all.byTag[[2]string{tag, value}] {
			if tagged(by.tags, s.Tags) {
				keys = append(keys, by.key)
			}
		}
	}
	slices.Sort(keys[tagless:])
	return keys
}
