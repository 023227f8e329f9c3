package policy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// covers reports whether every input that narrow speaks about is one that wide
// speaks about, given that wide's destination takes in narrow's. When in doubt it
// does not.
func (wide *rule) covers(narrow *rule) bool {
	return portsWithin(narrow.ports, wide.ports) &&
		wide.sandboxes.covers(narrow.sandboxes) &&
		wide.body.covers(narrow.body) &&
		!slices.ContainsFunc(narrow.protocols, func(p Protocol) bool { return !slices.Contains(wide.protocols, p) }) &&
		(wide.methods == nil || narrow.methods != nil && !slices.ContainsFunc(narrow.methods, func(m string) bool { return !slices.Contains(wide.methods, m) })) &&
		(wide.paths == nil || narrow.paths != nil && !slices.ContainsFunc(narrow.paths, func(p string) bool { return !globWithin(p, wide.paths) }))
}

func portsWithin(narrow, wide []uint16) bool {
	return wide == nil || narrow != nil && !slices.ContainsFunc(narrow, func(p uint16) bool { return !slices.Contains(wide, p) })
}

// covers reports whether every sandbox that t picks is one that s picks.
func (s Selector) covers(t Selector) bool {
	if len(s.Names) > 0 && (len(t.Names) == 0 || slices.ContainsFunc(t.Names, func(name string) bool { return !slices.Contains(s.Names, name) })) {
		return false
	}
	return tagged(s.Tags, t.Tags)
}

// globWithin reports whether every path that narrow matches is one that some one
// of the others does.
func globWithin(narrow string, wide []string) bool {
	return slices.ContainsFunc(wide, func(w string) bool { return globCovers(w, narrow) })
}

// globCovers reads narrow as a text in which * stands for any characters but a
// slash, ** for any, and %2F for two spellings, and matches wide against it. Inputs
// are at most 1024 bytes each: see checkGlob.
func globCovers(wide, narrow string) bool {
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

// shadow finds that narrow never decides, or decides nothing that wide does not.
func shadow(narrow, wide *rule) (Finding, bool) {
	if !wide.covers(narrow) {
		return Finding{}, false
	}
	// A rule that has to see a body denies what has none, whatever others say.
	alike := reflect.DeepEqual(wide.body, narrow.body)
	grants := narrow.action == Allow || narrow.action == Tunnel
	switch {
	case wide.action == Deny && narrow.action != Deny:
		return Shadowed.found(Position{}, narrow.at,
			fmt.Sprintf("never decides: the rule %s (%s) denies all that it speaks about, and a deny always wins", wide.name, wide.at),
			"remove it, or leave it out of the deny's destination, ports, methods, paths or sandboxes"), true
	case wide.action == Approve && alike && grants && narrow.kind == typeEgress:
		return Shadowed.found(Position{}, narrow.at,
			fmt.Sprintf("never decides: the rule %s (%s) asks a person about all that it speaks about, and an approve wins over an allow", wide.name, wide.at),
			"remove it, or leave it out of the approve's destination, ports, methods, paths or sandboxes"), true
	case wide.action == narrow.action && alike && wide.kind == typeEgress && narrow.kind == typeEgress && reflect.DeepEqual(wide.upstream, narrow.upstream) && wide.rawPath == narrow.rawPath && slices.Equal(wide.headers, narrow.headers):
		return Repeated.found(Position{}, narrow.at,
			fmt.Sprintf("says nothing that the rule %s (%s) does not say", wide.name, wide.at),
			fmt.Sprintf("remove it, or narrow %s", wide.name)), true
	}
	return Finding{}, false
}

// tenantless reports whether one of the globs leaves the first segment open,
// which is whose content a path is about.
func tenantless(globs []string) bool {
	return globs == nil || slices.ContainsFunc(globs, func(g string) bool {
		return strings.HasPrefix(strings.TrimPrefix(g, "/"), "*")
	})
}
