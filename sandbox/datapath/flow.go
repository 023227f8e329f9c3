package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"sallyport/sandbox"
)

// flowBatch is how many flows are read by one system call.
const flowBatch = 1024

// Flows lists connections, those that have ended included. The kernel keeps the 32,768 that
// were used last. Connections from before [Open] are not there.
func (d *Datapath) Flows() ([]sandbox.Connection, error) {
	var (
		all    []sandbox.Connection
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
			all = append(all, sandbox.Connection{
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
func (d *Datapath) ForgetFlows(list []sandbox.Connection) error {
	for _, f := range list {
		k := guardFlow{Sandbox: wire(f.Source.Addr()), Dialled: wire(f.Destination.Addr()), From: wirePort(f.Source.Port()), To: wirePort(f.Destination.Port())}
		if err := d.objs.Flows.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forgetting a flow: %w", err)
		}
	}
	return nil
}
