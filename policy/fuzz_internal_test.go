package policy

import (
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
)

// aton is what inet_aton(3) or the WHATWG URL standard may take for an IPv4
// address: the last label is a number.
var aton = regexp.MustCompile(`(?i)(^|\.)(0x[0-9a-f]*|[0-9]+)\.?$`)

// FuzzReadHost: a host that a sandbox asks for is a name or an address and never
// both, reads the same again, and is what a rule written for it is kept as.
func FuzzReadHost(f *testing.F) {
	for _, s := range []string{
		"api.example.test", "API.Example.Test.", "xn--bcher-kva.example", "bücher.example", "203.0.113.1", "[2001:db8::1]", "::ffff:203.0.113.1", "fe80::1%eth0", "127.1", "0x", "a.0x7f",
		"2130706433", "_dmarc.example.test", "a..b", "..", "", "[a]", "a:443", "*.example.test", "ſ.test", "K.test", "a\x00b", "[[::1]]", "1.2.3.4.", "[1.2.3.4",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, addr, err := readHost(s)
		if err != nil {
			if host != "" || addr.IsValid() {
				t.Errorf("%q gives %q, %v and %v", s, host, addr, err)
			}
			return
		}
		if again, a, err := readHost(host); again != host || a != addr || err != nil {
			t.Errorf("%q gives %q, which gives %q %v", s, host, again, err)
		}
		d, err := parseDestination(host)
		if !addr.IsValid() {
			if aton.MatchString(host) || net.ParseIP(host) != nil || !strings.EqualFold(strings.TrimSuffix(s, "."), host) {
				t.Errorf("%q gives the name %q", s, host)
			}
			// Not every name can be in a rule: some are no Punycode (RFC 3492).
			if err == nil && (d.kind != exactHost || d.host != host || d.port != 0) {
				t.Errorf("%q gives %q, and a rule for that is for %+v", s, host, d)
			}
			return
		}
		if std := net.ParseIP(host); addr.String() != host || addr.Is4In6() || addr.Zone() != "" || std == nil || std.String() != host {
			t.Errorf("%q gives %q, %v, and net %v", s, host, addr, std)
		}
		if err != nil || d.kind != addressRange || !d.prefix.Contains(addr) || !d.prefix.IsSingleIP() {
			t.Errorf("%q gives %q, and a rule for that is for %+v, %v", s, host, d, err)
		}
	})
}

// FuzzDestination: a rule is for what it says when it is written again, and a name
// in it is one that a sandbox can ask for.
func FuzzDestination(f *testing.F) {
	for _, s := range []string{
		"api.example.test", "api.example.test:8443", "*.Example.Test.", "bücher.example", "ＥＸＡＭＰＬＥ.test", "10.20.0.0/16", "10.20.0.1/16", "2001:db8::/32", "[2001:db8::1]:443", "::ffff:1.2.3.4",
		"::ffff:1.2.3.0/120", "a.*.b", "*", "a_b.test", "xn--a", "127.1", "0x", "１２７.1", "a。b", "a/b", "https://a", "a:0", "a:1:2", "[a]:1", "*.1.2.3.4", "*.0x1", "ẞ.test", "a\u200cb.test",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parseDestination(s)
		if err != nil {
			return
		}
		if again, err := parseDestination(d.key()); err != nil || !again.same(d) || again.key() != d.key() {
			t.Errorf("%q is %+v, and that %+v, %v", s, d, again, err)
		}
		if d.kind == addressRange {
			if !d.prefix.IsValid() || d.prefix != d.prefix.Masked() || d.prefix.Addr().Is4In6() || d.prefix.Addr().Zone() != "" {
				t.Errorf("%q is %+v", s, d)
			}
			return
		}
		if host, addr, err := readHost(d.host); host != d.host || addr.IsValid() || err != nil {
			t.Errorf("%q is for %q, which reads as %q %v %v", s, d.host, host, addr, err)
		}
		if _, err := netip.ParseAddr(d.host); err == nil || aton.MatchString(d.host) {
			t.Errorf("%q is for %q, which may be an address", s, d.host)
		}
	})
}

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
		path, err := NormalizePath(raw)
		if err != nil || checkGlob(glob) != nil || len(glob) > 64 || len(path) > 128 {
			return
		}
		want := matches(glob, path)
		pattern := regexp.MustCompile("^" + globPattern([]string{glob}) + "$")
		if got := pattern.MatchString(path); got != want {
			t.Errorf("%q and %q: %v, want %v", glob, path, got, want)
		}
		several := regexp.MustCompile("^" + globPattern([]string{"/other", glob, "/another"}) + "$")
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
