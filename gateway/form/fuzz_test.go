package form

import (
	"bufio"
	"cmp"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"

	"sallyport/policy"
)

// aton is what inet_aton(3), BSD's and the C libraries' alike, and the WHATWG URL
// standard may take for an IPv4 address: the last label is a number.
var aton = regexp.MustCompile(`(?i)(^|\.)(0x[0-9a-f]*|[0-9]+)\.?$`)

// FuzzAuthority: what is taken for host and port has no other reading, by net/url
// or by who reads numbers for addresses, and reads the same when it is written.
func FuzzAuthority(f *testing.F) {
	for _, s := range []string{
		"a:1", "[::1]:2", "[::1]", "1.2.3.4", "::1", "a:", ":1", "[a]:1", "u@h:1", "a:b:c", "a:0", "a:65536", "[::1", "a:+1",
		"API.Example.Test.:443", "[::ffff:203.0.113.1]:80", "[fe80::1%25eth0]:1", "0x7f.1", "a.0x", "017700000001", "xn--bcher-kva.example", "a%2eb", "a\x00b:1",
		"[::1]:443]", "[::1]a:1", "a:1:", "a..b", "_x.test:08",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, port, err := ParseAuthority(s)
		if err != nil {
			return
		}
		addr, err := netip.ParseAddr(host)
		if err == nil && (addr.String() != host || addr.Is4In6() || addr.Zone() != "") || err != nil && aton.MatchString(host) {
			t.Errorf("%q gives %q, which may be an address", s, host)
		}
		// A head that is read once reads the same again, and so does one written from it.
		if again, err := Hostname(host); err != nil || again != host {
			t.Errorf("%q gives %q, which gives %q %v", s, host, again, err)
		}
		for _, tls := range []bool{true, false} {
			standard := map[bool]uint16{true: 443, false: 80}[tls]
			written := JoinAuthority(host, cmp.Or(port, standard), tls)
			if h, p, err := ParseAuthority(written); err != nil || h != host || cmp.Or(p, standard) != cmp.Or(port, standard) {
				t.Errorf("%q is written %q, which is %q %d %v", s, written, h, p, err)
			}
		}
		u, err := url.Parse("https://" + s + "/")
		if err != nil || u.User != nil || u.Path != "/" {
			t.Fatalf("%q gives %q, and net/url %v, %v", s, host, u, err)
		}
		other, otherPort, _ := ParseAuthority(u.Host)
		if other != host || otherPort != port || u.Port() == "" != (port == 0) {
			t.Errorf("%q gives %q %d, but of %q %q %d", s, host, port, u.Host, other, otherPort)
		}
		if addr.IsValid() {
			if a, err := netip.ParseAddr(u.Hostname()); err != nil || a.Unmap() != addr {
				t.Errorf("%q gives %v, and net/url %q", s, addr, u.Hostname())
			}
		} else if strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")) != host {
			t.Errorf("%q gives %q, and net/url %q", s, host, u.Hostname())
		}
	})
}

// FuzzQueryKeys: of each parameter that net/url finds, the policy sees the name,
// whether the pairs are cut at ampersands or at semicolons too.
func FuzzQueryKeys(f *testing.F) {
	for _, s := range []string{"", "a=1&b=2&a=3", "b;a=1", "%61=1", "a+b=1", "%zz=1", "&&", "=x", "a%26b=1;c", "a%3db"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got := policy.QueryKeys(raw)
		if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Errorf("%q gives %q", raw, got)
		}
		for _, s := range []string{strings.ReplaceAll(raw, ";", "&"), strings.SplitN(raw, ";", 2)[0]} {
			values, _ := url.ParseQuery(s) // what of it can be parsed
			for key := range values {
				if _, ok := slices.BinarySearch(got, key); !ok {
					t.Errorf("%q has %q, which is not in %q", raw, key, got)
				}
			}
		}
	})
}

// ofTheHop are headers that net/http writes from what it knows, or that the
// library refuses in HTTP/2.
var ofTheHop = []string{"Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer", "Connection", "Proxy-Connection", "Keep-Alive", "Upgrade", "Te"}

// FuzzWellFormed: a request by HTTP/2 that passes is one request of HTTP/1.1 when
// it is written, with the same method, target and header to who reads it by lines.
func FuzzWellFormed(f *testing.F) {
	for _, s := range [][4]string{
		{"GET", "/a?b=c", "x-a", "b"}, {"GET /evil HTTP/1.1\r\nX:", "/", "a", "b"}, {"GET", "/a HTTP/1.1", "a", "b"}, {"GET", "/a#b", "a", "b"}, {"", "/", "a", "b"}, {"G\x00T", "/", "a", "b"},
		{"GET", "//h/%0d%0a", "a", " b"}, {"GET", "http://h/a", "a", "b\t"}, {"OPTIONS", "*", "a", ""}, {"GET", "/é\xff", "a", "\xff"}, {"GET", "/?a b", "a", "b"}, {"GET", "/\u00a0", ":path", "/b"},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	f.Fuzz(func(t *testing.T, method, target, name, value string) {
		u, err := url.ParseRequestURI(target)
		canonical := http.CanonicalHeaderKey(name)
		if err != nil || strings.ToLower(name) != name || !httpguts.ValidHeaderFieldName(strings.TrimPrefix(name, ":")) || !httpguts.ValidHeaderFieldValue(value) ||
			method == http.MethodConnect || slices.Contains(ofTheHop, canonical) {
			return // the library refuses it
		}
		r := &http.Request{Method: method, URL: u, RequestURI: target, Host: "h", ProtoMajor: 2, Header: http.Header{canonical: {value}}}
		if Check(r) != nil || u.Host != "" || u.Opaque != "" || u.User != nil {
			return
		}
		if strings.HasPrefix(name, ":") {
			t.Fatalf("%q passes", name)
		}
		var wire strings.Builder
		if err := r.Write(&wire); err != nil {
			return // nothing leaves
		}
		lines := strings.Split(wire.String(), "\r\n")
		words := strings.Split(lines[0], " ")
		want := []string{lines[0], "Host: h", "User-Agent: Go-http-client/1.1", canonical + ": " + value, "", ""}
		if slices.ContainsFunc(lines, func(l string) bool { return strings.ContainsAny(l, "\r\n\x00") }) || !slices.Equal(withoutLength(lines), want) {
			t.Fatalf("%q %q %q %q is written %q", method, target, name, value, wire.String())
		}
		if len(words) != 3 || words[0] != method || words[2] != "HTTP/1.1" {
			t.Fatalf("%q %q is written %q", method, target, lines[0])
		}
		second, err := http.ReadRequest(bufio.NewReader(strings.NewReader(wire.String())))
		if err != nil || second.Method != method || second.URL.EscapedPath() != u.EscapedPath() || second.URL.RawQuery != u.RawQuery || second.Header.Get(canonical) != value {
			t.Fatalf("%q %q %q %q is written %q, and read %+v, %v", method, target, name, value, wire.String(), second, err)
		}
	})
}

// withoutLength leaves out that there is no body, which some methods say.
func withoutLength(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return l == "Content-Length: 0" })
}
