// SPDX-License-Identifier: Apache-2.0
//
// The two programs of a sandbox's port, the host's end of its veth.

#ifndef SALLYPORT_PORT_H
#define SALLYPORT_PORT_H

#include "answer.h"
#include "flow.h"

// reachable refuses what no TCP connection has business with: this network
// (0/8), loopback (127/8), multicast and above (224/3).
static __always_inline int reachable(__be32 addr)
{
	__u32 first = bpf_ntohl(addr) >> 24;

	return first != 0 && first != 127 && first < 224;
}

static __always_inline int judge_arp(const struct frame *f, const struct face *own)
{
	const struct arp_ipv4 *arp = &f->arp;

	if (!same(&arp->sender, &f->src) || arp->sender_ip != own->address || arp->target_ip != cfg.gateway)
		return BAD_ARP;
	if (arp->op == bpf_htons(ARPOP_REQUEST) && broadcast(&f->dst))
		return 0;
	if (arp->op != bpf_htons(ARPOP_REQUEST) && arp->op != bpf_htons(ARPOP_REPLY))
		return BAD_ARP;
	return bridges(&f->dst) ? 0 : BAD_ARP;
}

// answerable says whether a refused datagram gets an answer: RFC 1122, 3.2.2, has none
// for broadcast, multicast and fragments.
static __always_inline int answerable(const struct frame *f)
{
	__be32 to = f->daddr[3];

	return f->proto == IPPROTO_UDP && bridges(&f->dst) && reachable(to) &&
	       to != cfg.subnet && to != (cfg.subnet | ~cfg.mask);
}

// judge_ipv4 lets of an offline endpoint only pass what may be an answer of its
// agent's or to a probe: the bridge looks whether it is.
static __always_inline int judge_ipv4(const struct frame *f, const struct face *own, __u32 generation)
{
	__be32 to = f->daddr[3];

	if (to != cfg.gateway && (to & cfg.mask) == cfg.subnet)
		return EAST_WEST;
	if (own->offline && (f->proto != IPPROTO_TCP || to != cfg.gateway ||
			     (f->sport != bpf_htons(PORT_AGENT) && !is_probe_port(generation, f->sport))))
		return OFFLINE;
	switch (f->proto) {
	case IPPROTO_TCP:
		if (!reachable(to))
			return DESTINATION;
		break;
	case IPPROTO_UDP:
		if (f->dport != bpf_htons(PORT_DNS))
			return f->dport == bpf_htons(PORT_QUIC) ? QUIC : UDP;
		if (to != cfg.gateway)
			return DNS;
		break;
	case IPPROTO_ICMP:
		return ICMP;
	default:
		return PROTOCOL;
	}
	return bridges(&f->dst) ? 0 : DESTINATION;
}

// forward takes the frame to the bridge device, as come in by it: it would get
// there by the bridge's own ways, which no more frames of a sandbox go through,
// and by the hooks of bridge netfilter on them.
static __always_inline int forward(struct __sk_buff *skb, __u32 generation)
{
	skb->mark = generation;
	count(skb, SENT);
	return bpf_redirect(cfg.link, BPF_F_INGRESS);
}

// port_in sees what the sandbox sends, before the bridge does. It knows the
// sandbox by the interface, and stamps what passes with its generation.
SEC("tcx/ingress")
int port_in(struct __sk_buff *skb)
{
	struct frame f = {};
	__u32 generation = 0;
	int reason = parse(skb, &f);
	const struct face *own = owner(skb, &generation);

	if (!own)
		return refuse(skb, 0, UNATTACHED);
	if (reason == MALFORMED || reason == VLAN)
		return refuse(skb, generation, reason);
	if (!same(&f.src, &own->mac))
		return refuse(skb, generation, BAD_MAC);
	// An address that is not its own says more than how it was sent.
	if (f.ethertype == ETH_P_IP && f.saddr[3] != own->address)
		return refuse(skb, generation, BAD_ADDRESS);
	if (reason)
		return refuse(skb, generation, reason);
	reason = f.ethertype == ETH_P_ARP ? judge_arp(&f, own) : judge_ipv4(&f, own, generation);
	if (!reason)
		return forward(skb, generation);
	refuse(skb, generation, reason);
	return answerable(&f) ? answer(skb, generation) : TCX_DROP;
}

// opened remembers which connections the daemon has begun: it takes the mark for that
// from their sockets at once, and the kernel may have to begin them again.
struct opening {
	__u32 generation;
	__be16 from, to; // ports
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct opening);
	__type(value, __u8);
	__uint(max_entries, 16384);
} opened SEC(".maps");

// from_daemon says whether a packet of this host is of a socket of the daemon's, and
// one that may send it: what is not for opening answers only, whoever has it by now
// and whatever connect(2) has made of it.
static __always_inline int from_daemon(struct __sk_buff *skb, const struct frame *f, __u32 generation, int reason)
{
	struct opening key = {.generation = generation, .from = f->sport, .to = f->dport};
	__u8 yes = 1;

	if (skb->mark == cfg.opening) {
		if (f->opens)
			bpf_map_update_elem(&opened, &key, &yes, BPF_ANY);
		return 1;
	}
	if (skb->mark != cfg.mark)
		return 0;
	if (f->proto != IPPROTO_TCP)
		return 1;
	return !reason && (!f->opens || bpf_map_lookup_elem(&opened, &key));
}

// from_root says whether a packet of this host that is not the daemon's is of a connection
// that a process of root's has opened to a probe port. A listener's answer to a SYN is not.
// A marked socket is the daemon's, whatever it has become. In TIME-WAIT the kernel no longer
// knows whose it was: root's, for no other got there.
static __always_inline int from_root(struct __sk_buff *skb, const struct frame *f, __u32 generation, int reason)
{
	struct bpf_sock *sk = skb->sk;

	if (reason || f->proto != IPPROTO_TCP || skb->mark == cfg.mark || f->saddr[3] != cfg.gateway ||
	    (f->flags & TCP_SYN && !f->opens) || !is_probe_port(generation, f->dport))
		return 0;
	return (sk && sk->state == BPF_TCP_TIME_WAIT) || !bpf_get_socket_uid(skb);
}

// note counts a segment of a connection that the sandbox has opened. A sandbox can
// answer the daemon's SYN with its own, and the daemon's socket that with both flags.
// A probe's numbers are no connection's.
static __always_inline void note(const struct __sk_buff *skb, const struct frame *f, __u32 generation)
{
	struct opening key = {.generation = generation, .from = f->sport, .to = f->dport};

	if (skb->priority == PROBE_PRIORITY)
		return;
	if (!(f->flags & TCP_SYN))
		follow_flow(f);
	else if (!f->opens && !bpf_map_lookup_elem(&opened, &key))
		begin_flow(f, generation);
}

// port_out sees what is about to reach the sandbox.
SEC("tcx/egress")
int port_out(struct __sk_buff *skb)
{
	struct frame f = {};
	__u32 generation = 0;
	int reason = parse(skb, &f);
	const struct face *own = owner(skb, &generation);
	int daemons;

	if (!own)
		return refuse(skb, 0, UNATTACHED);
	// Only what this host made never came in by an interface. An answer came in
	// by this one, as no other ICMP can: what a sandbox sends of it is dropped.
	if (skb->ingress_ifindex && (skb->ingress_ifindex != skb->ifindex || f.proto != IPPROTO_ICMP))
		return refuse(skb, generation, NOT_HOST);
	if (reason && reason != FRAGMENT && reason != OPTIONS)
		return refuse(skb, generation, reason);
	if (f.daddr[3] != own->address)
		return refuse(skb, generation, NOT_ADDRESSED);
	if (!same(&f.dst, &own->mac) && !(f.ethertype == ETH_P_ARP && broadcast(&f.dst)))
		return refuse(skb, generation, NOT_ADDRESSED);
	// A packet has its socket's mark, which takes a capability to set (socket(7)):
	// what a process of the host sends by itself has none. The kernel speaks ARP.
	daemons = skb->ingress_ifindex || f.ethertype == ETH_P_ARP || from_daemon(skb, &f, generation, reason);
	if (!daemons && !from_root(skb, &f, generation, reason))
		return refuse(skb, generation, HOST_PROCESS);
	if (daemons && f.proto == IPPROTO_TCP && !reason)
		note(skb, &f, generation);
	count(skb, DELIVERED);
	return TCX_NEXT;
}

#endif
