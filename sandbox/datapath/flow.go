package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Flow is a TCP connection that a sandbox has opened to the gateway's listener, as this
// host's TCP saw it. Questions to the resolver over TCP are none: it carries nothing on.
type Flow struct {
	Sandbox, SandboxID string // empty: detached since
	Source             netip.AddrPort
	Destination        netip.AddrPort // as the sandbox dialled it
	// Opened is when the host answered the SYN, and Begun when it acknowledged the first
	// byte, by the clock of [Uptime]. Begun is 0 before that; a single byte counts only when
	// the connection's end, or another byte, has come too.
	Opened, Begun time.Duration
	// Sent and Got are bytes that the sandbox sent and got, by acknowledgements and sequence
	// numbers: what was sent twice, or refused, does not count. The end of what it sent
	// counts as a byte.
	Sent, Got uint64
	Packets   uint64 // to the sandbox, since its first
	Closed    bool   // the host has ended it, or its direction of it
}

// Uptime is the clock of flows. It stands still while the machine sleeps.
func Uptime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0 // the clock is always there
	}
	return time.Duration(now.Nano())
}

// flowBatch is how many flows are read by one system call.
const flowBatch = 1024

// Flows lists connections, those that have ended included. The kernel keeps the 32,768 that
// were used last. Connections from before [Open] are not there.
func (d *Datapath) Flows() ([]Flow, error) {
	var (
		all    []Flow
		cursor ebpf.MapBatchCursor
		keys   = make([]guardFlow, flowBatch)
		states = make([]guardFlowState, flowBatch)
		names  = map[uint32]guardEndpoint{}
	)
	for {
		n, err := d.objs.Flows.BatchLookup(&cursor, keys, states, nil)
		last := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !last {
			return nil, fmt.Errorf("reading flows: %w", err)
		}
		for i, k := range keys[:n] {
			s := &states[i]
			e, ok := names[s.Generation]
			if !ok {
				_ = d.objs.Endpoints.Lookup(s.Generation, &e) // of one that is gone, nothing
				names[s.Generation] = e
			}
			all = append(all, Flow{
				Sandbox: text(e.Sandbox[:]), SandboxID: text(e.Id[:]),
				Source:      netip.AddrPortFrom(unwire(k.Sandbox), unwirePort(k.From)),
				Destination: netip.AddrPortFrom(unwire(k.Dialled), unwirePort(k.To)),
				Opened:      time.Duration(s.Opened), Begun: time.Duration(s.Begun),
				Sent: s.Sent, Got: s.Got, Packets: s.Packets, Closed: s.Closed != 0,
			})
		}
		if last {
			return all, nil
		}
	}
}

// ForgetFlows makes room for others.
func (d *Datapath) ForgetFlows(list []Flow) error {
	for _, f := range list {
		k := guardFlow{Sandbox: wire(f.Source.Addr()), Dialled: wire(f.Destination.Addr()), From: wirePort(f.Source.Port()), To: wirePort(f.Destination.Port())}
		if err := d.objs.Flows.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forgetting a flow: %w", err)
		}
	}
	return nil
}
