// Package hostname says what can be a host's name. Policy, gateway, resolver,
// certificates and dialler ask it, so that no two of them take one text for two
// hosts.
package hostname

import "strings"

// Valid reports whether a name, in lower case and without the trailing dot, can be a
// host's: RFC 1123, section 2.1, and the underscore that is in use. An IPv4 address
// and what is [Numeric] are names by that.
func Valid(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	label := 0 // its length so far
	for i := range len(s) {
		switch c := s[i]; {
		case c == '.':
			if label == 0 || s[i-1] == '-' {
				return false
			}
			label = 0
			continue
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_':
		case c == '-' && label > 0:
		default:
			return false
		}
		if label++; label > 63 {
			return false
		}
	}
	return label > 0 && s[len(s)-1] != '-'
}

// Label reports whether a text can be one label of a host's name, without the underscore, as
// names of Kubernetes' namespaces and of sandboxes are (RFC 1123).
func Label(s string) bool { return Valid(s) && !strings.ContainsAny(s, "._") }

// Numeric reports whether the last label of a name in lower case is a number, so
// that inet_aton(3), BSD's and the C libraries', or the WHATWG URL standard may take
// the name for an IPv4 address: 127.1, 0x7f000001, 2130706433. Some read 0x as 0,
// and numbers that are too large modulo 2^32.
func Numeric(s string) bool {
	last := s[strings.LastIndexByte(s, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}
