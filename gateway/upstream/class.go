package upstream

import "net/netip"

// Class is the kind of an address. The zero Class is Unspecified, which no rule can name.
type Class uint8

// The classes. Only Public is dialled without a rule that names the address.
const (
	Unspecified   Class = iota // 0.0.0.0, :: (on Linux: this host)
	Public                     // what the internet routes
	Local                      // this host's own address or a sandbox network; given by a Pool only
	Loopback                   // RFC 1122, RFC 4291
	Private                    // RFC 1918
	UniqueLocal                // RFC 4193, and site-local before it (RFC 3879)
	LinkLocal                  // RFC 3927, RFC 4291
	Metadata                   // a cloud's instance metadata or credential service
	CGNAT                      // RFC 6598
	Documentation              // RFC 5737, RFC 3849, RFC 9637
	Benchmark                  // RFC 2544, RFC 5180; synthetic addresses are from here
	Multicast                  // RFC 5771, RFC 4291
	Broadcast                  // RFC 919
	NAT64                      // RFC 6052, RFC 8215
	SixToFour                  // RFC 3056, and its relays (RFC 3068)
	Teredo                     // RFC 4380
	Reserved                   // whatever else IANA's special-purpose registries withhold
)

var classNames = [...]string{
	Unspecified: "unspecified", Public: "public", Local: "local", Loopback: "loopback", Private: "private",
	UniqueLocal: "uniqueLocal", LinkLocal: "linkLocal", Metadata: "metadata", CGNAT: "cgnat",
	Documentation: "documentation", Benchmark: "benchmark", Multicast: "multicast", Broadcast: "broadcast",
	NAT64: "nat64", SixToFour: "6to4", Teredo: "teredo", Reserved: "reserved",
}

func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return "reserved"
}

type classPrefix struct {
	prefix netip.Prefix
	class  Class
}

func table(c Class, prefixes ...string) []classPrefix {
	var t []classPrefix
	for _, p := range prefixes {
		t = append(t, classPrefix{netip.MustParsePrefix(p), c})
	}
	return t
}

func concat(tables ...[]classPrefix) (all []classPrefix) {
	for _, t := range tables {
		all = append(all, t...)
	}
	return all
}

// special4 and special6 are IANA's special-purpose address registries and the
// addresses on which clouds hand out credentials. The first match counts.
var special4 = concat(
	table(Metadata,
		"169.254.169.254/32", // AWS, Azure, GCP, OpenStack and most others
		"169.254.169.253/32", // AWS: resolver of the VPC
		"169.254.170.2/32",   // AWS: credentials of ECS tasks
		"169.254.170.23/32",  // AWS: EKS pod identity
		"169.254.0.23/32",    // Tencent
		"100.100.100.200/32", // Alibaba
		"168.63.129.16/32",   // Azure: wire server
		"192.0.0.192/32",     // Oracle
	),
	table(Unspecified, "0.0.0.0/32"),
	table(Broadcast, "255.255.255.255/32"),
	table(Loopback, "127.0.0.0/8"),
	table(Private, "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
	table(LinkLocal, "169.254.0.0/16"),
	table(CGNAT, "100.64.0.0/10"),
	table(Documentation, "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"),
	table(Benchmark, "198.18.0.0/15"),
	table(SixToFour, "192.88.99.0/24"),
	table(Multicast, "224.0.0.0/4"),
	table(Reserved, "0.0.0.0/8", "192.0.0.0/24", "240.0.0.0/4"),
)

var special6 = concat(
	table(Metadata,
		"fd00:ec2::254/128",   // AWS
		"fd00:ec2::253/128",   // AWS: resolver
		"fd00:ec2::23/128",    // AWS: EKS pod identity
		"fd20:ce::254/128",    // GCP
		"fe80::a9fe:a9fe/128", // OpenStack, Oracle
	),
	table(Unspecified, "::/128"),
	table(Loopback, "::1/128"),
	table(UniqueLocal, "fc00::/7", "fec0::/10"),
	table(LinkLocal, "fe80::/10"),
	table(Documentation, "2001:db8::/32", "3fff::/20"),
	table(Benchmark, "2001:2::/48"),
	table(Multicast, "ff00::/8"),
	table(NAT64, "64:ff9b::/96", "64:ff9b:1::/48"),
	table(SixToFour, "2002::/16"),
	table(Teredo, "2001::/32"),
	table(Reserved, "2001::/23"), // RFC 2928
)

var (
	compatible   = netip.MustParsePrefix("::/96")        // RFC 4291, 2.5.5.1: IPv4 in the last 32 bits
	wellKnown64  = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052: IPv4 in the last 32 bits
	sixToFour    = netip.MustParsePrefix("2002::/16")    // RFC 3056: IPv4 after the first 16 bits
	globalPrefix = netip.MustParsePrefix("2000::/3")     // all that IANA has given out
)

// Classify returns the class of an address. An IPv4-mapped address is the IPv4
// address, which is what a socket makes of it. A deprecated IPv4-compatible one
// has the class of the address inside, but is never Public.
func Classify(a netip.Addr) Class {
	a = a.Unmap().WithZone("")
	switch {
	case !a.IsValid():
		return Unspecified
	case a.Is4():
		return lookup(special4, a, Public)
	case globalPrefix.Contains(a):
		return lookup(special6, a, Public)
	}
	c := lookup(special6, a, Reserved)
	if c == Reserved && compatible.Contains(a) {
		if inner := Classify(last4(a)); inner != Public {
			return inner
		}
	}
	return c
}

func lookup(t []classPrefix, a netip.Addr, otherwise Class) Class {
	for _, e := range t {
		if e.prefix.Contains(a) {
			return e.class
		}
	}
	return otherwise
}

// embedded returns the IPv4 address that a translator or relay would carry a
// packet for a on to.
func embedded(a netip.Addr) (netip.Addr, bool) {
	switch b := a.As16(); {
	case a.Is4():
		return netip.Addr{}, false
	case wellKnown64.Contains(a):
		return last4(a), true
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return netip.Addr{}, false
}

func last4(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:16]))
}
