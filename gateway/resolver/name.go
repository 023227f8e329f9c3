package resolver

import "strings"

// hostName reports whether a name, in lower case without trailing dot, can be a
// host's: RFC 1123, and the underscore that is in use.
func hostName(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if !hostLabel(label) {
			return false
		}
	}
	return true
}

func hostLabel(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_':
		case c == '-' && 0 < i && i < len(s)-1:
		default:
			return false
		}
	}
	return 0 < len(s) && len(s) <= 63
}

// absent are the domains below which a name that no rule allows does not exist.
// Stub resolvers append such suffixes by themselves (search domains), and would
// take the refusal address of foo.example.com.localdomain for foo.example.com's.
// RFC 6761 and RFC 7686 want invalid and onion to be unknown.
var absent = []string{
	"arpa", "invalid", "lan", "local", "localdomain", "onion",
}

// exists reports whether a refused name gets the refusal address, which explains,
// rather than no such name.
func exists(name string) bool {
	if !strings.Contains(name, ".") {
		return false
	}
	for _, a := range absent {
		if below(name, a) {
			return false
		}
	}
	return true
}

// loopback reports whether RFC 6761 (6.3) gives a name the loopback address.
func loopback(name string) bool { return below(name, "localhost") }

func below(name, domain string) bool {
	rest, ok := strings.CutSuffix(name, domain)
	return ok && (rest == "" || rest[len(rest)-1] == '.')
}
