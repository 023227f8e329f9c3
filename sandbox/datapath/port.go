package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// guard puts the programs on a port. They refuse all packets from and to it until an
// endpoint is written.
func (d *Datapath) guard(port netlink.Link) error {
	ifindex := port.Attrs().Index
	if err := d.disown(ifindex); err != nil {
		return err
	}
	if err := attach(portPin(d.config.Pins, hookIn, ifindex), ifindex, d.objs.PortIn, ebpf.AttachTCXIngress); err != nil {
		return err
	}
	if err := attach(portPin(d.config.Pins, hookOut, ifindex), ifindex, d.objs.PortOut, ebpf.AttachTCXEgress); err != nil {
		return err
	}
	return quieten(port)
}

// disown detaches the endpoints of an interface index, except those of this very
// interface: the kernel can give an index again.
func (d *Datapath) disown(ifindex int) error {
	var generation uint32
	err := d.objs.Ports.Lookup(uint32(ifindex), &generation)
	if errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && d.guarded(ifindex) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the port: %w", err)
	}
	return d.detach(generation)
}

// guarded says whether both programs are on the interface that has the index.
func (d *Datapath) guarded(ifindex int) bool {
	return live(portPin(d.config.Pins, hookIn, ifindex), ifindex) && live(portPin(d.config.Pins, hookOut, ifindex), ifindex)
}

// quieten turns off defaults of a bridge's port: learning addresses, floods, frames to
// other such ports, and the host's IPv6 on it.
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

// neighbours are an endpoint's entries, which no packet can change: the forwarding entry
// of the bridge, sticky so that no other port takes the MAC address over, and the host's
// ARP entry for the IP address.
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
