package datapath

import (
	"errors"
	"fmt"
	"math"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A packet for a socket of this host must be routed to the socket, whatever its
// destination is: packets that come in by the bridge with routeMark are looked up in
// routeTable, where all addresses are local. The daemon's sockets for sandboxes have the
// same mark ([Mark]): with net.ipv4.fwmark_reflect, an answer that the kernel makes by
// itself has the mark of the packet that it answers. The mark shares no bit with those of
// kube-proxy, Cilium, Tailscale and Calico's defaults.
const (
	routeMark     = 0x3053
	openMark      = 0x3073 // of a socket of the daemon's while it opens a connection to a sandbox
	routeTable    = 23057
	routePriority = 305
)

func rule(config Config) *netlink.Rule {
	r := netlink.NewRule()
	r.Family = netlink.FAMILY_V4
	r.IifName = config.Bridge
	r.Mark = routeMark
	r.Table = routeTable
	r.Priority = routePriority
	return r
}

func everythingLocal() *netlink.Route {
	return &netlink.Route{
		Dst:       &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
		LinkIndex: 1, // lo has index 1 in every network namespace
		Table:     routeTable,
		Type:      unix.RTN_LOCAL,
		Scope:     unix.RT_SCOPE_HOST,
	}
}

// nowhere is a route behind the bridge's own. When the bridge is gone, packets to a
// sandbox do not follow the default route.
func nowhere(config Config) *netlink.Route {
	return &netlink.Route{
		Dst: &net.IPNet{
			IP:   config.Subnet.Addr().AsSlice(),
			Mask: net.CIDRMask(config.Subnet.Bits(), 32),
		},
		Type:     unix.RTN_UNREACHABLE,
		Priority: math.MaxInt32,
	}
}

func route(config Config) error {
	if err := netlink.RouteReplace(everythingLocal()); err != nil {
		return fmt.Errorf("routing steered packets to this host: %w", err)
	}
	if err := netlink.RouteReplace(nowhere(config)); err != nil {
		return fmt.Errorf("closing the route to %s: %w", config.Subnet, err)
	}
	if err := netlink.RuleAdd(rule(config)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("adding the routing rule for %s: %w", config.Bridge, err)
	}
	return nil
}

// unroute removes the shared table with the last rule that leads to it.
func unroute(config Config) error {
	var errs []error
	if err := netlink.RuleDel(rule(config)); err != nil && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, fmt.Errorf("removing the routing rule: %w", err))
	}
	if err := netlink.RouteDel(nowhere(config)); err != nil && !errors.Is(err, unix.ESRCH) {
		errs = append(errs, fmt.Errorf("removing the route to %s: %w", config.Subnet, err))
	}
	left, err := netlink.RuleListFiltered(netlink.FAMILY_V4, &netlink.Rule{Table: routeTable}, netlink.RT_FILTER_TABLE)
	if err != nil {
		errs = append(errs, fmt.Errorf("listing routing rules: %w", err))
	} else if len(left) == 0 {
		if err := netlink.RouteDel(everythingLocal()); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("removing routing table %d: %w", routeTable, err))
		}
	}
	return errors.Join(errs...)
}
