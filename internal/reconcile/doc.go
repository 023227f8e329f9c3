// Package reconcile compares the connections that the datapath lets pass with those that
// the audit log knows. The daemon runs it: the gateway's worker, which parses what sandboxes
// send and writes the log, is not asked.
//
//	kernel: flows of sandboxes ──▶ ┌──────┐
//	                               │ book │──▶ findings, within ten seconds
//	audit log, as it is written ─▶ └──────┘
//
// A flow ([sandbox.Connection]) is a TCP connection that this host's kernel has accepted from a
// sandbox, with the bytes of both directions as its TCP acknowledged them. A record is any
// event with the flow's source address and port, and the port that was dialled: a decision,
// a completion, a connection about which nothing is decided. The gateway sees to it that a
// connection has one 2.5 seconds after its first byte at the latest, and the log is read to
// its end each second.
//
//   - A flow that has sent bytes, and has no record 8 s after the first, is a finding:
//     [audit.FindingUnrecorded].
//   - A flow that has sent far more than its records account for is one too: [audit.FindingUnaccounted].
//     It is judged when nothing is under way on it and nothing was sent for 8 s. See
//     [excess] for the bound.
//
// No finding is raised where the comparison has no ground:
//
//   - for a connection that has sent no byte, or one that the daemon has opened
//   - for questions to the resolver: it answers them itself and carries nothing on
//   - for flows that began before this process, which has not read what was recorded then; the
//     gateway's connections end with the daemon
//   - for flows that began before a moment of trouble: another worker has begun, the log could
//     not be written or lost events, the worker or this process did not run for a second, the
//     disk does not take what is written. They are counted as not compared
//
// A connection is known by its record however long ago that was, so that idling, hibernation
// and waking change nothing. An event that stands for many names up to 256 source ports;
// for those beyond, as many flows of the same address are taken for recorded. Times are of a
// clock that nobody sets and that stands still while the machine sleeps.
//
// It does not show that a record is true. A worker that an attacker has taken over can
// write one for each connection; what it cannot do is to carry connections of sandboxes that
// are not in the log. Two connections at once from one port of a sandbox to the same port
// of two destinations are one to it. A single byte counts when the connection ends too. The
// kernel keeps 32,768 flows: one that is pushed out of its list within a second of its
// beginning is not seen. Of a connection that idles for an hour, later bytes are not counted.
package reconcile
