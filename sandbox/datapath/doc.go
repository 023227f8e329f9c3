// Package datapath is the guard of the sandboxes' network: eBPF programs that
// decide about every frame, and the bridge, filter and routes around them.
//
//	 sandbox        host
//	┌───────┐ veth ┌────────────┐      ┌──────────────────────────────┐
//	│       │─────▶│ port_in    │─────▶│ bridge_in                    │──▶ gateway's listener
//	│ eth0  │      │ who, what  │      │ stamp agrees? default deny,  │──▶ resolver on the
//	│       │◀─────│ port_out   │◀─────│ steer                        │    gateway address
//	└───────┘      │ daemon's?  │      └──────────────────────────────┘
//	               └────────────┘       the bridge device
//	               bridge port
//
// port_in knows the sandbox by the interface that its frames come from. It lets
// pass ARP with the sandbox's own MAC and IP address for the gateway, whole
// IPv4 TCP packets to anywhere but other sandboxes, and UDP port 53 to the
// gateway address; it stamps them with the session's generation and takes them
// to the bridge device itself, so that none is ever bridged. A refused
// datagram is dropped like all else, and turned round as ICMP port unreachable,
// a hundred a second for each sandbox: clients of QUIC turn to TCP at once.
// port_out lets pass only that and what the daemon's sockets sent to that sandbox,
// which [Mark] sets apart from those of all other processes of this host. Of these,
// only what [Dial] and [Connecting] make opens a connection, and each only one. To the
// probe ports of an endpoint, if it has any, a process with user ID 0 opens connections
// from the gateway's address without a mark.
// bridge_in denies by default: stamp, MAC and IP address must agree with an
// attached endpoint. It hands TCP to the listener given to [Datapath.Steer]
// whatever address was dialled; packets of connections that are open already,
// by steering, by the daemon or to a probe port, find their socket, and a SYN no
// listener of another process; DNS reaches a resolver only when its sockets are the
// daemon's. Without a listener nothing passes.
//
// Guaranteed: a port that was not attached, or is no longer, gets nothing
// through to the host's network stack. All state is pinned, so this holds after
// the process has died; the next [Open] swaps the programs in their links
// without a moment in between. A route or user's rule cannot forward a sandbox's
// packet: an nftables table of its own drops what is forwarded from or to the
// bridge, and what one port of it sends to another.
//
// Counted, for who compares it with what the gateway has recorded: each TCP connection
// that a sandbox has opened, with the bytes of both directions ([Datapath.Flows]). port_out
// counts them by the sequence numbers and acknowledgements of this host's own TCP, so that
// nothing on the way in costs more, and a sandbox cannot count for more than was taken.
//
// Not guaranteed: anything against root on the host, or after a reboot before
// Open has run (see [GuardPin]). Ports get the programs as they join the bridge,
// while a process has the datapath open; two that have not got them yet reach
// nothing of the host, and are kept apart by nftables alone: where the kernel
// has no CONFIG_NFT_BRIDGE_META, only their IPv4 and ARP of the subnet. A datagram
// that a process of the host sends to all or to a group gets to one that has not
// got them yet; no answer to it passes. Steered traffic still goes through the host's own
// input filter, which must let in
// what comes by the bridge.
//
// It needs Linux 6.6 (tcx links, https://docs.ebpf.io/linux/program-type/BPF_PROG_TYPE_SCHED_CLS/)
// with bridge, nf_tables bridge and ARP support, and CAP_NET_ADMIN, CAP_BPF and
// CAP_SYS_ADMIN (to mount bpffs). The programs are little endian.
//
// Besides the bridge, a host gets: a rule of priority 305 for each bridge (what
// comes in by it with mark 0x3053 is looked up in table 23057), a route `local
// default dev lo` in that table, an unreachable route behind the subnet's own,
// and the tables inet, arp and bridge sallyport-BRIDGE. [Remove] takes them away.
package datapath
