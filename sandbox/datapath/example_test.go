package datapath_test

import (
	"context"
	"log/slog"
	"net/netip"

	"sallyport/sandbox"
	"sallyport/sandbox/datapath"
)

// A daemon opens the datapath, steers to its listener, and vouches for each sandbox that it
// starts. A sandbox that it does not vouch for reaches nothing.
func Example() {
	d, err := datapath.Open(datapath.Config{
		Bridge: "sallyport0",
		Subnet: netip.MustParsePrefix("10.231.0.0/16"),
		Logger: slog.Default(),
	})
	if err != nil {
		slog.Error("opening the datapath", "err", err)
		return
	}
	defer d.Close() // everything stays guarded

	listener, err := datapath.Listen()
	if err != nil {
		slog.Error("listening", "err", err)
		return
	}
	defer listener.Close() // from here on packets are dropped
	if err := d.Steer(listener); err != nil {
		slog.Error("steering", "err", err)
		return
	}
	go d.Drops(context.Background(), func(drop datapath.Drop) {
		slog.Info("dropped", "sandbox", drop.Sandbox, "reason", drop.Reason, "count", drop.Count)
	})

	err = d.Attach(sandbox.Endpoint{
		Link: 42, Sandbox: "demo", Generation: 1,
		Address: netip.MustParseAddr("10.231.0.10"), MAC: "02:42:0a:e7:00:0a",
	})
	if err != nil {
		slog.Error("attaching", "err", err)
	}
}
