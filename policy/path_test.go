package policy_test

import (
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"sallyport/policy"
)

func TestNormalizePath(t *testing.T) {
	for _, tt := range []struct{ raw, want string }{
		{"/", "/"},
		{"/a/b", "/a/b"},
		{"/a/b/", "/a/b/"},
		{"//a///b//", "/a/b/"},
		{"/%61/b%2Dc", "/a/b-c"},
		{"/a%20b", "/a b"},
		{"/100%25", "/100%"},
		{"/caf%C3%A9", "/café"},
		{"/...", "/..."},
		{"/.well-known/x", "/.well-known/x"},
		{"/a..b/..c", "/a..b/..c"},
		{"/a:b@c!$&'()*+,=", "/a:b@c!$&'()*+,="},
	} {
		if got, err := policy.NormalizePath(tt.raw); got != tt.want || err != nil {
			t.Errorf("NormalizePath(%q): got %q, %v, want %q", tt.raw, got, err, tt.want)
		}
	}
	for _, raw := range []string{
		"", "*", "a", "?x",
		"/..", "/.", "/a/../b", "/a/./b", "/a/..",
		"/%2e%2e/b", "/a/%2e/b", "/a/.%2E/b", "/a//../b", "/a/%2e",
		"/a%2fb", "/a%2F..%2fb",
		`/a\b`, "/a%5cb", `/..\b`,
		"/a;x=1/b", "/a%3bx", "/..;/b",
		"/%252e%252e/", "/a%252fb",
		"/a%00b", "/a\x00b", "/a%0d%0ab", "/a\x7f",
		"/%c0%ae%c0%ae/", "/%ff", "/\xff",
		"/%", "/%2", "/%zz", "/a%2",
		"/" + strings.Repeat("a", 9000),
	} {
		if got, err := policy.NormalizePath(raw); err == nil || got != "" {
			t.Errorf("NormalizePath(%q): got %q, %v, want an error and no path", raw, got, err)
		}
	}
}

// FuzzNormalizePath holds what rules rely on: whatever is accepted has one reading.
func FuzzNormalizePath(f *testing.F) {
	for _, seed := range []string{"/", "//a/%61", "/%2e%2e/", "/a;b", `/\`, "/%25", "/%252e", "/é", "/a/../b", "/%c3%a9"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := policy.NormalizePath(raw)
		if err != nil {
			return
		}
		if got == "" || got[0] != '/' || !utf8.ValidString(got) || len(got) > len(raw) {
			t.Fatalf("%q became %q", raw, got)
		}
		for _, bad := range []string{"//", `\`, ";", "\x00", "\r", "\n"} {
			if strings.Contains(got, bad) {
				t.Fatalf("%q became %q, which holds %q", raw, got, bad)
			}
		}
		for _, segment := range strings.Split(got, "/") {
			if segment == "." || segment == ".." {
				t.Fatalf("%q became %q, which has a dot segment", raw, got)
			}
		}
		// Written again as a client would, it reads the same.
		again, err := policy.NormalizePath((&url.URL{Path: got}).EscapedPath())
		if err != nil || again != got {
			t.Fatalf("%q became %q, then %q, %v", raw, got, again, err)
		}
		// A server that decodes twice sees nothing else either.
		if twice, err := url.PathUnescape(got); err == nil && twice != got {
			t.Fatalf("%q became %q, which decodes again to %q", raw, got, twice)
		}
	})
}
