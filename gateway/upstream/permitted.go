package upstream

import (
	"errors"
	"fmt"
	"net/netip"

	"sallyport/internal/hostname"
)

// Errors of a host that is never looked up.
var (
	errNotHost = errors.New("not a host name")
	errNumeric = errors.New("reads as an IP address in an unusual spelling: write it as four decimal numbers, or as RFC 4291 says")
)

// permitted returns an address's class and whether it may be dialled.
//
//   - Public may.
//   - Unspecified, Multicast and Broadcast may not.
//   - Metadata may if a rule names that single address.
//   - Local may if a rule names it in particular: a prefix that also covers
//     what is outside of the sandbox network or address does not name it.
//   - Any other may if a rule's prefix contains it; so must an IPv4 address
//     that it would be translated to, unless that one is public.
func permitted(a netip.Addr, named, local []netip.Prefix) (Class, bool) {
	class, home := classify(a, local)
	switch class {
	case Public:
		return class, true
	case Unspecified, Multicast, Broadcast:
		return class, false
	}
	for _, n := range named {
		switch {
		case !n.Contains(a):
		case class == Metadata && !n.IsSingleIP():
		case class == Local && n.Bits() < home.Bits():
		default:
			if inner, ok := embedded(a); ok {
				return permitted(inner, named, local)
			}
			return class, true
		}
	}
	return class, false
}

// classify is Classify with this host's own addresses and networks told apart;
// home is the narrowest of those that contain a. All of loopback stays Loopback:
// who names it means this host.
func classify(a netip.Addr, local []netip.Prefix) (class Class, home netip.Prefix) {
	class = Classify(a)
	switch class {
	case Loopback, Unspecified, Multicast, Broadcast, Metadata:
		return class, home
	}
	for _, p := range local {
		p = unmapped(p)
		if p.Contains(a) && (!home.IsValid() || p.Bits() > home.Bits()) {
			class, home = Local, p
		}
	}
	return class, home
}

// parseAddresses reads a rule's upstream addresses.
func parseAddresses(texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, s := range texts {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			a, err := netip.ParseAddr(s)
			if err != nil || a.Zone() != "" {
				return nil, fmt.Errorf("upstream.addresses: %q is neither an IP address nor a CIDR prefix", s)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		all = append(all, unmapped(p).Masked())
	}
	return all, nil
}

// unmapped turns a prefix of IPv4-mapped addresses into the IPv4 prefix.
func unmapped(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p
}

// checkHost returns the address that a host is the text of, or none for a name.
// A text that C libraries and browsers read as an address although it is not written like
// one (inet_aton(3): 127.1, 0x7f.1, 2130706433) is refused, not looked up:
// whoever decided on it may have read it otherwise.
func checkHost(host string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" {
			return netip.Addr{}, errNotHost
		}
		return a.Unmap(), nil
	}
	if !hostname.Valid(host) {
		return netip.Addr{}, errNotHost
	}
	if hostname.Numeric(host) { // no such top-level domain exists
		return netip.Addr{}, errNumeric
	}
	return netip.Addr{}, nil
}
