package hostname

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// ErrURL marks a text that [ParseURL] refuses.
var ErrURL = errors.New("not a URL of http or https with a host in one reading")

// ParseURL reads a URL that the host's own programs send requests to: of http or https,
// in visible ASCII, to a name that is [Valid] and not [Numeric] or to an address without
// a zone, with a port that there is, and without a user, password or fragment. Its
// errors do not repeat a text that may have a password in it.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || strings.ContainsFunc(text, unusual) {
		return nil, ErrURL
	}
	host, v6 := u.Hostname(), strings.HasPrefix(u.Host, "[")
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" || a.Is6() != v6 {
			return nil, ErrURL
		}
	} else if name := strings.ToLower(strings.TrimSuffix(host, ".")); v6 || !Valid(name) || Numeric(name) {
		return nil, ErrURL
	}
	if port := u.Port(); port != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, ErrURL
		}
	}
	return u, nil
}

// unusual reports characters that programs read differently in a URL, or hide.
func unusual(c rune) bool { return c <= ' ' || c > '~' || c == '\\' || c == '#' }
