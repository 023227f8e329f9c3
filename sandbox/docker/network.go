package docker

import (
	"context"
	"fmt"
	"net/netip"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
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
