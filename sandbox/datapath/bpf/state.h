// SPDX-License-Identifier: Apache-2.0
//
// The pinned maps, and what a program does when it lets go or refuses.

#ifndef SALLYPORT_STATE_H
#define SALLYPORT_STATE_H

#include "endpoint.h"

// config is fixed when the programs are loaded: it cannot be out of step with
// them, and a takeover replaces both at once.
struct config {
	__be32 gateway;
	__be32 subnet;
	__be32 mask;
	__u32 mark; // of the daemon's sockets, and for routing steered packets to this host
	__u32 opening; // of those that open a connection to a sandbox
	__u32 link; // interface index of the bridge
	struct mac bridge;
	__u8 pad[2];
};
volatile const struct config cfg;

// bridges reads the address as volatile: else the compiler takes it for zero.
static __always_inline int bridges(const struct mac *m)
{
	const volatile __u16 *x = (const volatile void *)&cfg.bridge;
	const __u16 *y = (const void *)m;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2];
}

// listener holds the gateway's socket. The kernel empties it when the socket
// is closed, so a dead daemon leaves nothing to steer to.
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} listener SEC(".maps");

struct traffic {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32); // enum reason or enum slot
	__type(value, struct traffic);
	__uint(max_entries, SLOTS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} counters SEC(".maps");

// flood names a stream of like drops; at most one of each is told in a WINDOW.
struct flood {
	__u32 generation; // 0: of no endpoint
	__u32 link;
	__u32 reason;
};

struct tally {
	__u64 since; // start of the window, nanoseconds since boot
	__u64 seen;  // drops ever
};

#define WINDOW 1000000000ULL

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flood);
	__type(value, struct tally);
	__uint(max_entries, 16384);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} floods SEC(".maps");

// told is user space's: how many of a flood's drops it has reported.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flood);
	__type(value, __u64);
	__uint(max_entries, 16384);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} told SEC(".maps");

struct event {
	struct flood flood;
	__u16 ethertype;
	__u8 proto;
	__u8 pad;
	__u64 time; // nanoseconds since boot
	__u64 seen;
	__u8 saddr[16], daddr[16];
	__be16 sport, dport;
	struct mac src, dst;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} drops SEC(".maps");

static __always_inline void count(struct __sk_buff *skb, __u32 slot)
{
	struct traffic *c = bpf_map_lookup_elem(&counters, &slot);

	if (!c)
		return;
	c->packets++;
	c->bytes += skb->len;
}

// tell decides whether a drop is worth an event, and how many were seen.
static __always_inline __u64 tell(const struct flood *flood, __u64 now)
{
	struct tally *t = bpf_map_lookup_elem(&floods, flood);

	if (!t) {
		struct tally first = {.since = now, .seen = 1};

		if (!bpf_map_update_elem(&floods, flood, &first, BPF_NOEXIST))
			return 1;
		t = bpf_map_lookup_elem(&floods, flood);
		if (!t)
			return 0;
	}

	__u64 seen = __sync_fetch_and_add(&t->seen, 1) + 1;
	__u64 since = t->since;

	if (now - since < WINDOW || __sync_val_compare_and_swap(&t->since, since, now) != since)
		return 0;
	return seen;
}

// refuse drops a frame, and parses it once more for the record: what passes need
// not have more of it in memory than it is judged by.
static __noinline int refuse(struct __sk_buff *skb, __u32 generation, __u32 reason)
{
	struct frame f = {};
	struct flood flood = {.generation = generation, .link = skb->ifindex, .reason = reason};
	__u64 now = bpf_ktime_get_boot_ns();
	struct event *d;
	__u64 seen;

	count(skb, reason);
	seen = tell(&flood, now);
	if (!seen)
		return TCX_DROP;
	d = bpf_ringbuf_reserve(&drops, sizeof(*d), 0);
	if (!d)
		return TCX_DROP;
	parse(skb, &f);
	d->flood = flood;
	d->ethertype = f.ethertype;
	d->proto = f.proto;
	d->pad = 0;
	d->time = now;
	d->seen = seen;
	__builtin_memcpy(d->saddr, f.saddr, sizeof(d->saddr));
	__builtin_memcpy(d->daddr, f.daddr, sizeof(d->daddr));
	d->sport = f.sport;
	d->dport = f.dport;
	d->src = f.src;
	d->dst = f.dst;
	bpf_ringbuf_submit(d, 0);
	return TCX_DROP;
}

#endif
