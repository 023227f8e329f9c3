package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"sallyport/internal/hostname"
)

// destination is a parsed EgressRule.Destination.
type destination struct {
	kind   destinationKind
	host   string       // exact and wildcard: A-labels, lower case, without "*."
	prefix netip.Prefix // address: masked
	port   uint16       // 0 when bare
}

type destinationKind int

const (
	exactHost    destinationKind = iota
	wildcardHost                 // any depth below host, not host itself
	addressRange                 // an IP address or CIDR prefix
)

// key is the destination's name in data.sallyport.index.
func (d destination) key() string {
	switch d.kind {
	case wildcardHost:
		return "*." + d.host
	case addressRange:
		return d.prefix.String()
	default:
		return d.host
	}
}

// same reports whether d and e name the same hosts or addresses, on any port.
func (d destination) same(e destination) bool {
	return d.kind == e.kind && d.host == e.host && d.prefix == e.prefix
}

// hostProfile turns a name into A-labels as a resolver would look it up (UTS 46
// and RFC 5891), but leaves underscores alone, which real names have.
var hostProfile = idna.New(
	idna.MapForLookup(),
	idna.BidiRule(),
	idna.StrictDomainName(false),
	idna.VerifyDNSLength(true),
)

// parseDestination reads host, *.host, an address or a prefix, with an optional
// port. Its errors say what to write instead.
func parseDestination(s string) (destination, error) {
	switch {
	case s == "":
		return destination{}, errors.New("is missing; write a host, *.host, an IP address or a CIDR prefix")
	case strings.Contains(s, "://"):
		return destination{}, fmt.Errorf("%q is a URL; write the host only, and its paths under paths", s)
	case strings.ContainsAny(s, " \t\r\n"):
		return destination{}, fmt.Errorf("%q has white space in it; write one destination to a rule", s)
	case s == "*" || strings.HasPrefix(s, "*:"):
		return destination{}, fmt.Errorf("%q would match every host; name a domain, as in \"*.example.com\"", s)
	case strings.Contains(s, "/"):
		return parsePrefix(s)
	}
	if addr, err := netip.ParseAddr(s); err == nil {
		return addressDestination(addr, 0)
	}
	host, port, err := splitPort(s)
	if err != nil {
		return destination{}, err
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addressDestination(addr, port)
	}
	d := destination{kind: exactHost, port: port}
	if rest, ok := strings.CutPrefix(host, "*."); ok {
		d.kind, host = wildcardHost, rest
	}
	if strings.Contains(host, "*") {
		return destination{}, fmt.Errorf("%q has a * where none can be; write \"*.\" once, at the start", s)
	}
	d.host, err = asciiHost(host)
	return d, err
}

func parsePrefix(s string) (destination, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if _, rest, ok := strings.Cut(s, "/"); ok && strings.Contains(rest, ":") && !strings.Contains(rest, "/") {
			return destination{}, fmt.Errorf("%q has a port after a prefix; write the port under ports", s)
		}
		if addr, _, _ := strings.Cut(s, "/"); strings.Trim(addr, "0123456789abcdefABCDEF.:") != "" {
			return destination{}, fmt.Errorf("%q has a path in it; write the host only, and its paths under paths", s)
		}
		return destination{}, fmt.Errorf("%q is not a CIDR prefix; write one as 10.20.0.0/16 or 2001:db8::/32", s)
	}
	if p.Addr().Is4In6() {
		return destination{}, fmt.Errorf("%q is an IPv4 prefix inside IPv6; write the IPv4 prefix", s)
	}
	if p != p.Masked() {
		return destination{}, fmt.Errorf("%q has bits set beyond its length; write %s", s, p.Masked())
	}
	return destination{kind: addressRange, prefix: p}, nil
}

func addressDestination(addr netip.Addr, port uint16) (destination, error) {
	if addr.Zone() != "" {
		return destination{}, fmt.Errorf("%q has a zone; write the address without it", addr)
	}
	addr = addr.Unmap()
	return destination{kind: addressRange, prefix: netip.PrefixFrom(addr, addr.BitLen()), port: port}, nil
}

func splitPort(s string) (host string, port uint16, err error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, 0, nil
	}
	n, err := strconv.ParseUint(s[i+1:], 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("%q has no port from 1 to 65535 after the colon; write one as api.example.com:8443", s)
	}
	host = s[:i]
	if bare, ok := strings.CutPrefix(host, "["); ok {
		host = strings.TrimSuffix(bare, "]")
	}
	return host, uint16(n), nil
}

// asciiHost returns a name as the decisions compare it: A-labels, lower case,
// without the trailing dot.
func asciiHost(s string) (string, error) {
	host := strings.TrimSuffix(s, ".")
	ascii, err := hostProfile.ToASCII(host)
	if err != nil || ascii == "" {
		return "", fmt.Errorf("%q is not a host name; write one as api.example.com", s)
	}
	if again, err := hostProfile.ToASCII(ascii); err != nil || again != ascii {
		// Of a byte that is no UTF-8 the library makes a label that is none.
		return "", fmt.Errorf("%q is not a host name; write one as api.example.com", s)
	}
	if !hostname.Valid(ascii) {
		return "", fmt.Errorf("%q is not a host name; letters, digits, '-', '_' and dots make one", s)
	}
	if hostname.Numeric(ascii) {
		return "", fmt.Errorf("%q could be read as an IP address; write the address in full, as 10.0.0.1", s)
	}
	return ascii, nil
}

// readHost brings a host that a sandbox asked for into the form that rules are
// kept in. A name gives no address.
func readHost(s string) (host string, addr netip.Addr, err error) {
	if strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) {
		// Some letters, as U+0130 and U+212A, are ASCII in lower case.
		return "", netip.Addr{}, fmt.Errorf("%.253q is not a host name in A-labels", s)
	}
	host = strings.TrimSuffix(strings.ToLower(s), ".")
	if hostname.Valid(host) && !hostname.Numeric(host) {
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
