package docker

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

const bridgeOption = "com.docker.network.bridge.name"

// network makes the engine's network on our bridge, anew if it is another.
func (r *Runtime) network(ctx context.Context) error {
	name := r.cfg.Bridge
	got, err := r.client.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
	switch {
	case err == nil && r.fits(got.Network.Network):
		return nil
	case err == nil:
		if _, err := r.client.NetworkRemove(ctx, got.Network.ID, client.NetworkRemoveOptions{}); err != nil {
			return fmt.Errorf("replacing network %s, which is not as configured (stop the sandboxes on it first): %w", name, err)
		}
	case !cerrdefs.IsNotFound(err):
		return fmt.Errorf("inspecting network %s: %w", name, err)
	}
	v6 := false
	_, err = r.client.NetworkCreate(ctx, name, client.NetworkCreateOptions{
		Driver:     "bridge",
		EnableIPv6: &v6,
		IPAM: &network.IPAM{
			Driver: "default",
			Config: []network.IPAMConfig{{Subnet: r.cfg.Subnet.Masked(), Gateway: r.cfg.Gateway}},
		},
		Options: map[string]string{
			bridgeOption: r.cfg.Bridge,
			"com.docker.network.bridge.enable_ip_masquerade": "false",
		},
	})
	if err != nil {
		return fmt.Errorf("making network %s: %w", name, err)
	}
	return nil
}

func (r *Runtime) fits(n network.Network) bool {
	return n.Driver == "bridge" && !n.EnableIPv6 && !n.Internal && n.Options[bridgeOption] == r.cfg.Bridge &&
		len(n.IPAM.Config) == 1 && same(n.IPAM.Config[0].Subnet, r.cfg.Subnet) && n.IPAM.Config[0].Gateway == r.cfg.Gateway
}

func same(a, b netip.Prefix) bool { return a.Masked() == b.Masked() }

// hostVeth returns the interface index of the host's end of the veth that joins
// the network namespace of process pid to the bridge. gVisor takes the address
// off the inner end but leaves the pair as it is.
func hostVeth(pid int, bridge string) (int, error) {
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		return 0, fmt.Errorf("finding bridge %s: %w", bridge, err)
	}
	ns, err := netns.GetFromPath(filepath.Join("/proc", strconv.Itoa(pid), "ns/net"))
	if err != nil {
		return 0, fmt.Errorf("entering the network of process %d: %w", pid, err)
	}
	defer ns.Close()
	inner, err := netlink.NewHandleAt(ns)
	if err != nil {
		return 0, fmt.Errorf("entering the network of process %d: %w", pid, err)
	}
	defer inner.Close()
	links, err := inner.LinkList()
	if err != nil {
		return 0, fmt.Errorf("listing the interfaces of process %d: %w", pid, err)
	}
	for _, l := range links {
		if l.Type() != "veth" {
			continue
		}
		// A veth's parent is its peer, numbered as in the peer's namespace.
		outer, err := netlink.LinkByIndex(l.Attrs().ParentIndex)
		if err == nil && outer.Type() == "veth" && outer.Attrs().MasterIndex == br.Attrs().Index {
			return outer.Attrs().Index, nil
		}
	}
	return 0, fmt.Errorf("process %d has no interface on bridge %s", pid, bridge)
}
