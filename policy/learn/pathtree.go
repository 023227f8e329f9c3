package learn

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"sallyport/policy/pathvariants"
	"sallyport/policy/rule"
)

// sharedHosts are hosts where a path's first segments say whose something is: what
// is learned of one owner's does not let in another's. The number is how many.
// The pattern is path.Match's.
var sharedHosts = []struct {
	pattern string
	depth   int
}{
	{"api.github.com", 3}, // /repos/OWNER/REPOSITORY
	{"github.com", 2}, {"raw.githubusercontent.com", 2}, {"codeload.github.com", 2}, {"gist.github.com", 1}, {"uploads.github.com", 3},
	{"gitlab.com", 2}, {"bitbucket.org", 2}, {"codeberg.org", 2}, {"git.sr.ht", 2}, {"dev.azure.com", 2},
	{"huggingface.co", 2}, {"ghcr.io", 3}, {"quay.io", 3}, {"registry-1.docker.io", 3}, {"hub.docker.com", 3}, {"*.pkg.dev", 3}, {"gcr.io", 3},
	{"storage.googleapis.com", 1}, {"s3.amazonaws.com", 1}, {"s3.*.amazonaws.com", 1}, {"s3-*.amazonaws.com", 1},
	{"*.blob.core.windows.net", 1}, {"*.r2.cloudflarestorage.com", 1}, {"*.digitaloceanspaces.com", 1},
	{"api.telegram.org", 1}, {"hooks.slack.com", 4}, {"discord.com", 4}, {"pastebin.com", 1}, {"hooks.zapier.com", 4},
}

// leastShared is how many segments are kept of any other host.
const leastShared = 0

// sharedDepth is how many of a path's first segments are kept as they are.
func sharedDepth(host string) int {
	for _, s := range sharedHosts {
		if ok, _ := path.Match(s.pattern, host); ok {
			return s.depth
		}
	}
	return leastShared
}

// pathTree holds paths by their segments, to find globs that match them all.
type pathTree struct {
	root *pathNode
	keep int // segments from the root that stay as they are
}

type pathNode struct {
	below map[string]*pathNode // "*" for identifiers
	ends  bool                 // a path does
	deep  bool                 // every path below is one: **
}

func newPathTree(keep int) *pathTree { return &pathTree{root: newPathNode(), keep: keep} }

func newPathNode() *pathNode { return &pathNode{below: map[string]*pathNode{}} }

// Bounds of one glob: what is longer ends in **.
const (
	maxGlobDepth = 12
	maxGlobText  = 900 // bytes; a glob is at most 1024
)

// add takes a path in that is owned.
func (t *pathTree) add(path string) {
	n, size := t.root, 0
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, s := range segments {
		if size += len(s) + 1; i > t.keep && (i >= maxGlobDepth || size > maxGlobText) {
			n.deep = true
			return
		}
		if cut := strings.IndexAny(s, "?#"); cut >= 0 && (i+1 < len(segments) || strings.Contains(s[cut:], pathvariants.Slash)) {
			n.deep = true // to a server that ends the path there, it is another
			return
		}
		if i >= t.keep {
			s = t.generalised(s, segments[i+1:])
		}
		next := n.below[s]
		if next == nil {
			next = newPathNode()
			n.below[s] = next
		}
		n = next
	}
	n.ends = true
}

// generalised is a segment's glob. One with encoded slashes is taken part by part:
// * alone would not match it decoded. One that the rest, which follows, is kept in
// by its digest is not told apart.
func (t *pathTree) generalised(s string, rest []string) string {
	if isShard(s, rest) {
		return "*"
	}
	parts := strings.Split(s, pathvariants.Slash)
	for i, part := range parts {
		if unspellable(part) || varies(part) || len(s) > maxGlobText/(t.keep+1) {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, pathvariants.Slash)
}

// maxSlashes bounds the encoded slashes of a path that is learned from, so that the
// globs of its kept segments have room.
const maxSlashes = 32

// unspellable tells of a segment that a glob cannot say.
func unspellable(s string) bool { return strings.ContainsAny(s, "*%?#") }

// owned tells whether a glob can say whose path it is: by the first segments, each
// as it stands.
func owned(path string, keep int) bool {
	for i, s := range strings.Split(strings.TrimPrefix(path, "/"), "/") {
		if i < keep && (slices.ContainsFunc(strings.Split(s, pathvariants.Slash), unspellable) || len(s) > maxGlobText/(keep+1)) {
			return false
		}
	}
	return true
}

// globs lists what matches the paths, in order.
func (t *pathTree) globs() []string {
	t.root.widen(0, t.keep)
	return slices.Sorted(maps.Keys(t.root.list("", map[string]bool{})))
}

// widen makes places with many names *, and then those with many paths below **.
func (n *pathNode) widen(depth, keep int) {
	if depth >= keep && len(n.below) > maxSiblings {
		all := map[string]*pathNode{} // one *, and one for each number of encoded slashes
		for s, b := range n.below {
			open := "*" + strings.Repeat(pathvariants.Slash+"*", strings.Count(s, pathvariants.Slash))
			if all[open] == nil {
				all[open] = newPathNode()
			}
			all[open].merge(b)
		}
		n.below = all
	}
	for _, b := range n.below {
		b.widen(depth+1, keep)
	}
	if depth >= keep && depth > 0 && n.paths() > maxBelow {
		n.deep = true
	}
}

func (n *pathNode) merge(o *pathNode) {
	n.ends = n.ends || o.ends
	n.deep = n.deep || o.deep
	for s, b := range o.below {
		if n.below[s] == nil {
			n.below[s] = newPathNode()
		}
		n.below[s].merge(b)
	}
}

// paths is how many globs there are for what is below.
func (n *pathNode) paths() int {
	if n.deep {
		return 1
	}
	count := 0
	if n.ends {
		count++
	}
	for _, b := range n.below {
		count += b.paths()
	}
	return count
}

func (n *pathNode) list(prefix string, into map[string]bool) map[string]bool {
	if n.ends {
		glob := prefix
		if glob == "" {
			glob = "/"
		}
		into[glob] = true
	}
	if n.deep {
		into[prefix+"/**"] = true
		return into
	}
	for s, b := range n.below {
		b.list(prefix+"/"+s, into)
	}
	return into
}

// globMatcher says which of some globs a path is counted under: the most exact.
type globMatcher struct {
	globs    []string
	patterns []*regexp.Regexp
	exact    map[string]bool
}

func newGlobMatcher(globs []string) *globMatcher {
	m := &globMatcher{exact: map[string]bool{}}
	for _, g := range globs {
		if !strings.Contains(g, "*") {
			m.exact[g] = true
			continue
		}
		m.globs = append(m.globs, g)
	}
	slices.SortStableFunc(m.globs, func(a, b string) int { return len(b) - len(a) })
	for _, g := range m.globs {
		m.patterns = append(m.patterns, regexp.MustCompile("^"+rule.GlobPattern([]string{g})+"$"))
	}
	return m
}

func (m *globMatcher) of(path string) string {
	if m.exact[path] {
		return path
	}
	readings := pathvariants.Of(path)
	for i, p := range m.patterns {
		if !slices.ContainsFunc(readings, func(r string) bool { return !p.MatchString(r) }) {
			return m.globs[i]
		}
	}
	return path
}
