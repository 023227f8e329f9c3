package rule

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"sallyport/policy/pathvariants"
	"sallyport/policy/urlpath"
)

// GlobPattern is the regular expression (RE2, linear in the path) for globs: * is
// any run of characters but a slash, ** any run at all, and %2F a slash, encoded or
// not, so that one glob can match every reading of a path. It has no anchors.
func GlobPattern(globs []string) string {
	return pattern(globs, func(b *strings.Builder, literal string) {
		b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(literal), pathvariants.Slash, "(?:/|"+pathvariants.Slash+")"))
	}, "")
}

// LoosePattern is GlobPattern for rules that withhold: it matches besides what some servers
// take for the same path. Express and ASP.NET take no notice of letter case and of a
// slash at the end, Windows none of dots and spaces at the end of a name, and takes
// full-width letters for those of ASCII where a code page has no others.
func LoosePattern(globs []string) string {
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

// CheckGlob says why no normalised path can match a rule's glob.
func CheckGlob(glob string) error {
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
	case strings.Contains(glob, "%2f"):
		return fmt.Errorf("%q can never match: an encoded slash is in upper case; write %q", glob, strings.ReplaceAll(glob, "%2f", pathvariants.Slash))
	case strings.Count(glob, "%") > strings.Count(glob, pathvariants.Slash):
		return fmt.Errorf("%q can never match: paths are compared decoded, but for %s; write the character itself", glob, pathvariants.Slash)
	case strings.Contains(pathvariants.Decoded(glob), "//"):
		return fmt.Errorf("%q can never match: an encoded slash beside a slash is refused before any rule", glob)
	}
	if err := urlpath.CheckDecoded(pathvariants.Decoded(glob)); err != nil {
		return fmt.Errorf("%q can never match: %w, which is refused before any rule; write the path as a server resolves it", glob, err)
	}
	return nil
}
