package docker

import (
	"net/netip"
	"testing"

	"github.com/moby/moby/client"
	"github.com/vishvananda/netlink"

	"sallyport/internal/test/must"
)

func TestNetwork(t *testing.T) {
	l := need(t)
	const bridge = "spdk1"
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}
	must.OK(t, netlink.LinkAdd(br))
	t.Cleanup(func() { netlink.LinkDel(br) })
	cfg := l.runtime.cfg
	cfg.Bridge, cfg.Dir = bridge, t.TempDir()
	inspect := func(subnet string) client.NetworkInspectResult {
		t.Helper()
		cfg.Subnet = netip.MustParsePrefix(subnet)
		cfg.Gateway = cfg.Subnet.Addr().Next()
		if _, err := New(t.Context(), l.engine, cfg); err != nil {
			t.Fatal(err)
		}
		res, err := l.engine.Client().NetworkInspect(t.Context(), bridge, client.NetworkInspectOptions{})
		must.OK(t, err)
		if got := res.Network.IPAM.Config; len(got) != 1 || got[0].Subnet != cfg.Subnet || got[0].Gateway != cfg.Gateway {
			t.Errorf("addresses: got %+v, want %s", got, subnet)
		}
		return res
	}
	first := inspect("10.232.1.0/24")
	if again := inspect("10.232.1.0/24"); again.Network.ID != first.Network.ID {
		t.Error("an equal network was made anew")
	}
	if other := inspect("10.232.2.0/24"); other.Network.ID == first.Network.ID {
		t.Error("another network was left as it was")
	}
	// The device is the datapath's: neither made nor taken away by the engine.
	now, err := netlink.LinkByName(bridge)
	if err != nil || now.Attrs().Index != br.Attrs().Index {
		t.Errorf("bridge: got %+v, %v, want index %d", now, err, br.Attrs().Index)
	}
	if _, err := l.engine.Client().NetworkRemove(t.Context(), bridge, client.NetworkRemoveOptions{}); err != nil {
		t.Error(err)
	}
}
