package datapath

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

// bridgeMAC is a locally administered address made from the bridge's name. An address that
// is set stays; by default a bridge takes the lowest address of its ports.
func bridgeMAC(name string) net.HardwareAddr {
	h := fnv.New32a()
	h.Write([]byte(name))
	return h.Sum([]byte{0x02, 0x5a})
}

// findBridge returns the bridge, or nil if no interface has the name.
func findBridge(name string) (netlink.Link, error) {
	bridge, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("looking for bridge %s: %w", name, err)
	case bridge.Type() != "bridge":
		return nil, fmt.Errorf("%s is a %s, not a bridge: choose another name", name, bridge.Type())
	}
	return bridge, nil
}

// makeBridge makes the bridge and leaves it down.
func makeBridge(name string) (netlink.Link, error) {
	snooping := false // else the bridge sends queries of its own
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs(), MulticastSnooping: &snooping}
	bridge.Name = name
	bridge.HardwareAddr = bridgeMAC(name)
	if err := netlink.LinkAdd(bridge); err != nil {
		return nil, fmt.Errorf("making bridge %s: %w", name, err)
	}
	return netlink.LinkByName(name)
}

// raise gives the guarded bridge its addresses and brings it up.
func raise(config Config, bridge netlink.Link) error {
	name := config.Bridge
	if err := withoutIPv6(name); err != nil {
		return err
	}
	// Bridge all link-local groups that the kernel allows, like other frames. A frame that
	// is not bridged would reach the host on the port itself, where nothing denies by
	// default. Bits 0 to 2 stay with the kernel: it forwards the first while spanning tree
	// is off, drops the second, and the filter sees to the third.
	groups := uint16(0xfff8)
	attrs := netlink.NewLinkAttrs()
	attrs.Index, attrs.Name = bridge.Attrs().Index, name
	if err := netlink.LinkModify(&netlink.Bridge{LinkAttrs: attrs, GroupFwdMask: &groups}); err != nil {
		return fmt.Errorf("bridging link-local groups on %s: %w", name, err)
	}
	if err := netlink.LinkSetHardwareAddr(bridge, bridgeMAC(name)); err != nil {
		return fmt.Errorf("setting the address of bridge %s: %w", name, err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{
		IP:   config.Gateway().AsSlice(),
		Mask: net.CIDRMask(config.Subnet.Bits(), 32),
	}}
	if err := netlink.AddrReplace(bridge, addr); err != nil {
		return fmt.Errorf("giving %s to bridge %s: %w", config.Gateway(), name, err)
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("setting bridge %s up: %w", name, err)
	}
	return nil
}

// withoutIPv6 turns off the host's IPv6 on the interface.
func withoutIPv6(name string) error {
	err := os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "disable_ipv6"), []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		return fmt.Errorf("turning IPv6 off on %s: %w", name, err)
	}
	return nil
}
