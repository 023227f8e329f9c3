package policy

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"sallyport/policy/pathvariants"
)

// globPattern is the regular expression (RE2, linear in the path) for globs: * is
// any run of characters but a slash, ** any run at all, and %2F a slash, encoded or
// not, so that one glob can match every reading of a path. It has no anchors.
func globPattern(globs []string) string {
	return pattern(globs, func(b *strings.Builder, literal string) {
		b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(literal), pathvariants.Slash, "(?:/|"+pathvariants.Slash+")"))
	}, "")
}

// loosePattern is globPattern for rules that withhold: it matches besides what some servers
// take for the same path. Express and ASP.NET take no notice of letter case and of a
// slash at the end, Windows none of dots and spaces at the end of a name, and takes
// full-width letters for those of ASCII where a code page has no others.
func loosePattern(globs []string) string {
	trimmed := make([]string, len(globs))
	for i, glob := range globs {
		trimmed[i] = glob
		if bare := strings.TrimSuffix(glob, "/"); bare != "" && !strings.HasSuffix(bare, "*") {
			trimmed[i] = bare
		}
	}
	const end = "[. ]*" // of a name
	return pattern(trimmed, func(b *strings.Builder, literal string) {
		for literal != "" {
			if rest, found := strings.CutPrefix(literal, pathvariants.Slash); found {
				b.WriteString(end + "(?:/|" + pathvariants.Slash + ")")
				literal = rest
				continue
			}
			c, size := utf8.DecodeRuneInString(literal)
			literal = literal[size:]
			if c == '/' {
				b.WriteString(end + "/")
				continue
			}
			b.WriteByte('[')
			for r := c; ; {
				fmt.Fprintf(b, `\x{%x}`, r)
				if '!' <= r && r <= '~' {
					fmt.Fprintf(b, `\x{%x}`, r-'!'+'\uff01')
				}
				if r = unicode.SimpleFold(r); r == c {
					break
				}
			}
			b.WriteByte(']')
		}
	}, end+"/?")
}

// pattern joins the globs' expressions, with literals as write has them.
func pattern(globs []string, write func(b *strings.Builder, literal string), end string) string {
	parts := make([]string, len(globs))
	for i, glob := range globs {
		var b strings.Builder
		for rest := glob; rest != ""; {
			literal, after, found := strings.Cut(rest, "*")
			write(&b, literal)
			if found && strings.HasPrefix(after, "*") {
				b.WriteString(".*")
				after = strings.TrimLeft(after, "*")
			} else if found {
				b.WriteString("[^/]*")
			}
			rest = after
		}
		parts[i] = b.String() + end
	}
	return "(?s:" + strings.Join(parts, "|") + ")"
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
