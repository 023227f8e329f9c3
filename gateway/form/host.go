package form

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	hosts "sallyport/internal/hostname"
)

// Hostname returns s as policy knows it: a lower-case DNS name without trailing
// dot, or the text of an IP address. It refuses what resolvers, proxies and
// servers read in different ways, such as 127.1, 0x7f.1, zones and user info.
func Hostname(s string) (string, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		if addr.Zone() != "" {
			return "", fmt.Errorf("%.64q has a zone", s)
		}
		return addr.Unmap().String(), nil
	}
	// Some letters, as U+212A, are ASCII in lower case.
	name := strings.ToLower(strings.TrimSuffix(s, "."))
	if strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) || !hosts.Valid(name) {
		return "", fmt.Errorf("%.64q is not a host name", s)
	}
	if hosts.Numeric(name) {
		return "", fmt.Errorf("%.64q is not a canonical IP address", s)
	}
	return name, nil
}

// ParseAuthority splits "host", "host:port" or "[v6]:port"; port is 0 when absent.
func ParseAuthority(s string) (host string, port uint16, err error) {
	name := s
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		h, p, err := net.SplitHostPort(s)
		if err != nil {
			return "", 0, fmt.Errorf("%.64q is not host:port", s)
		}
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return "", 0, fmt.Errorf("%.64q has no port between 1 and 65535", s)
		}
		name, port = h, uint16(n)
		if strings.Contains(h, ":") != strings.HasPrefix(s, "[") {
			return "", 0, fmt.Errorf("%.64q is not host:port", s)
		}
	} else if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		name = s[1 : len(s)-1]
		if !strings.Contains(name, ":") {
			return "", 0, fmt.Errorf("%.64q is not a host", s)
		}
	}
	host, err = Hostname(name)
	return host, port, err
}

// IsAddress tells whether a host from Hostname is an IP address.
func IsAddress(host string) bool {
	// Most are names, and an error costs more than to see that.
	if last := len(host) - 1; !strings.Contains(host, ":") && (last < 0 || host[last] < '0' || host[last] > '9') {
		return false
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

// JoinAuthority writes the authority as an upstream should see it: without the port
// that its scheme has by default (RFC 9110, section 4.2).
func JoinAuthority(host string, port uint16, tls bool) string {
	if tls && port == 443 || !tls && port == 80 {
		if strings.Contains(host, ":") {
			return "[" + host + "]"
		}
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
