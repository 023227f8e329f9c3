// SPDX-License-Identifier: Apache-2.0
//
// Who is behind a port: the pinned maps of what is attached, and their look-up.

#ifndef SALLYPORT_ENDPOINT_H
#define SALLYPORT_ENDPOINT_H

#include "frame.h"

// face is what the packets of one session must show.
struct face {
	__u32 link; // interface index of the host's end
	__be32 address;
	struct mac mac;
	__u8 offline; // only answers to the host pass: of its agent, and of its probe ports
	__u8 pad;
};

// endpoint is all of one session. The kernel does not read the names; they are
// here so that they last exactly as long.
struct endpoint {
	struct face face;
	__u8 sandbox[128];
	__u8 id[64];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32); // generation, which is also the stamp in skb->mark
	__type(value, struct endpoint);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);   // interface index
	__type(value, __u32); // generation
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} ports SEC(".maps");

// probe_ports are TCP ports of a sandbox that root's processes of this host may connect to.
#define PROBE_PORTS 16

struct probes {
	__be16 port[PROBE_PORTS]; // 0: none
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32); // generation
	__type(value, struct probes);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} probe_ports SEC(".maps");

// Only what is not the daemon's is looked up, which no packet of a steered connection is.
static __noinline int is_probe_port(__u32 generation, __u32 port)
{
	struct probes *p = bpf_map_lookup_elem(&probe_ports, &generation);

	if (!p || !port)
		return 0;
	for (int i = 0; i < PROBE_PORTS; i++)
		if (p->port[i] == port)
			return 1;
	return 0;
}

// Tables in front of the two maps, for what every packet needs: with many
// sandboxes the maps' buckets and elements, a few cache lines for each, no longer
// stay in the processor. What belongs into a slot that is taken is found behind.
#define NEAR 16384

struct near {
	struct face face;
	__u32 generation; // 0: the slot is free
};

struct near_table {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct near);
	__uint(max_entries, NEAR);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
};
struct near_table near_links SEC(".maps");       // by interface index modulo NEAR
struct near_table near_generations SEC(".maps"); // by generation modulo NEAR

// attached gives the face of a generation, 0 when it is not attached.
static __always_inline const struct face *attached(__u32 generation)
{
	__u32 slot = generation % NEAR;
	struct near *near = bpf_map_lookup_elem(&near_generations, &slot);
	struct endpoint *far;

	if (!generation)
		return 0;
	if (near && near->generation == generation)
		return &near->face;
	far = bpf_map_lookup_elem(&endpoints, &generation);
	return far ? &far->face : 0;
}

// owner gives the face of what the frame's interface was attached for, and its
// generation.
static __always_inline const struct face *owner(struct __sk_buff *skb, __u32 *generation)
{
	__u32 link = skb->ifindex, slot = link % NEAR, *far;
	struct near *near = bpf_map_lookup_elem(&near_links, &slot);
	const struct face *face;

	if (near && near->generation && near->face.link == link) {
		*generation = near->generation;
		return &near->face;
	}
	far = bpf_map_lookup_elem(&ports, &link);
	if (!far)
		return 0;
	*generation = *far;
	face = attached(*generation);
	return face && face->link == link ? face : 0;
}

#endif
