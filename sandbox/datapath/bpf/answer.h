// SPDX-License-Identifier: Apache-2.0
//
// What a sandbox is told of a datagram that its port refused: ICMP destination
// unreachable, so that a client of QUIC turns to TCP at once and not when a
// timer ends. The port turns the frame itself round, so nobody else can be told.

#ifndef SALLYPORT_ANSWER_H
#define SALLYPORT_ANSWER_H

#include "state.h"

// Port unreachable is the code that every stack reports to a connected socket
// as ECONNREFUSED. linux/icmp.h includes the C library's headers.
#define ICMP_DEST_UNREACH 3
#define ICMP_PORT_UNREACH 3

// answer is RFC 792's destination unreachable message.
struct answer {
	struct iphdr ip;
	__u8 type, code;
	__u16 checksum;
	__u32 unused;
	struct iphdr about; // the datagram's header
	__u8 start[8];      // and what comes after it
};

// More than this and the rest are dropped in silence.
#define ANSWER_EVERY 10000000ULL // nanoseconds, in the long run
#define ANSWER_BURST 100

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, __u32);   // generation
	__type(value, __u64); // nanoseconds since boot
	__uint(max_entries, 16384);
} answered SEC(".maps");

// spare takes a token from the generation's bucket, if there is one. The bucket
// is the time up to which its tokens are spent (the virtual scheduling algorithm
// of ITU-T I.371, annex A); who loses a race for it gets none.
static __always_inline int spare(__u32 generation)
{
	__u64 now = bpf_ktime_get_boot_ns();
	__u64 full = now - ANSWER_BURST * ANSWER_EVERY;
	__u64 *spent = bpf_map_lookup_elem(&answered, &generation), was, from;

	if (!spent) {
		from = full + ANSWER_EVERY;
		return !bpf_map_update_elem(&answered, &generation, &from, BPF_NOEXIST);
	}
	was = *spent;
	from = was > full ? was : full;
	if (from + ANSWER_EVERY > now)
		return 0;
	return __sync_val_compare_and_swap(spent, was, from + ANSWER_EVERY) == was;
}

// internet is the checksum of RFC 1071 of n bytes, a multiple of 4.
static __always_inline __u16 internet(void *from, __u32 n)
{
	__u32 sum = bpf_csum_diff(0, 0, from, n, 0);

	sum = (sum & 0xffff) + (sum >> 16);
	return ~((sum & 0xffff) + (sum >> 16));
}

// answer turns a refused datagram round, as the answer to it.
static __noinline int answer(struct __sk_buff *skb, __u32 generation)
{
	struct mac was[2], is[2];
	struct answer a = {};

	if (bpf_skb_load_bytes(skb, 0, was, sizeof(was)) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, &a.about, sizeof(a.about) + sizeof(a.start)) || !spare(generation))
		return TCX_DROP;
	is[0] = was[1];
	is[1] = was[0];
	a.ip.version = 4;
	a.ip.ihl = sizeof(a.ip) / 4;
	a.ip.tos = 0xc0; // RFC 1812, 4.3.2.5: internetwork control
	a.ip.tot_len = bpf_htons(sizeof(a));
	a.ip.frag_off = bpf_htons(IP_DONT_FRAGMENT);
	a.ip.ttl = 64;
	a.ip.protocol = IPPROTO_ICMP;
	a.ip.saddr = cfg.gateway;
	a.ip.daddr = a.about.saddr;
	a.ip.check = internet(&a.ip, sizeof(a.ip));
	a.type = ICMP_DEST_UNREACH;
	a.code = ICMP_PORT_UNREACH;
	a.checksum = internet(&a.type, sizeof(a) - sizeof(a.ip));
	// The kernel may still owe the datagram its checksum (CHECKSUM_PARTIAL), at
	// what now are the unused bytes 6 and 7 of the ICMP header. Should a device
	// put it there: the sum of a whole ICMP message is zero, 0xffff is written
	// for it, and that is a zero to the checksum too.
	if (bpf_skb_change_tail(skb, ETH_HLEN + sizeof(a), 0) ||
	    bpf_skb_store_bytes(skb, 0, is, sizeof(is), BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN, &a, sizeof(a), BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH))
		return TCX_DROP;
	count(skb, ANSWERED);
	return bpf_redirect(skb->ifindex, 0);
}

#endif
