package rule

import (
	"maps"
	"slices"

	"sallyport/policy"
)

// selectors finds the keys of data.sallyport.selectors that pick a sandbox, by
// its name and tags rather than by trying them all.
type Selectors struct {
	Anyone bool // some rule is for every sandbox
	ByName map[string][]Selection
	ByTag  map[[2]string][]Selection // by the first tag it asks for
}

// selection is a name or none, tags or none, and the key that stands for them. A
// Selector with several names is several selections.
type Selection struct {
	Key  string
	Name string
	Tags map[string]string
}

func NewSelectors(rules []Rule) *Selectors {
	all := &Selectors{
		ByName: map[string][]Selection{},
		ByTag:  map[[2]string][]Selection{},
	}
	seen := map[string]bool{}
	for i := range rules {
		for _, s := range Selections(rules[i].Sandboxes) {
			s.Key = s.Text()
			if seen[s.Key] {
				continue
			}
			seen[s.Key] = true
			switch {
			case s.Name != "":
				all.ByName[s.Name] = append(all.ByName[s.Name], s)
			case len(s.Tags) > 0:
				tag := slices.Min(slices.Collect(maps.Keys(s.Tags)))
				at := [2]string{tag, s.Tags[tag]}
				all.ByTag[at] = append(all.ByTag[at], s)
			default:
				all.Anyone = true
			}
		}
	}
	return all
}

func Selections(s policy.Selector) []Selection {
	if len(s.Names) == 0 {
		return []Selection{{Tags: s.Tags}}
	}
	list := make([]Selection, len(s.Names))
	for i, name := range s.Names {
		list[i] = Selection{Name: name, Tags: s.Tags}
	}
	return list
}

// everyone is the key of the zero Selector.
const Everyone = "*"

// text is unambiguous, since it quotes names and tags.
func (s Selection) Text() string {
	if s.Name == "" && len(s.Tags) == 0 {
		return Everyone
	}
	if s.Name == "" {
		return policy.Selector{Tags: s.Tags}.String()
	}
	return policy.Selector{Names: []string{s.Name}, Tags: s.Tags}.String()
}

// picking adds the keys that pick a sandbox, in an order that is always the same.
func (all *Selectors) Picking(keys []string, s policy.Sandbox) []string {
	if all.Anyone {
		keys = append(keys, Everyone)
	}
	for _, by := range all.ByName[s.Name] {
		if policy.Tagged(by.Tags, s.Tags) {
			keys = append(keys, by.Key)
		}
	}
	if len(all.ByTag) == 0 {
		return keys
	}
	tagless := len(keys)
	for tag, value := range s.Tags {
		for _, by := range all.ByTag[[2]string{tag, value}] {
			if policy.Tagged(by.Tags, s.Tags) {
				keys = append(keys, by.Key)
			}
		}
	}
	slices.Sort(keys[tagless:])
	return keys
}
