package sandbox

import "maps"

// Lineage says what a fork was made of.
type Lineage struct {
	Root     string `json:"root"`               // ID of the sandbox that all began with
	Parent   string `json:"parent"`             // ID of the sandbox that it was made of
	Name     string `json:"name"`               // of that one, then
	Snapshot string `json:"snapshot,omitempty"` // of that one's, if it was made of one
}

// Tags that a sandbox has because of what it is, besides its Spec's: policies
// select by them, and every event about the sandbox has them.
const (
	ownTags = "sallyport."

	TagFork    = ownTags + "fork"    // "true"
	TagLineage = ownTags + "lineage" // Lineage.Root
	TagParent  = ownTags + "parent"  // Lineage.Parent
)

// Tags are all that a sandbox has.
func (i Info) Tags() map[string]string { return tags(i.Spec.Tags, i.Lineage) }

func tags(own map[string]string, l *Lineage) map[string]string {
	if l == nil {
		return own
	}
	all := maps.Clone(own)
	if all == nil {
		all = map[string]string{}
	}
	all[TagFork], all[TagLineage], all[TagParent] = "true", l.Root, l.Parent
	return all
}

// root is the ID of the sandbox that a lineage begins with.
func (r record) root() string {
	if r.Lineage != nil {
		return r.Lineage.Root
	}
	return r.ID
}
