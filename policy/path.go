package policy

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxPath bounds a request's path in bytes.
const maxPath = 8 << 10

var errPath = errors.New("ambiguous path")

// NormalizePath turns the path of a request, as it stands on the wire and
// without its query, into the form that rules are compared with: percent-decoded
// (RFC 3986, section 2.1), runs of slashes made one.
//
// Servers disagree about what some paths mean: one resolves "..", decodes "%2f",
// turns "\" round or cuts ";x" off, the next does not. A path that two servers
// could read differently gives an error, and the request must be refused: dot
// segments and semicolons and backslashes, encoded or not, encoded slashes,
// double encodings, control bytes, a query or a fragment, what is not UTF-8, and
// what is longer than 8 KiB. Clients resolve dot segments before they send (section 5.2.4), so
// that only the hostile and the broken are turned away.
func NormalizePath(raw string) (string, error) {
	if len(raw) > maxPath {
		return "", fmt.Errorf("%w: longer than %d bytes", errPath, maxPath)
	}
	if raw == "" || raw[0] != '/' {
		return "", fmt.Errorf("%w: does not begin with a slash", errPath)
	}
	if strings.ContainsAny(raw, "?#") {
		return "", fmt.Errorf("%w: a query or a fragment", errPath)
	}
	if strings.IndexByte(raw, '%') < 0 && plainPath(raw) == nil && !strings.Contains(raw, "//") {
		return raw, nil
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c == '%' {
			if i+2 >= len(raw) || !isHex(raw[i+1]) || !isHex(raw[i+2]) {
				return "", fmt.Errorf("%w: a %% without two hexadecimal digits", errPath)
			}
			if c = unhex(raw[i+1])<<4 | unhex(raw[i+2]); c == '/' {
				return "", fmt.Errorf("%w: an encoded slash", errPath)
			}
			i += 2
		}
		if c == '/' && len(out) > 0 && out[len(out)-1] == '/' {
			continue
		}
		out = append(out, c)
	}
	if err := plainPath(string(out)); err != nil {
		return "", err
	}
	return string(out), nil
}

// plainPath says what about a decoded path could be read in two ways.
func plainPath(path string) error {
	if !utf8.ValidString(path) {
		return fmt.Errorf("%w: not UTF-8", errPath)
	}
	for i := range len(path) {
		switch c := path[i]; {
		case c < 0x20 || c == 0x7f:
			return fmt.Errorf("%w: a control byte", errPath)
		case c == '\\':
			return fmt.Errorf("%w: a backslash", errPath)
		case c == ';':
			return fmt.Errorf("%w: a semicolon", errPath)
		case c == '%' && i+2 < len(path) && isHex(path[i+1]) && isHex(path[i+2]):
			return fmt.Errorf("%w: encoded twice", errPath)
		case c == '/' && dotSegment(path[i+1:]):
			return fmt.Errorf("%w: a dot segment", errPath)
		}
	}
	return nil
}

// dotSegment reports whether the path's first segment is "." or "..".
func dotSegment(path string) bool {
	segment, _, _ := strings.Cut(path[:min(len(path), 3)], "/")
	return segment == "." || segment == ".."
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// checkGlob says why no normalised path can match a rule's glob.
func checkGlob(glob string) error {
	switch {
	case glob == "":
		return errors.New("is empty; leave paths out to mean every path")
	case len(glob) > 1024:
		return errors.New("is longer than 1024 bytes")
	case glob[0] != '/' && !strings.HasPrefix(glob, "**"):
		return fmt.Errorf("%q can never match; write %q", glob, "/"+glob)
	case strings.ContainsAny(glob, "?#"):
		return fmt.Errorf("%q can never match, since the query and the fragment are no part of a path; write the path alone", glob)
	case strings.Contains(glob, "//"):
		return fmt.Errorf("%q can never match: doubled slashes are made one; write %q", glob, strings.ReplaceAll(glob, "//", "/"))
	case strings.ContainsRune(glob, '%'):
		return fmt.Errorf("%q can never match: paths are compared decoded; write the character itself", glob)
	}
	if err := plainPath(glob); err != nil {
		return fmt.Errorf("%q can never match: %w, which is refused before any rule; write the path as a server resolves it", glob, err)
	}
	return nil
}

// globPattern is the regular expression (RE2, linear in the path) for globs: * is
// any run of characters but a slash, ** any run at all. It has no anchors.
func globPattern(globs []string) string {
	parts := make([]string, len(globs))
	for i, glob := range globs {
		var b strings.Builder
		for rest := glob; rest != ""; {
			literal, after, found := strings.Cut(rest, "*")
			b.WriteString(regexp.QuoteMeta(literal))
			if found && strings.HasPrefix(after, "*") {
				b.WriteString(".*")
				after = strings.TrimLeft(after, "*")
			} else if found {
				b.WriteString("[^/]*")
			}
			rest = after
		}
		parts[i] = b.String()
	}
	return "(?s:" + strings.Join(parts, "|") + ")"
}

// globsMeet reports whether some path matches both globs.
func globsMeet(a, b string) bool {
	before, _, _ := strings.Cut(a, "*")
	after, _, _ := strings.Cut(b, "*")
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
		case widthA > 0:
			return j < len(b) && starA.takes(b[j]) && meet(i, j+1)
		case widthB > 0:
			return i < len(a) && starB.takes(a[i]) && meet(i+1, j)
		}
		return i < len(a) && j < len(b) && a[i] == b[j] && meet(i+1, j+1)
	}
	return meet(0, 0)
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
