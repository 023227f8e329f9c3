package hostname

import (
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// lookupProfile turns a name into A-labels as a resolver would look it up (UTS 46
// and RFC 5891), but leaves underscores alone, which real names have.
var lookupProfile = idna.New(
	idna.MapForLookup(),
	idna.BidiRule(),
	idna.StrictDomainName(false),
	idna.VerifyDNSLength(true),
)

// ASCII returns a name as policies compare it: in A-labels and lower case, without the
// trailing dot. Its error says what to write instead.
func ASCII(s string) (string, error) {
	host := strings.TrimSuffix(s, ".")
	ascii, err := lookupProfile.ToASCII(host)
	if err != nil || ascii == "" {
		return "", fmt.Errorf("%q is not a host name; write one as api.example.com", s)
	}
	if again, err := lookupProfile.ToASCII(ascii); err != nil || again != ascii {
		// Of a byte that is no UTF-8 the library makes a label that is none.
		return "", fmt.Errorf("%q is not a host name; write one as api.example.com", s)
	}
	if !Valid(ascii) {
		return "", fmt.Errorf("%q is not a host name; letters, digits, '-', '_' and dots make one", s)
	}
	if Numeric(ascii) {
		return "", fmt.Errorf("%q could be read as an IP address; write the address in full, as 10.0.0.1", s)
	}
	return ascii, nil
}

// Parse brings a host that a sandbox asked for into the form that rules are kept in: a
// name as [ASCII] returns it, or the text of an IP address. A name has no address.
func Parse(s string) (host string, addr netip.Addr, err error) {
	if strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) {
		// Some letters, as U+0130 and U+212A, are ASCII in lower case.
		return "", netip.Addr{}, fmt.Errorf("%.253q is not a host name in A-labels", s)
	}
	host = strings.TrimSuffix(strings.ToLower(s), ".")
	if Valid(host) && !Numeric(host) {
		return host, netip.Addr{}, nil
	}
	addr, err = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if err != nil || addr.Zone() != "" {
		return "", netip.Addr{}, fmt.Errorf("%.253q is neither a host name nor an IP address", s)
	}
	addr = addr.Unmap()
	var text [64]byte
	if string(addr.AppendTo(text[:0])) == host {
		return host, addr, nil
	}
	return addr.String(), addr, nil
}
