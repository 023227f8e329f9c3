package rule

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"sallyport/internal/hostname"
)

// Destination is a parsed EgressRule.Destination.
type Destination struct {
	Kind   destinationKind
	Host   string       // exact and wildcard: A-labels, lower case, without "*."
	prefix netip.Prefix // address: masked
	Port   uint16       // 0 when bare
}

type destinationKind int

const (
	ExactHost    destinationKind = iota
	WildcardHost                 // any depth below host, not host itself
	AddressRange                 // an IP address or CIDR prefix
)

// Key is the destination as rules write it, without a port.
func (d Destination) Key() string {
	switch d.Kind {
	case WildcardHost:
		return "*." + d.Host
	case AddressRange:
		return d.prefix.String()
	default:
		return d.Host
	}
}

// Same reports whether d and e name the same hosts or addresses, on any port.
func (d Destination) Same(e Destination) bool {
	return d.Kind == e.Kind && d.Host == e.Host && d.prefix == e.prefix
}

// ParseDestination reads host, *.host, an address or a prefix, with an optional
// port. Its errors say what to write instead.
func ParseDestination(s string) (Destination, error) {
	switch {
	case s == "":
		return Destination{}, errors.New("is missing; write a host, *.host, an IP address or a CIDR prefix")
	case strings.Contains(s, "://"):
		return Destination{}, fmt.Errorf("%q is a URL; write the host only, and its paths under paths", s)
	case strings.ContainsAny(s, " \t\r\n"):
		return Destination{}, fmt.Errorf("%q has white space in it; write one destination to a rule", s)
	case s == "*" || strings.HasPrefix(s, "*:"):
		return Destination{}, fmt.Errorf("%q would match every host; name a domain, as in \"*.example.com\"", s)
	case strings.Contains(s, "/"):
		return parsePrefix(s)
	}
	if addr, err := netip.ParseAddr(s); err == nil {
		return addressDestination(addr, 0)
	}
	host, port, err := splitPort(s)
	if err != nil {
		return Destination{}, err
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addressDestination(addr, port)
	}
	d := Destination{Kind: ExactHost, Port: port}
	if rest, ok := strings.CutPrefix(host, "*."); ok {
		d.Kind, host = WildcardHost, rest
	}
	if strings.Contains(host, "*") {
		return Destination{}, fmt.Errorf("%q has a * where none can be; write \"*.\" once, at the start", s)
	}
	d.Host, err = hostname.ASCII(host)
	return d, err
}

func parsePrefix(s string) (Destination, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if _, rest, ok := strings.Cut(s, "/"); ok && strings.Contains(rest, ":") && !strings.Contains(rest, "/") {
			return Destination{}, fmt.Errorf("%q has a port after a prefix; write the port under ports", s)
		}
		if addr, _, _ := strings.Cut(s, "/"); strings.Trim(addr, "0123456789abcdefABCDEF.:") != "" {
			return Destination{}, fmt.Errorf("%q has a path in it; write the host only, and its paths under paths", s)
		}
		return Destination{}, fmt.Errorf("%q is not a CIDR prefix; write one as 10.20.0.0/16 or 2001:db8::/32", s)
	}
	if p.Addr().Is4In6() {
		return Destination{}, fmt.Errorf("%q is an IPv4 prefix inside IPv6; write the IPv4 prefix", s)
	}
	if p != p.Masked() {
		return Destination{}, fmt.Errorf("%q has bits set beyond its length; write %s", s, p.Masked())
	}
	return Destination{Kind: AddressRange, prefix: p}, nil
}

func addressDestination(addr netip.Addr, port uint16) (Destination, error) {
	if addr.Zone() != "" {
		return Destination{}, fmt.Errorf("%q has a zone; write the address without it", addr)
	}
	addr = addr.Unmap()
	return Destination{Kind: AddressRange, prefix: netip.PrefixFrom(addr, addr.BitLen()), Port: port}, nil
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

// Has tells whether an input's host or address is the destination's, whatever the
// port.
func (d Destination) Has(s ParsedInput) bool {
	switch d.Kind {
	case WildcardHost:
		return strings.HasSuffix(s.Host, "."+d.Host)
	case AddressRange:
		return s.Addr.IsValid() && d.prefix.Contains(s.Addr)
	}
	return s.Host == d.Host
}

// Holds tells whether e is d or lies within it.
func (d Destination) Holds(e Destination) bool {
	switch {
	case d.Kind == WildcardHost:
		return e.Kind != AddressRange && (strings.HasSuffix(e.Host, "."+d.Host) || e.Kind == WildcardHost && e.Host == d.Host)
	case d.Kind == AddressRange:
		return e.Kind == AddressRange && d.prefix.Bits() <= e.prefix.Bits() && d.prefix.Contains(e.prefix.Addr())
	}
	return d.Same(e)
}
