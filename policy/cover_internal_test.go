package policy

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
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
		if got := globCovers(tt.wide, tt.narrow); got != tt.want {
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
		if !globCovers(wide, narrow) {
			continue
		}
		covered++
		match := func(glob string) bool {
			return regexp.MustCompile("^" + globPattern([]string{glob}) + "$").MatchString(path)
		}
		if match(narrow) && !match(wide) {
			t.Fatalf("%q is said to cover %q, and does not match %q", wide, narrow, path)
		}
	}
	if covered < 1000 {
		t.Errorf("only %d pairs were compared", covered)
	}
}

// TestUselessRulesAreUseless removes each rule that is reported as shadowed or
// repeated, and holds that no request is decided otherwise.
func TestUselessRulesAreUseless(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 4))
	pick := func(list ...string) string { return list[dice.IntN(len(list))] }
	some := func(lists ...[]string) []string { return lists[dice.IntN(len(lists))] }
	hosts := []string{"a.example.com", "b.example.com", "a.b.example.com"}
	random := func() Document {
		var doc Document
		for i := range 2 + dice.IntN(4) {
			e := EgressRule{
				Name:        fmt.Sprintf("r%d", i),
				Destination: pick("a.example.com", "*.example.com", "*.b.example.com", "b.example.com:443"),
				Methods:     some(nil, nil, []string{"GET"}, []string{"GET", "PUT"}),
				Paths:       some(nil, nil, []string{"/a/**"}, []string{"/a/*"}, []string{"/**"}),
				Action:      Action(pick("", "", "deny", "approve", "tunnel")),
				Plain:       dice.IntN(4) == 0,
			}
			if !strings.Contains(e.Destination, ":") && dice.IntN(3) == 0 {
				e.Ports = []uint16{443}
			}
			if e.Action == Tunnel {
				e.Methods, e.Paths = nil, nil
			}
			switch dice.IntN(4) {
			case 0:
				e.Sandboxes.Names = []string{"x"}
			case 1:
				e.Sandboxes.Tags = map[string]string{"team": "a"}
			}
			doc.Egress = append(doc.Egress, e)
		}
		if dice.IntN(3) == 0 {
			doc.Credentials = []Credential{{Name: "key"}}
			doc.EgressAuth = []EgressAuthRule{{Name: "auth", Destination: "a.example.com", AuthRef: "key", Methods: some(nil, []string{"GET"})}}
		}
		return doc
	}
	var inputs []Input
	for _, host := range hosts {
		for _, sandbox := range []Sandbox{{Name: "x"}, {Name: "y", Tags: map[string]string{"team": "a"}}, {Name: "x", Tags: map[string]string{"team": "a"}}, {Name: "z"}} {
			for _, port := range []uint16{443, 80} {
				to := Destination{host, port}
				inputs = append(inputs, Input{Phase: PhaseConnect, Sandbox: sandbox, Destination: to, Protocol: ProtocolOther})
				for _, method := range []string{"GET", "PUT"} {
					for _, path := range []string{"/", "/a/b", "/a/b/c"} {
						in := Input{Phase: PhaseRequest, Sandbox: sandbox, Destination: to, Protocol: ProtocolTLS, Request: &Request{Method: method, Scheme: "https", Path: path, Size: -1}}
						inputs = append(inputs, in)
					}
				}
			}
		}
	}
	removed := map[Kind]int{}
	for range 300 {
		doc := random()
		findings := Validate(doc)
		if join(findings) != nil {
			continue
		}
		for _, f := range findings {
			var i int
			if n, _ := fmt.Sscanf(f.Path, "egress[%d]", &i); n != 1 || f.Kind != Shadowed && f.Kind != Repeated {
				continue
			}
			removed[f.Kind]++
			without := doc
			without.Egress = slices.Delete(slices.Clone(doc.Egress), i, i+1)
			with, err := Compile(t.Context(), doc, Options{})
			if err != nil {
				t.Fatal(err)
			}
			other, err := Compile(t.Context(), without, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for _, in := range inputs {
				a, b := with.Decide(t.Context(), in), other.Decide(t.Context(), in)
				if a.Action != b.Action {
					t.Fatalf("%v: with it %v is %s, without it %s\n%+v", f, in, a.Action, b.Action, doc.Egress)
				}
			}
		}
	}
	if removed[Shadowed] < 20 || removed[Repeated] < 20 {
		t.Errorf("too few rules were removed: %v", removed)
	}
}
