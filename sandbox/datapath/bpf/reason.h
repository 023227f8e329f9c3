// SPDX-License-Identifier: Apache-2.0
//
// Why a frame was dropped. The numbers are in pinned maps: append only.

#ifndef SALLYPORT_REASON_H
#define SALLYPORT_REASON_H

enum reason {
	UNKNOWN,
	UNATTACHED,
	BAD_MAC,
	BAD_ADDRESS,
	BAD_ARP,
	EAST_WEST,
	IPV6,
	NEIGHBOUR,
	VLAN,
	STP,
	ETHERTYPE,
	FRAGMENT,
	OPTIONS,
	ICMP,
	QUIC,
	DNS,
	UDP,
	PROTOCOL,
	MALFORMED,
	DESTINATION,
	STALE,
	NO_LISTENER,
	NO_RESOLVER,
	NOT_HOST,
	NOT_ADDRESSED,
	OFFLINE,
	HOST_PROCESS,
	REASONS, // how many
};

// Slots of the counters map: the reasons, and from 56 on what passed.
enum slot {
	SENT = 56,
	DELIVERED,
	ACCEPTED,
	ANSWERED, // not passed on, but turned round
	SLOTS = 64,
};

#endif
