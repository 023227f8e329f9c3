package validate

import (
	"regexp"
	"strings"
	"testing"

	"sallyport/policy/rule"
	"sallyport/policy/urlpath"
)

// matches compares by the meaning of *, ** and %2F, letter by letter.
func matches(glob, path string) bool {
	if before, after, found := strings.Cut(glob, "%2F"); found {
		for i := range path {
			for _, slash := range []string{"/", "%2F"} {
				if strings.HasPrefix(path[i:], slash) && matches(before, path[:i]) && matches(after, path[i+len(slash):]) {
					return true
				}
			}
		}
		return false
	}
	row := make([]bool, len(path)+1) // whether what is read of glob matches path[:i]
	row[0] = true
	for glob != "" {
		width := len(glob) - len(strings.TrimLeft(glob, "*"))
		next := make([]bool, len(path)+1)
		for i := range next {
			switch {
			case width == 0:
				next[i] = i > 0 && row[i-1] && path[i-1] == glob[0]
			case row[i]:
				next[i] = true
			default:
				next[i] = i > 0 && next[i-1] && (width > 1 || path[i-1] != '/')
			}
		}
		glob, row = glob[max(width, 1):], next
	}
	return row[len(path)]
}

// FuzzGlob: a rule's globs match the paths that they stand for and no other,
// however they are put together, and two of them meet where a path matches both.
func FuzzGlob(f *testing.F) {
	for _, s := range [][2]string{
		{"/**", "/a/b"}, {"/*", "/a/b"}, {"/a/*/c", "/a//c"}, {"/*a*b", "/xaxb"}, {"**/x", "/x"}, {"/a.c", "/abc"}, {"/***", "/"}, {"/a\nb*", "/a\nbc"}, {"/é*", "/éa"}, {"/[a]|b$", "/[a]|b$"}, {"/*/**/z", "/a/b/z"},
		{"/a%2Fb", "/a%2fb"}, {"/a%2F*", "/a/b"}, {"/*", "/a%2Fb"}, {"/**%2F*F", "/a/b%2F"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, glob, raw string) {
		path, err := urlpath.Normalize(raw)
		if err != nil || rule.CheckGlob(glob) != nil || len(glob) > 64 || len(path) > 128 {
			return
		}
		want := matches(glob, path)
		pattern := regexp.MustCompile("^" + rule.GlobPattern([]string{glob}) + "$")
		if got := pattern.MatchString(path); got != want {
			t.Errorf("%q and %q: %v, want %v", glob, path, got, want)
		}
		several := regexp.MustCompile("^" + rule.GlobPattern([]string{"/other", glob, "/another"}) + "$")
		if got := several.MatchString(path); got != (want || path == "/other" || path == "/another") {
			t.Errorf("%q among others and %q: %v, want %v", glob, path, got, want)
		}
		if !strings.Contains(path, "*") && !strings.Contains(path, "%") { // which a glob says otherwise
			if got := globsMeet(glob, path); got != want || globsMeet(path, glob) != want {
				t.Errorf("%q and %q meet: %v, want %v", glob, path, got, want)
			}
		}
	})
}
