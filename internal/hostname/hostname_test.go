package hostname_test

import (
	"regexp"
	"strings"
	"testing"

	"sallyport/internal/hostname"
)

func TestValid(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "a.b": true, "a-b.c_d.e1": true, "_acme-challenge.example.com": true, "xn--bcher-kva.example": true, "10.0.0.1": true, "a--b": true,
		strings.Repeat("a", 63) + ".b": true, strings.Repeat("a.", 126) + "a": true,
		"": false, ".": false, "a.": false, ".a": false, "a..b": false, "-a": false, "a-": false, "a.-b": false, "a-.b": false, "-": false,
		"A": false, "a b": false, "a/b": false, "ä": false, "*.a": false, "a:1": false, "\u212a": false,
		strings.Repeat("a", 64): false, strings.Repeat("a.", 127): false,
	} {
		if got := hostname.Valid(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
}

func TestLabel(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "a-1": true, "7": true, strings.Repeat("a", 63): true,
		"": false, "a.b": false, "a_b": false, "-a": false, "a-": false, "A": false, "a\n": false, strings.Repeat("a", 64): false,
	} {
		if got := hostname.Label(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
}

func TestNumeric(t *testing.T) {
	for name, want := range map[string]bool{
		"127.1": true, "0x7f000001": true, "2130706433": true, "a.0x": true, "a.1": true, "a.0xff": true, "": true,
		"a": false, "1.a": false, "a.0xfg": false, "a.1x": false, "a.x1": false,
	} {
		if got := hostname.Numeric(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
}

// FuzzValid holds the loop to the grammar.
func FuzzValid(f *testing.F) {
	label := `[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?`
	grammar := regexp.MustCompile(`^` + label + `(\.` + label + `)*$`)
	for _, s := range []string{"a-b.c", "a-.b", strings.Repeat("a", 64)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, want := hostname.Valid(s), len(s) <= 253 && grammar.MatchString(s) && !strings.HasSuffix(s, "\n"); got != want {
			t.Errorf("%q: %t, want %t", s, got, want)
		}
	})
}
