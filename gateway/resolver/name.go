package resolver

import "strings"

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
