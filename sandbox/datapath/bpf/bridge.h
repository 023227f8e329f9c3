// SPDX-License-Identifier: Apache-2.0
//
// The program of the bridge device: default deny, and steering. Assigning the
// socket on a port would be lost with net.bridge.bridge-nf-call-iptables=1.

#ifndef SALLYPORT_BRIDGE_H
#define SALLYPORT_BRIDGE_H

#include "state.h"

static __always_inline void tuple_of(struct bpf_sock_tuple *t, const struct frame *f)
{
	t->ipv4.saddr = f->saddr[3];
	t->ipv4.daddr = f->daddr[3];
	t->ipv4.sport = f->sport;
	t->ipv4.dport = f->dport;
}

// alive says whether the gateway's listener is there.
static __always_inline int alive(void)
{
	struct bpf_sock *sk;
	__u32 zero = 0;

	sk = bpf_map_lookup_elem(&listener, &zero);
	if (!sk)
		return 0;
	bpf_sk_release(sk);
	return 1;
}

// steer gives the packet to the gateway's listener.
static __always_inline int steer(struct __sk_buff *skb)
{
	struct bpf_sock *sk;
	__u32 zero = 0;
	long err;

	sk = bpf_map_lookup_elem(&listener, &zero);
	if (!sk)
		return NO_LISTENER;
	err = bpf_sk_assign(skb, sk, 0);
	bpf_sk_release(sk);
	return err ? NO_LISTENER : 0;
}

// ours says whether a socket is the daemon's. Until a connection is accepted, and
// after it has ended, the kernel keeps less than a socket (0): of a connection that
// was steered, or that passed as a whole socket.
static __always_inline int ours(struct bpf_sock *sk)
{
	struct bpf_sock *whole = bpf_sk_fullsock(sk);

	return !whole || whole->mark == cfg.mark || whole->mark == cfg.opening;
}

// resolve_udp lets a question through to our resolver and to no other: a name server
// of the host that listens on every address would forward it.
static __always_inline int resolve_udp(struct __sk_buff *skb, const struct frame *f)
{
	struct bpf_sock_tuple t = {};
	struct bpf_sock *sk;
	int own;

	tuple_of(&t, f);
	sk = bpf_sk_lookup_udp(skb, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return NO_RESOLVER;
	own = ours(sk);
	bpf_sk_release(sk);
	return own && alive() ? 0 : NO_RESOLVER;
}

// without_syn takes the SYN from a segment for a connection in TIME-WAIT. The kernel would
// hand it to a listener of the host for that port (TCP_TW_SYN), whichever process has it.
// Without it, the kernel's acknowledgement makes the sandbox reset the connection and try
// again. To steer the SYN would not do: it is refused as a duplicate until TIME-WAIT ends.
static __always_inline int without_syn(struct __sk_buff *skb)
{
	const __u32 tcp = ETH_HLEN + sizeof(struct iphdr);
	__be16 was, is;

	if (bpf_skb_load_bytes(skb, tcp + 12, &was, sizeof(was))) // data offset and flags
		return MALFORMED;
	is = was & ~bpf_htons(TCP_SYN);
	if (bpf_l4_csum_replace(skb, tcp + offsetof(struct tcphdr, check), was, is, sizeof(is)) ||
	    bpf_skb_store_bytes(skb, tcp + 12, &is, sizeof(is), BPF_F_RECOMPUTE_CSUM))
		return MALFORMED;
	return 0;
}

// answers_probe says whether a segment may be for another process's socket, which has
// opened its connection then: no listener of such a process is ever given a SYN.
static __always_inline int answers_probe(const struct frame *f, __u32 generation)
{
	return !f->opens && f->daddr[3] == cfg.gateway && is_probe_port(generation, f->sport);
}

// deliver_tcp finds the live socket of a packet first: of a connection that was
// steered before, or one that the daemon itself opened, or root's to a probe port. What
// has none, or that of another process, is for the resolver or the gateway.
static __always_inline int deliver_tcp(struct __sk_buff *skb, const struct frame *f, const struct face *own, __u32 generation)
{
	int dns = f->daddr[3] == cfg.gateway && f->dport == bpf_htons(PORT_DNS);
	struct bpf_sock_tuple t = {};
	struct bpf_sock *sk;
	int daemons = 0;

	tuple_of(&t, f);
	sk = bpf_skc_lookup_tcp(skb, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (sk) {
		__u32 state = sk->state;

		daemons = ours(sk);
		bpf_sk_release(sk);
		if (state != BPF_TCP_LISTEN && (daemons || answers_probe(f, generation)))
			return f->opens && state == BPF_TCP_TIME_WAIT ? without_syn(skb) : 0;
	}
	if (own->offline)
		return OFFLINE;
	if (dns)
		return daemons && alive() ? 0 : NO_RESOLVER;
	return steer(skb);
}

// pass lets the programs behind ours have their say too.
static __always_inline int pass(struct __sk_buff *skb, __u32 mark)
{
	skb->mark = mark;
	count(skb, ACCEPTED);
	return TCX_NEXT;
}

SEC("tcx/ingress")
int bridge_in(struct __sk_buff *skb)
{
	__u32 generation = skb->mark;
	const struct face *own = attached(generation);
	struct frame f = {};
	int reason = parse(skb, &f);

	if (!own)
		return refuse(skb, 0, UNATTACHED);
	// The port has judged the frame; bridge netfilter may have changed it since.
	if (!reason && (!same(&f.src, &own->mac) || f.saddr[3] != own->address))
		reason = STALE;
	if (reason)
		return refuse(skb, generation, reason);
	if (f.ethertype == ETH_P_ARP)
		return pass(skb, 0);
	switch (f.proto) {
	case IPPROTO_TCP:
		reason = deliver_tcp(skb, &f, own, generation);
		break;
	case IPPROTO_UDP:
		reason = f.daddr[3] == cfg.gateway && f.dport == bpf_htons(PORT_DNS) ? resolve_udp(skb, &f) : UDP;
		break;
	default:
		reason = PROTOCOL;
	}
	if (reason)
		return refuse(skb, generation, reason);
	return pass(skb, cfg.mark);
}

#endif
