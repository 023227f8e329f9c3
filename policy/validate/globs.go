package validate

import (
	"strings"

	"sallyport/policy/pathvariants"
)

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
