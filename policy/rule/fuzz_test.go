package rule

import (
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"sallyport/internal/hostname"
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
		host, addr, err := hostname.Parse(s)
		if err != nil {
			if host != "" || addr.IsValid() {
				t.Errorf("%q gives %q, %v and %v", s, host, addr, err)
			}
			return
		}
		if again, a, err := hostname.Parse(host); again != host || a != addr || err != nil {
			t.Errorf("%q gives %q, which gives %q %v", s, host, again, err)
		}
		d, err := ParseDestination(host)
		if !addr.IsValid() {
			if aton.MatchString(host) || net.ParseIP(host) != nil || !strings.EqualFold(strings.TrimSuffix(s, "."), host) {
				t.Errorf("%q gives the name %q", s, host)
			}
			// Not every name can be in a rule: some are no Punycode (RFC 3492).
			if err == nil && (d.Kind != ExactHost || d.Host != host || d.Port != 0) {
				t.Errorf("%q gives %q, and a rule for that is for %+v", s, host, d)
			}
			return
		}
		if std := net.ParseIP(host); addr.String() != host || addr.Is4In6() || addr.Zone() != "" || std == nil || std.String() != host {
			t.Errorf("%q gives %q, %v, and net %v", s, host, addr, std)
		}
		if err != nil || d.Kind != AddressRange || !d.prefix.Contains(addr) || !d.prefix.IsSingleIP() {
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
		d, err := ParseDestination(s)
		if err != nil {
			return
		}
		if again, err := ParseDestination(d.Key()); err != nil || !again.Same(d) || again.Key() != d.Key() {
			t.Errorf("%q is %+v, and that %+v, %v", s, d, again, err)
		}
		if d.Kind == AddressRange {
			if !d.prefix.IsValid() || d.prefix != d.prefix.Masked() || d.prefix.Addr().Is4In6() || d.prefix.Addr().Zone() != "" {
				t.Errorf("%q is %+v", s, d)
			}
			return
		}
		if host, addr, err := hostname.Parse(d.Host); host != d.Host || addr.IsValid() || err != nil {
			t.Errorf("%q is for %q, which reads as %q %v %v", s, d.Host, host, addr, err)
		}
		if _, err := netip.ParseAddr(d.Host); err == nil || aton.MatchString(d.Host) {
			t.Errorf("%q is for %q, which may be an address", s, d.Host)
		}
	})
}
