package urlpath_test

import (
	"encoding/hex"
	"net/url"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"sallyport/policy/pathvariants"
	"sallyport/policy/urlpath"
)

func TestNormalizePath(t *testing.T) {
	for _, tt := range []struct{ raw, want string }{
		{"/", "/"},
		{"/a/b", "/a/b"},
		{"/a/b/", "/a/b/"},
		{"/a///b//", "/a/b/"},
		{"/%61/b%2Dc", "/a/b-c"},
		{"/a%20b", "/a b"},
		{"/100%25", "/100%"},
		{"/caf%C3%A9", "/café"},
		{"/a%3fb%23c", "/a?b#c"},
		{"/...", "/..."},
		{"/.well-known/x", "/.well-known/x"},
		{"/a..b/..c", "/a..b/..c"},
		{"/a:b@c!$&'()*+,=", "/a:b@c!$&'()*+,="},
		{"/a%2fb", "/a%2Fb"},
		{"/a%2Fb%2f", "/a%2Fb%2F"},
		{"/%61%2fb//c", "/a%2Fb/c"},
		{"/100%25%2f2F", "/100%%2F2F"},
		{"/a%2fb/c%2fd/e%2ff%2fg/h", "/a%2Fb/c%2Fd/e%2Ff%2Fg/h"},
	} {
		if got, err := urlpath.Normalize(tt.raw); got != tt.want || err != nil {
			t.Errorf("Normalize(%q): got %q, %v, want %q", tt.raw, got, err, tt.want)
		}
	}
	for _, raw := range []string{
		"", "*", "a", "?x",
		"/..", "/.", "/a/../b", "/a/./b", "/a/..",
		"/%2e%2e/b", "/a/%2e/b", "/a/.%2E/b", "/a//../b", "/a/%2e",
		"/a%2F..%2fb", "/a%2f..", "/a%2f.", "/..%2fa", "/a%2f%2e%2e%2fb", "/a/..%2f..%2fb",
		"/%2fa", "/a%2f/b", "/a/%2fb", "/a%2f%2fb", "/a//%2fb", "/a%5c%2fb", "/a%2f%5cb", "/a%2fb;c", "/a%2fb%00", "/a%252fb%2fc", "/a%25%32%46b",
		"/a%2fb/c%2fd/e%2ff/g%2fh",
		`/a\b`, "/a%5cb", `/..\b`,
		"/a;x=1/b", "/a%3bx", "/..;/b",
		"/%252e%252e/", "/a%252fb",
		"/a%00b", "/a\x00b", "/a%0d%0ab", "/a\x7f",
		"/%c0%ae%c0%ae/", "/%ff", "/\xff",
		"/a?b", "/a#b",
		"//", "//a", "///a/b", "//a%2fb",
		"/a/..%20", "/a/%20.%20./b", "/a/..%3fb", "/a/..%23", "/..+/b", "/a/.%c2%ad./b", "/%ef%bc%8e%ef%bc%8e/b", "/a%2f..%20", "/a/..%ef%bc%8fb", "/a%ef%bc%8fb", "/a%c2%a5b", "/a/%20/b", "/a/%e2%80%8b", "/a/%ef%bc%852e./b",
		"/%", "/%2", "/%zz", "/a%2",
		"/" + strings.Repeat("a", 9000),
	} {
		if got, err := urlpath.Normalize(raw); err == nil || got != "" {
			t.Errorf("Normalize(%q): got %q, %v, want an error and no path", raw, got, err)
		}
	}
}

var (
	slash     = regexp.MustCompile("%2[Ff]")
	slashes   = regexp.MustCompile("/+")
	encoded   = regexp.MustCompile("%[0-9A-Fa-f]{2}")
	parameter = regexp.MustCompile(";[^/]*")
	control   = regexp.MustCompile(`[\x00-\x1f\x7f]`)
	ordinary  = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+/?$`)
)

// lenient decodes what is encoded and leaves alone what is not, as many servers do.
func lenient(s string) string {
	return encoded.ReplaceAllStringFunc(s, func(s string) string {
		b, _ := hex.DecodeString(s[1:])
		return string(b)
	})
}

// FuzzNormalizePath holds what rules rely on: whatever is accepted has one reading, but
// for encoded slashes, by net/url, by who is lenient, by who decodes twice, resolves dot segments, cuts
// parameters off or turns backslashes round.
func FuzzNormalizePath(f *testing.F) {
	for _, seed := range []string{
		"/", "//a/%61", "/%2e%2e/", "/a;b", `/\`, "/%25", "/%252e", "/é", "/a/../b", "/%c3%a9", "/100%25%34%31", "/%25%2", "/a%3fb", "/a?b", "/%u002e", "/a/...", "/a/.%0a",
		"/a%2fb", "/a%2F%2fb", "/%25%2F2F", "/%252F", "/a%2F..", "/a%2f/b", "/a%2fb/c%2fd/e%2ff/g%2fh", "/%2%32F", "/%25%32%46", "/a%2Fb%2e",
		"/%e2%88%95", "/%c0%af", "/a%20b+c", "//", "/:@!$&'()*+,=", "/*", "/%2A", "/a//..b//",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := urlpath.Normalize(raw)
		if err != nil {
			if got != "" || ordinary.MatchString(raw) && len(raw) <= 8<<10 {
				t.Fatalf("%q became %q and %v", raw, got, err)
			}
			return
		}
		if got == "" || got[0] != '/' || !utf8.ValidString(got) || len(got) > len(raw) || control.MatchString(got) {
			t.Fatalf("%q became %q", raw, got)
		}
		// It is sent in one form, which means the same.
		same, sent, err := urlpath.Canonical(raw)
		if err != nil || same != got {
			t.Fatalf("%q became %q, and %q, %v", raw, got, same, err)
		}
		again, kept, err := urlpath.Canonical(sent)
		if err != nil || again != got || kept != sent || strings.Contains(sent, "//") {
			t.Fatalf("%q is sent as %q, which became %q, %v, and is sent as %q", raw, sent, again, err, kept)
		}
		if as, err := url.ParseRequestURI(sent); err != nil || as.EscapedPath() != sent {
			t.Fatalf("%q is sent as %q, which net/url writes as %q, %v", raw, sent, as, err)
		}
		// As many encoded slashes are in it as were, and nothing else that looks so.
		plain := pathvariants.Decoded(got)
		if encoded.MatchString(strings.ReplaceAll(got, pathvariants.Slash, "\x00")) || strings.Count(got, pathvariants.Slash) != len(slash.FindAllString(raw, -1)) {
			t.Fatalf("%q became %q", raw, got)
		}
		if want := slashes.ReplaceAllString(lenient(raw), "/"); plain != want {
			t.Fatalf("%q became %q, and is %q to who is lenient", raw, got, want)
		}
		if want := slashes.ReplaceAllString(lenient(slash.ReplaceAllString(raw, "\x00")), "/"); strings.ReplaceAll(got, pathvariants.Slash, "\x00") != want {
			t.Fatalf("%q became %q, and is %q to who leaves encoded slashes", raw, got, want)
		}
		u, err := url.ParseRequestURI(raw)
		if err != nil || u.RawQuery != "" || u.Host != "" {
			t.Fatalf("%q became %q, and is %v, %v to net/url", raw, got, u, err)
		}
		if want := slashes.ReplaceAllString(u.Path, "/"); plain != want {
			t.Fatalf("%q became %q, and is %q to net/url", raw, got, want)
		}
		// Written again, by net/url or as a client would, it reads the same.
		written := map[string]string{u.EscapedPath(): got, (&url.URL{Path: plain}).EscapedPath(): plain}
		for _, r := range pathvariants.Of(got) {
			text := strings.ReplaceAll((&url.URL{Path: strings.ReplaceAll(r, pathvariants.Slash, "\x00")}).EscapedPath(), "%00", "%2f")
			written[text] = r
		}
		for text, want := range written {
			if again, err := urlpath.Normalize(text); len(text) <= 8<<10 && (err != nil || again != want) {
				t.Fatalf("%q became %q, and is written %q, which became %q, %v", raw, got, text, again, err)
			}
		}
		for name, other := range map[string]string{
			"decodes twice":               lenient(plain),
			"resolves dot segments":       path.Clean(plain) + map[bool]string{true: "/"}[len(plain) > 1 && strings.HasSuffix(plain, "/")],
			"cuts off parameters":         parameter.ReplaceAllString(plain, ""),
			"turns backslashes round":     strings.ReplaceAll(plain, `\`, "/"),
			"makes runs of slashes one":   slashes.ReplaceAllString(plain, "/"),
			"replaces what is not UTF-8":  strings.ToValidUTF8(plain, "?"),
			"ends a string at a NUL byte": strings.SplitN(plain, "\x00", 2)[0],
		} {
			if other != plain {
				t.Fatalf("%q became %q, and is %q to who %s", raw, got, other, name)
			}
		}
	})
}
