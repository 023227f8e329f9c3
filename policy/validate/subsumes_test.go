package validate

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"sallyport/policy/rule"
)

// TestGlobCovers: what covers another glob matches all that the other does, and
// the usual pairs are seen.
func TestGlobCovers(t *testing.T) {
	for _, tt := range []struct {
		wide, narrow string
		want         bool
	}{
		{"/a", "/a", true}, {"/a", "/b", false}, {"/**", "/a/*", true}, {"**", "/a/**", true}, {"/a/*", "/a/**", false},
		{"/a/**", "/a/*/b", true}, {"/a/**", "/a", false}, {"/*", "/a/b", false}, {"/*/b", "/a/b", true}, {"/*/b", "/*/b", true},
		{"/**/b", "/a/**/b", true}, {"/a*", "/a", true}, {"/a*", "/ab*", true}, {"/ab*", "/a*", false}, {"/*a", "/**a", false},
		{"/a%2Fb", "/a/b", true}, {"/a/b", "/a%2Fb", false}, {"/a%2Fb", "/a%2Fb", true}, {"/a%2F*", "/a%2Fb", true}, {"/*", "/a%2Fb", false}, {"/**", "/a%2Fb", true},
		{"/a%2F**", "/a/*%2Fb", true}, {"/*%2F*", "/a%2Fb%2Fc", false},
	} {
		if got := globSubsumes(tt.wide, tt.narrow); got != tt.want {
			t.Errorf("%s covers %s: got %v", tt.wide, tt.narrow, got)
		}
	}
	dice := rand.New(rand.NewPCG(1, 2))
	random := func(letters string) string {
		var b strings.Builder
		b.WriteByte('/')
		for range dice.IntN(5) {
			b.WriteByte(letters[dice.IntN(len(letters))])
		}
		return strings.ReplaceAll(b.String(), "%", "%2F")
	}
	covered := 0
	for range 200_000 {
		wide, narrow, path := random("a/%***"), random("ab/%**"), random("ab/%")
		if !globSubsumes(wide, narrow) {
			continue
		}
		covered++
		match := func(glob string) bool {
			return regexp.MustCompile("^" + rule.GlobPattern([]string{glob}) + "$").MatchString(path)
		}
		if match(narrow) && !match(wide) {
			t.Fatalf("%q is said to cover %q, and does not match %q", wide, narrow, path)
		}
	}
	if covered < 1000 {
		t.Errorf("only %d pairs were compared", covered)
	}
}
