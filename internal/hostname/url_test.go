package hostname_test

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"sallyport/internal/hostname"
)

// A text read as a URL is sent to the host that stands between its slashes, however plainly
// that is looked for, and means the same when it is written and read again.
func FuzzParseURL(f *testing.F) {
	for _, text := range []string{
		"https://a.example.com", "http://127.0.0.1:8200/v1?a=b", "https://[2001:db8::1]:443/x", "https://A.example.com.:1/%2e%2e/", "https://a@b", `https://a\@b`,
		"https:a", "https://[::1%25lo]", "https://2130706433", "https://a:", "HTTPS://a?x://b", "https://a#b", "https://%61", "https://a?@b", "https://[a.b]", "https://[1.2.3.4]",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := hostname.ParseURL(text)
		if err != nil {
			if u != nil {
				t.Errorf("%q: %v beside an error", text, u)
			}
			return
		}
		scheme, rest, _ := strings.Cut(text, "://")
		end := strings.IndexAny(rest, "/?#\\@")
		if end < 0 {
			end = len(rest)
		} else if rest[end] == '@' || rest[end] == '\\' {
			t.Fatalf("%q passes", text)
		}
		if scheme = strings.ToLower(scheme); scheme != u.Scheme || scheme != "http" && scheme != "https" || rest[:end] != u.Host {
			t.Errorf("%q: %s to %q", text, u.Scheme, u.Host)
		}
		host := u.Hostname()
		if a, err := netip.ParseAddr(host); err == nil {
			if a.Zone() != "" {
				t.Errorf("%q has a zone", text)
			}
		} else if ip := net.ParseIP(host); ip != nil || !hostname.Valid(strings.ToLower(strings.TrimSuffix(host, "."))) {
			t.Errorf("%q is to %q", text, host)
		}
		r, err := http.NewRequest(http.MethodGet, text, nil)
		if err != nil || r.URL.Host != u.Host || r.URL.RequestURI() != u.RequestURI() {
			t.Errorf("%q is sent to %v, %v", text, r, err)
		}
		again, err := hostname.ParseURL(u.String())
		if err != nil || again.Host != u.Host || again.RequestURI() != u.RequestURI() {
			t.Errorf("%q, then %q: %v", text, u, err)
		}
		if other, err := url.ParseRequestURI(text); err != nil || other.Host != u.Host {
			t.Errorf("%q: %v, %v", text, other, err)
		}
	})
}
