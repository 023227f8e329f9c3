package validate

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"sallyport/policy"
	"sallyport/policy/finding"
	"sallyport/policy/pathvariants"
	"sallyport/policy/rule"
)

// subsumes reports whether every input that narrow speaks about is one that wide
// speaks about, given that wide's destination takes in narrow's. When in doubt it
// does not.
func subsumes(wide, narrow *rule.Rule) bool {
	return within(narrow.Ports, wide.Ports) &&
		selectorSubsumes(wide.Sandboxes, narrow.Sandboxes) &&
		bodySubsumes(wide.Body, narrow.Body) &&
		!slices.ContainsFunc(narrow.Protocols, func(p policy.Protocol) bool { return !wide.Carries(p) }) &&
		within(narrow.Methods, wide.Methods) &&
		(wide.Paths == nil || narrow.Paths != nil && !slices.ContainsFunc(narrow.Paths, func(p string) bool { return !globSubsumedByAny(p, wide.Paths) }))
}

// within reports whether a list, of which nil has all, has nothing that another has not.
func within[T comparable](narrow, wide []T) bool {
	return wide == nil || narrow != nil && !slices.ContainsFunc(narrow, func(x T) bool { return !slices.Contains(wide, x) })
}

// selectorSubsumes reports whether every sandbox that t picks is one that s picks.
func selectorSubsumes(s, t policy.Selector) bool {
	if len(s.Names) > 0 && (len(t.Names) == 0 || slices.ContainsFunc(t.Names, func(name string) bool { return !slices.Contains(s.Names, name) })) {
		return false
	}
	return policy.Tagged(s.Tags, t.Tags)
}

// globSubsumedByAny reports whether every path that narrow matches is one that some one
// of the others does.
func globSubsumedByAny(narrow string, wide []string) bool {
	return slices.ContainsFunc(wide, func(w string) bool { return globSubsumes(w, narrow) })
}

// globSubsumes reads narrow as a text in which * stands for any characters but a
// slash, ** for any, and %2F for two spellings, and matches wide against it. Inputs
// are at most 1024 bytes each: see checkGlob.
func globSubsumes(wide, narrow string) bool {
	if !strings.HasPrefix(narrow, start(wide)) {
		return false // most pairs
	}
	type state struct{ i, j int }
	seen := map[state]bool{}
	var match func(i, j int) bool
	try := func(i, j int) bool {
		wild, width := star(wide, i)
		run, length := star(narrow, j)
		switch {
		case i == len(wide):
			return j == len(narrow)
		case width > 0 && match(i+width, j):
			return true
		case width > 0 && length > 0:
			return (bool(wild) || !bool(run)) && match(i, j+length)
		case length > 0 || j == len(narrow):
			return false
		}
		// All that narrow takes here has to be covered.
		return !slices.ContainsFunc(steps(narrow, j), func(n step) bool {
			if width > 0 {
				return !wild.takes(n.c) || !match(i, n.to)
			}
			return !slices.ContainsFunc(steps(wide, i), func(w step) bool { return w.c == n.c && match(w.to, n.to) })
		})
	}
	match = func(i, j int) bool {
		s := state{i, j}
		found, known := seen[s]
		if !known {
			found = try(i, j)
			seen[s] = found
		}
		return found
	}
	return match(0, 0)
}

// shadows finds that narrow never decides, or decides nothing that wide does not.
func shadows(narrow, wide *rule.Rule) (finding.Finding, bool) {
	if !subsumes(wide, narrow) {
		return finding.Finding{}, false
	}
	// A rule that has to see a body denies what has none, whatever others say.
	alike := reflect.DeepEqual(wide.Body, narrow.Body)
	grants := narrow.Action == policy.Allow || narrow.Action == policy.Tunnel
	switch {
	case wide.Action == policy.Deny && narrow.Action != policy.Deny:
		return finding.Shadowed.Finding(finding.Position{}, narrow.Path,
			fmt.Sprintf("never decides: the rule %s (%s) denies all that it speaks about, and a deny always wins", wide.Name, wide.Path),
			"remove it, or leave it out of the deny's destination, ports, methods, paths or sandboxes"), true
	case wide.Action == policy.Approve && alike && grants && narrow.Type == policy.TypeEgress:
		return finding.Shadowed.Finding(finding.Position{}, narrow.Path,
			fmt.Sprintf("never decides: the rule %s (%s) asks a person about all that it speaks about, and an approve wins over an allow", wide.Name, wide.Path),
			"remove it, or leave it out of the approve's destination, ports, methods, paths or sandboxes"), true
	case wide.Action == narrow.Action && alike && wide.Type == policy.TypeEgress && narrow.Type == policy.TypeEgress && reflect.DeepEqual(wide.Upstream, narrow.Upstream) && wide.RawPath == narrow.RawPath && slices.Equal(wide.Headers, narrow.Headers):
		return finding.Repeated.Finding(finding.Position{}, narrow.Path,
			fmt.Sprintf("says nothing that the rule %s (%s) does not say", wide.Name, wide.Path),
			fmt.Sprintf("remove it, or narrow %s", wide.Name)), true
	}
	return finding.Finding{}, false
}

// selectorsMeet reports whether one selector for certain picks a sandbox that the other
// was written for: one that has a name and the tags that it asks for, and no more.
func selectorsMeet(s, t policy.Selector) bool { return selectorReaches(s, t) || selectorReaches(t, s) }

func selectorReaches(s, t policy.Selector) bool {
	if len(t.Names) == 0 {
		return s.Picks("", t.Tags)
	}
	return slices.ContainsFunc(t.Names, func(name string) bool { return s.Picks(name, t.Tags) })
}

// bodySubsumes reports whether every body that w shows is one that v shows.
func bodySubsumes(v, w *policy.BodyView) bool {
	return v == nil || w != nil && v.JSON >= w.JSON && v.GraphQL >= w.GraphQL
}

// globsMeet reports whether some path matches both globs.
func globsMeet(a, b string) bool {
	before, after := start(a), start(b)
	if n := min(len(before), len(after)); before[:n] != after[:n] {
		return false // most pairs, at a thousandth of the price
	}
	type state struct{ i, j int }
	seen := map[state]bool{}
	var meet func(i, j int) bool
	meet = func(i, j int) bool {
		s := state{i, j}
		if seen[s] {
			return false
		}
		seen[s] = true
		starA, widthA := star(a, i)
		starB, widthB := star(b, j)
		switch {
		case i == len(a) && j == len(b):
			return true
		case widthA > 0 && meet(i+widthA, j):
			return true
		case widthB > 0 && meet(i, j+widthB):
			return true
		case widthA > 0 && widthB > 0:
			return false // either ends first, and both ways were tried
		}
		for _, x := range steps(a, i) {
			if widthB > 0 && starB.takes(x.c) && meet(x.to, j) {
				return true
			}
			for _, y := range steps(b, j) {
				if widthA == 0 && widthB == 0 && x.c == y.c && meet(x.to, y.to) {
					return true
				}
			}
		}
		for _, y := range steps(b, j) {
			if widthA > 0 && starA.takes(y.c) && meet(i, y.to) {
				return true
			}
		}
		return false
	}
	return meet(0, 0)
}

// start is what all that a glob matches begins with.
func start(glob string) string {
	if i := strings.IndexAny(glob, "*%"); i >= 0 {
		return glob[:i]
	}
	return glob
}

// step is a character that a glob takes, and where it goes on then.
type step struct {
	c  byte
	to int
}

// steps lists what the glob takes at i, where there is no wildcard: its character
// or, at an encoded slash, one of two. In the midst of that it is a character.
func steps(glob string, i int) []step {
	switch {
	case i == len(glob) || glob[i] == '*':
		return nil
	case glob[i] == '%':
		return []step{{'%', i + 1}, {'/', i + len(pathvariants.Slash)}}
	}
	return []step{{glob[i], i + 1}}
}

// wildcard is * (false) or ** (true).
type wildcard bool

func (w wildcard) takes(c byte) bool { return bool(w) || c != '/' }

// star returns the wildcard at glob[i:] and its width, 0 when there is none.
func star(glob string, i int) (wildcard, int) {
	n := 0
	for i+n < len(glob) && glob[i+n] == '*' {
		n++
	}
	return n > 1, n
}
