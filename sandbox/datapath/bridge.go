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

// bridgeMAC is a locally administered address made from the bridge's name. Set
// by hand it stays: by default a bridge takes the lowest address of its ports.
func bridgeMAC(name string) net.HardwareAddr {
	h := fnv.New32a()
	h.Write([]byte(name))
	return h.Sum([]byte{0x02, 0x5a})
}

// makeBridge returns the bridge, made but down when it was missing.
func makeBridge(config Config) (netlink.Link, error) {
	bridge, err := netlink.LinkByName(config.Bridge)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		snooping := false // else the bridge sends queries of its own
		made := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs(), MulticastSnooping: &snooping}
		made.Name = config.Bridge
		made.HardwareAddr = bridgeMAC(config.Bridge)
		if err := netlink.LinkAdd(made); err != nil {
			return nil, fmt.Errorf("making bridge %s: %w", config.Bridge, err)
		}
		bridge, err = netlink.LinkByName(config.Bridge)
	}
	if err != nil {
		return nil, fmt.Errorf("looking for bridge %s: %w", config.Bridge, err)
	}
	if bridge.Type() != "bridge" {
		return nil, fmt.Errorf("%s is a %s, not a bridge: choose another name", config.Bridge, bridge.Type())
	}
	return bridge, nil
}

// raise gives the guarded bridge its addresses and sets it up.
func raise(config Config, bridge netlink.Link) error {
	name := config.Bridge
	if err := withoutIPv6(name); err != nil {
		return err
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

// withoutIPv6 keeps the host from speaking IPv6 on the interface at all.
func withoutIPv6(name string) error {
	err := os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "disable_ipv6"), []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		return fmt.Errorf("turning IPv6 off on %s: %w", name, err)
	}
	return nil
}
