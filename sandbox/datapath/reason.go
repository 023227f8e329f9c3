package datapath

import "fmt"

// Reason is why a frame was dropped. The set is closed. The numbers are those of
// bpf/reason.h, as wide as in programs and pinned maps, so that a number of a later
// version is not taken for one of these.
type Reason uint32

const (
	Unknown      = Reason(guardReasonUNKNOWN)
	Unattached   = Reason(guardReasonUNATTACHED)    // from or to a port that nobody vouches for
	BadMAC       = Reason(guardReasonBAD_MAC)       // a source MAC address that is not the sandbox's
	BadAddress   = Reason(guardReasonBAD_ADDRESS)   // a source IP address that is not the sandbox's
	BadARP       = Reason(guardReasonBAD_ARP)       // ARP for others, or in others' name
	EastWest     = Reason(guardReasonEAST_WEST)     // to another address of the subnet
	IPv6         = Reason(guardReasonIPV6)          //
	Neighbour    = Reason(guardReasonNEIGHBOUR)     // IPv6 neighbour discovery, router advertisements
	VLAN         = Reason(guardReasonVLAN)          // any 802.1Q or 802.1ad tag
	STP          = Reason(guardReasonSTP)           // 802.2 frames, spanning tree's among them
	EtherType    = Reason(guardReasonETHERTYPE)     // neither ARP nor IP
	Fragment     = Reason(guardReasonFRAGMENT)      //
	Options      = Reason(guardReasonOPTIONS)       // IPv4 options, source routes among them
	ICMP         = Reason(guardReasonICMP)          //
	QUIC         = Reason(guardReasonQUIC)          // UDP port 443
	DNS          = Reason(guardReasonDNS)           // to another resolver
	UDP          = Reason(guardReasonUDP)           // any other
	Protocol     = Reason(guardReasonPROTOCOL)      // neither TCP, UDP nor ICMP
	Malformed    = Reason(guardReasonMALFORMED)     // headers cut short, or that contradict themselves
	Destination  = Reason(guardReasonDESTINATION)   // loopback, multicast …, or past the gateway's MAC address
	Stale        = Reason(guardReasonSTALE)         // the stamp is another endpoint's, or rewritten under way
	NoListener   = Reason(guardReasonNO_LISTENER)   // the gateway does not listen: the daemon is down
	NoResolver   = Reason(guardReasonNO_RESOLVER)   // the resolver does not listen on the gateway's address
	NotHost      = Reason(guardReasonNOT_HOST)      // to a sandbox, and not sent by this host
	NotAddressed = Reason(guardReasonNOT_ADDRESSED) // to a sandbox, and addressed to another
	Offline      = Reason(guardReasonOFFLINE)       // of a sandbox that is to have no network
	HostProcess  = Reason(guardReasonHOST_PROCESS)  // to a sandbox, from a process of this host that is not the daemon
	reasons      = Reason(guardReasonREASONS)
)

var reasonNames = [reasons]string{
	Unknown:      "unknown",
	Unattached:   "unattached",
	BadMAC:       "bad-mac",
	BadAddress:   "bad-address",
	BadARP:       "bad-arp",
	EastWest:     "east-west",
	IPv6:         "ipv6",
	Neighbour:    "ipv6-neighbour",
	VLAN:         "vlan",
	STP:          "stp",
	EtherType:    "ethertype",
	Fragment:     "fragment",
	Options:      "ip-options",
	ICMP:         "icmp",
	QUIC:         "quic",
	DNS:          "dns",
	UDP:          "udp",
	Protocol:     "protocol",
	Malformed:    "malformed",
	Destination:  "destination",
	Stale:        "stale",
	NoListener:   "no-listener",
	NoResolver:   "no-resolver",
	NotHost:      "not-host",
	NotAddressed: "not-addressed",
	Offline:      "offline",
	HostProcess:  "host-process",
}

// String is one word, for events and metrics.
func (r Reason) String() string {
	if r >= reasons {
		return fmt.Sprintf("Reason(%d)", uint32(r))
	}
	return reasonNames[r]
}

// FromSandbox reports whether the sandbox sent the frame that was dropped. Otherwise the
// frame was on its way to the sandbox.
func (r Reason) FromSandbox() bool { return r != NotHost && r != NotAddressed && r != HostProcess }

// Attempt reports whether no ordinary program sends such a frame: a sender in another's
// name, a VLAN's tag, a source route, a protocol that is none of TCP, UDP and ICMP, another
// sandbox's address. A packet of a program that does not know where it runs, as mDNS, QUIC
// or a query to a public resolver, is none.
func (r Reason) Attempt() bool {
	switch r {
	case BadMAC, BadAddress, BadARP, EastWest, VLAN, Options, Protocol:
		return true
	}
	return false
}
