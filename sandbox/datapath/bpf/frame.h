// SPDX-License-Identifier: Apache-2.0
//
// What one frame says about itself.

#ifndef SALLYPORT_FRAME_H
#define SALLYPORT_FRAME_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "reason.h"

// enum tcx_action_base of linux/bpf.h 6.6; Debian 12's headers are older.
#define TCX_NEXT -1
#define TCX_DROP 2
#define TCX_REDIRECT 7

// linux/if_arp.h includes the C library's headers.
#define ARPHRD_ETHER 1
#define ARPOP_REQUEST 1
#define ARPOP_REPLY 2

#define IP_DONT_FRAGMENT 0x4000
#define IP_OFFSET_MASK 0x3fff // more fragments, and the offset
#define PORT_DNS 53
#define PORT_AGENT 1023 // sandbox/agent/wire
#define PORT_QUIC 443
#define IPPROTO_ICMP6 58

// Flags of TCP, as they stand in its header.
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

struct mac {
	__u8 addr[6];
} __attribute__((packed, aligned(2)));

// arp_ipv4 is RFC 826 for Ethernet and IPv4.
struct arp_ipv4 {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_len;
	__u8 protocol_len;
	__be16 op;
	struct mac sender;
	__be32 sender_ip;
	struct mac target;
	__be32 target_ip;
} __attribute__((packed, aligned(2)));

struct frame {
	struct mac dst, src;
	__u16 ethertype; // host order
	__u8 proto;      // IPPROTO_*, of IPv6 the first next header
	__u8 opens;      // TCP: a SYN without an acknowledgement
	__u8 flags;      // TCP_*
	__be16 sport, dport;
	__be32 saddr[4], daddr[4]; // IPv4 as ::ffff:a.b.c.d
	__u32 seq, ack, payload;   // TCP, host order; the payload in bytes
	struct arp_ipv4 arp;
};

static __always_inline int same(const struct mac *a, const struct mac *b)
{
	const __u16 *x = (const void *)a, *y = (const void *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2];
}

static __always_inline int broadcast(const struct mac *m)
{
	return (m->addr[0] & m->addr[1] & m->addr[2] & m->addr[3] & m->addr[4] & m->addr[5]) == 0xff;
}

static __always_inline void mapped(__be32 to[4], __be32 addr)
{
	to[0] = 0;
	to[1] = 0;
	to[2] = bpf_htonl(0xffff);
	to[3] = addr;
}

static __always_inline int parse_ipv4(struct __sk_buff *skb, struct frame *f, void *at, void *end)
{
	__u32 there = skb->len - ETH_HLEN, total;
	struct iphdr *ip = at;
	struct tcphdr *tcp = at + sizeof(*ip);
	struct udphdr *udp = at + sizeof(*ip);

	if ((void *)(ip + 1) > end)
		return MALFORMED;
	mapped(f->saddr, ip->saddr);
	mapped(f->daddr, ip->daddr);
	f->proto = ip->protocol;
	if (ip->version != 4 || ip->ihl < 5)
		return MALFORMED;
	if (ip->ihl > 5)
		return OPTIONS;
	if (ip->frag_off & bpf_htons(IP_OFFSET_MASK))
		return FRAGMENT;
	total = bpf_ntohs(ip->tot_len);
	if (!total && skb->gso_size)
		total = there; // more than 64 KB, which the field cannot say
	// What a packet is judged by is in it, and not in the frame's padding.
	if (total > there || total < sizeof(*ip))
		return MALFORMED;
	if (ip->protocol == IPPROTO_TCP) {
		if (total < sizeof(*ip) + sizeof(*tcp) || (void *)(tcp + 1) > end)
			return MALFORMED;
		f->sport = tcp->source;
		f->dport = tcp->dest;
		f->opens = tcp->syn && !tcp->ack;
		f->flags = ((__u8 *)tcp)[13];
		f->seq = bpf_ntohl(tcp->seq);
		f->ack = bpf_ntohl(tcp->ack_seq);
		f->payload = total - sizeof(*ip) - tcp->doff * 4;
		if (!tcp->source || !tcp->dest || tcp->doff < 5 || total < sizeof(*ip) + tcp->doff * 4)
			return MALFORMED;
	} else if (ip->protocol == IPPROTO_UDP) {
		if (total < sizeof(*ip) + sizeof(*udp) || (void *)(udp + 1) > end)
			return MALFORMED;
		f->sport = udp->source;
		f->dport = udp->dest;
	}
	return 0;
}

// parse_ipv6 reads only what the record of a drop shows: no IPv6 frame passes.
static __always_inline int parse_ipv6(struct frame *f, void *at, void *end)
{
	struct ipv6hdr *ip = at;
	struct udphdr *udp = at + sizeof(*ip);
	__u8 *type = at + sizeof(*ip);

	if ((void *)(ip + 1) > end)
		return MALFORMED;
	__builtin_memcpy(f->saddr, &ip->saddr, sizeof(f->saddr));
	__builtin_memcpy(f->daddr, &ip->daddr, sizeof(f->daddr));
	f->proto = ip->nexthdr;
	if ((ip->nexthdr == IPPROTO_TCP || ip->nexthdr == IPPROTO_UDP) && (void *)(udp + 1) <= end) {
		f->sport = udp->source; // where TCP has its ports too
		f->dport = udp->dest;
	}
	// RFC 4861: router and neighbour solicitation, advertisement, redirect.
	if (ip->nexthdr == IPPROTO_ICMP6 && (void *)(type + 1) <= end && *type >= 133 && *type <= 137)
		return NEIGHBOUR;
	return IPV6;
}

static __always_inline int parse_arp(struct frame *f, void *at, void *end)
{
	struct arp_ipv4 *arp = at;

	if ((void *)(arp + 1) > end)
		return MALFORMED;
	f->arp = *arp;
	mapped(f->saddr, arp->sender_ip);
	mapped(f->daddr, arp->target_ip);
	if (arp->hardware != bpf_htons(ARPHRD_ETHER) || arp->protocol != bpf_htons(ETH_P_IP) ||
	    arp->hardware_len != 6 || arp->protocol_len != 4)
		return BAD_ARP;
	return 0;
}

// HEADERS is the most that parse reads.
#define HEADERS (ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(struct udphdr))

// parse fills f and returns 0 for ARP and whole IPv4 frames without options;
// for all else the reason to drop it.
static __always_inline int parse(struct __sk_buff *skb, struct frame *f)
{
	__u32 want = skb->len < HEADERS ? skb->len : HEADERS;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth;

	// Of a frame from a packet socket only the Ethernet header need be there.
	if (data + want > end) {
		if (bpf_skb_pull_data(skb, want))
			return MALFORMED;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
	}
	eth = data;
	if ((void *)(eth + 1) > end)
		return MALFORMED;
	__builtin_memcpy(&f->dst, eth->h_dest, sizeof(f->dst));
	__builtin_memcpy(&f->src, eth->h_source, sizeof(f->src));
	f->ethertype = bpf_ntohs(eth->h_proto);

	// The kernel moves an outer tag out of the data before any program runs.
	if (skb->vlan_present || f->ethertype == ETH_P_8021Q || f->ethertype == ETH_P_8021AD)
		return VLAN;
	switch (f->ethertype) {
	case ETH_P_IP:
		return parse_ipv4(skb, f, eth + 1, end);
	case ETH_P_IPV6:
		return parse_ipv6(f, eth + 1, end);
	case ETH_P_ARP:
		return parse_arp(f, eth + 1, end);
	}
	// Below 0x600 the field is a length: 802.2, which spanning tree uses.
	return f->ethertype < ETH_P_802_3_MIN ? STP : ETHERTYPE;
}

#endif
