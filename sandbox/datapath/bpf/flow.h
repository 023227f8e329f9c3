// SPDX-License-Identifier: Apache-2.0
//
// What each TCP connection of a sandbox has carried, by the word of this host's own TCP:
// it is counted where its segments leave for the sandbox. A connection begins with the
// answer to its SYN. What the sandbox has sent is what is acknowledged, and what it has
// got is what was sent: no retransmission counts, and no segment that TCP has refused.

#ifndef SALLYPORT_FLOW_H
#define SALLYPORT_FLOW_H

#include "state.h"

// PROBE_PRIORITY is the priority of the socket that sends probes (SO_PRIORITY, socket(7)).
// Above 6 it takes CAP_NET_ADMIN, which the gateway's worker does not have.
#define PROBE_PRIORITY 0x5350

struct flow {
	__be32 sandbox, dialled;
	__be16 from, to; // ports, of the sandbox and of what it has dialled
};

struct flow_state {
	__u64 begun;   // of the first byte from the sandbox, nanoseconds of CLOCK_MONOTONIC; 0: none has come
	__u64 opened;  // likewise
	__u64 sent;    // by the sandbox: bytes, and one for the end of its direction
	__u64 got;     // by the sandbox, in bytes
	__u64 packets; // to the sandbox
	__u32 generation;
	__u32 first; // sequence number of the answer to the SYN: a repeated one begins nothing
	__u32 acked, next;
	__u32 closed; // this host has ended its direction, or all
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flow);
	__type(value, struct flow_state);
	__uint(max_entries, 32768);
} flows SEC(".maps");

static __always_inline __u32 advance(__u32 *from, __u32 to)
{
	__u32 by = to - *from;

	if ((__s32)by <= 0)
		return 0;
	*from = to;
	return by;
}

static __always_inline struct flow flow_of(const struct frame *f)
{
	return (struct flow){.sandbox = f->daddr[3], .dialled = f->saddr[3], .from = f->dport, .to = f->sport};
}

// begin_flow takes note of the answer to a sandbox's SYN. Questions over TCP are the
// resolver's, which carries nothing on.
static __always_inline void begin_flow(const struct frame *f, __u32 generation)
{
	struct flow key = flow_of(f);
	struct flow_state fresh = {.generation = generation, .first = f->seq, .acked = f->ack, .next = f->seq + 1};
	const struct flow_state *was = bpf_map_lookup_elem(&flows, &key);

	if ((f->sport == bpf_htons(PORT_DNS) && f->saddr[3] == cfg.gateway) || (was && was->first == f->seq))
		return;
	fresh.opened = bpf_ktime_get_ns();
	bpf_map_update_elem(&flows, &key, &fresh, BPF_ANY);
}

// follow_flow counts a segment that leaves for a sandbox.
static __always_inline void follow_flow(const struct frame *f)
{
	struct flow key = flow_of(f);
	struct flow_state *s = bpf_map_lookup_elem(&flows, &key);

	if (!s)
		return;
	s->packets++;
	if (f->flags & (TCP_RST | TCP_FIN))
		s->closed = 1;
	if (f->flags & TCP_RST) // its numbers may be the sandbox's own
		return;
	s->got += advance(&s->next, f->seq + f->payload);
	s->sent += advance(&s->acked, f->ack);
	if (!s->begun && s->sent > 1)
		s->begun = bpf_ktime_get_ns();
}

#endif
