package approval

import (
	"math/rand/v2"
	"testing"

	"sallyport/internal/test/must"
)

// match is a plain reading of a glob.
func match(glob, path string) bool {
	switch {
	case glob == "":
		return path == ""
	case glob[0] == '*':
		rest := glob[1:]
		across := rest != "" && rest[0] == '*'
		for across && rest != "" && rest[0] == '*' {
			rest = rest[1:]
		}
		for i := 0; ; i++ {
			if match(rest, path[i:]) {
				return true
			}
			if i == len(path) || path[i] == '/' && !across {
				return false
			}
		}
	case glob[0] == '\\' && len(glob) > 1:
		glob = glob[1:]
	}
	return path != "" && glob[0] == path[0] && match(glob[1:], path[1:])
}

func TestGlob(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	text := func(letters string, most int) string {
		b := make([]byte, random.IntN(most))
		for i := range b {
			b[i] = letters[random.IntN(len(letters))]
		}
		return string(b)
	}
	matched := 0
	for range 50_000 {
		g := &Grant{Pattern: Pattern{Method: "*", Path: text(`a/.*\\b`, 7)}}
		path := text("a/.*b", 8)
		if err := g.compile(); err != nil {
			t.Fatalf("%q: %v", g.Pattern.Path, err)
		}
		got := g.matches(Subject{Path: path})
		if want := match(g.Pattern.Path, path); got != want {
			t.Fatalf("%q matches %q: %v, want %v", g.Pattern.Path, path, got, want)
		}
		if got {
			matched++
		}
		own := &Grant{Pattern: Pattern{Method: "*", Path: literal(path)}}
		if err := own.compile(); err != nil || !own.matches(Subject{Path: path}) || own.matches(Subject{Path: path + "a"}) {
			t.Fatalf("the literal of %q is %q", path, own.Pattern.Path)
		}
	}
	if matched < 100 {
		t.Errorf("%d matched: the test tries too little", matched)
	}
}

// TestEncodedSlashes: a longer approval covers a path in all readings or not at all.
func TestEncodedSlashes(t *testing.T) {
	for _, tt := range []struct {
		glob, path string
		want       bool
	}{
		{"/p/*", "/p/a%2Fb", false},
		{"/p/*/*", "/p/a%2Fb", false},
		{"/p/**", "/p/a%2Fb", true},
		{"/p/a%2F*", "/p/a%2Fb", true},
		{"/p/a%2Fb", "/p/a/b", true},
		{"/p/a/b", "/p/a%2Fb", false},
		{"/**", "/a%2Fb/a%2Fb/a%2Fb/a%2Fb", false},
	} {
		g := &Grant{Pattern: Pattern{Method: "*", Path: tt.glob}}
		must.OK(t, g.compile())
		if got := g.matches(Subject{Path: tt.path}); got != tt.want {
			t.Errorf("%s covers %s: %v, want %v", tt.glob, tt.path, got, tt.want)
		}
		own := &Grant{Pattern: Pattern{Method: "*", Path: literal(tt.path)}}
		if err := own.compile(); err != nil || own.matches(Subject{Path: tt.path}) != (tt.glob != "/**") {
			t.Errorf("the literal of %s is %s", tt.path, own.Pattern.Path)
		}
	}
}
