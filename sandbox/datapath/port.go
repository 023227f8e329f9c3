package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// quieten turns off what a port of the bridge does by default: learn addresses,
// get floods, talk to other such ports, and IPv6 of the host on it.
func quieten(port netlink.Link) error {
	name := port.Attrs().Name
	if err := withoutIPv6(name); err != nil {
		return err
	}
	for _, set := range []struct {
		what  string
		to    bool
		apply func(netlink.Link, bool) error
	}{
		{"learning", false, netlink.LinkSetLearning},
		{"flooding", false, netlink.LinkSetFlood},
		{"isolation", true, netlink.LinkSetIsolated},
	} {
		if err := set.apply(port, set.to); err != nil {
			return fmt.Errorf("setting %s on %s: %w", set.what, name, err)
		}
	}
	return nil
}

// neighbours are an endpoint's entries that no packet can change: the bridge's
// forwarding entry, sticky so that another port cannot take the MAC address
// over, and the host's answer to who has the IP address.
func (d *Datapath) neighbours(port int, addr netip.Addr, mac net.HardwareAddr) []*netlink.Neigh {
	return []*netlink.Neigh{{
		LinkIndex:    port,
		Family:       unix.AF_BRIDGE,
		State:        netlink.NUD_NOARP,
		Flags:        netlink.NTF_MASTER | netlink.NTF_STICKY,
		HardwareAddr: mac,
	}, {
		LinkIndex:    d.bridge,
		Family:       unix.AF_INET,
		State:        netlink.NUD_PERMANENT,
		IP:           addr.AsSlice(),
		HardwareAddr: mac,
	}}
}

// missing says that a neighbour entry, or its interface, is not there.
func missing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL)
}
