package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"sallyport/gateway/supervisor"
	"sallyport/sandbox"
	"sallyport/sandbox/datapath"
	"sallyport/sandbox/manager"
)

// gate holds the connections of sandboxes that sleep: in the gateway's process as
// long as that lives, and by their addresses beyond it.
type gate struct {
	supervisor func() *supervisor.Supervisor // nil before there is one
	log        *slog.Logger
}

var _ manager.Gate = gate{}

func (g gate) Sleep(ctx context.Context, a netip.Addr) []sandbox.Flow {
	// Before and after: a connection that is reset may not have been told so by the
	// time that the sandbox sleeps, and one that is new may come in between.
	flows, err := datapath.Flows(a)
	if w := g.supervisor(); w != nil {
		w.Sleep(ctx, a)
	}
	later, lerr := datapath.Flows(a)
	for _, f := range later {
		if !slices.Contains(flows, f) {
			flows = append(flows, f)
		}
	}
	if err = errors.Join(err, lerr); err != nil {
		g.log.Warn("a sandbox's connections are not known and may hang when it wakes", "address", a, "error", err)
	}
	return flows
}

func (g gate) Wake(a netip.Addr, flows []sandbox.Flow) {
	if w := g.supervisor(); w != nil {
		w.Wake(a)
	}
	// A segment can be lost, while the sandbox's network comes up for one.
	for _, after := range []time.Duration{0, 200 * time.Millisecond, 600 * time.Millisecond} {
		time.AfterFunc(after, func() {
			if err := datapath.ProbeFlows(flows); err != nil {
				g.log.Warn("a sandbox's connections of before may hang", "address", a, "error", err)
			}
		})
	}
}

func (g gate) Flows(a netip.Addr) []sandbox.Flow {
	flows, err := datapath.Flows(a)
	if err != nil {
		g.log.Warn("a sandbox's connections are not known and may hang in what is made of it", "address", a, "error", err)
	}
	return flows
}

func (g gate) End(a netip.Addr) {
	if w := g.supervisor(); w != nil {
		w.End(a)
	}
}
