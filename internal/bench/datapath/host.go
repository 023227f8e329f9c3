package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"sallyport/sandbox"
	"sallyport/sandbox/datapath"
)

// host is this process's network namespace with the one bridge that is measured.
type host struct {
	config datapath.Config
	sink   *sink
	guard  *datapath.Datapath // nil while TPROXY steers
	boxes  []*box             // the bridge's ports; those on it are attached
}

// target is what sandboxes dial: nobody is there but who steers.
const target = "198.51.100.2"

func newHost() (*host, error) {
	h := &host{config: datapath.Config{Bridge: "spbench0", Subnet: netip.MustParsePrefix("10.234.0.0/16"), Pins: pins}}
	var err error
	if h.guard, err = datapath.Open(h.config); err != nil {
		return nil, err
	}
	// Bridge netfilter, where it is on, takes every frame through iptables' and
	// nftables' hooks twice, in both modes.
	for _, name := range []string{"iptables", "arptables", "ip6tables"} {
		err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+name, []byte("0"), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	if h.sink, err = newSink(); err != nil {
		return nil, err
	}
	return h, h.guard.Steer(h.sink.listener)
}

func (h *host) close() {
	h.sink.close()
	if h.guard != nil {
		h.guard.Close()
	}
	for _, b := range h.boxes {
		b.ns.Close()
	}
}

// box is a sandbox's network: a namespace with one interface, eth0.
type box struct {
	ns  netns.NsHandle
	end sandbox.Endpoint
}

// add makes the next box, a port of the bridge that is attached, guarded.
func (h *host) add() (*box, error) {
	if h.guard == nil {
		if err := h.enter(modes[0]); err != nil {
			return nil, err
		}
	}
	n := len(h.boxes) + 1
	addr := h.config.Subnet.Addr().As4()
	addr[3] = byte(n + 1)
	b := &box{end: sandbox.Endpoint{
		Sandbox: fmt.Sprint("box-", n), ID: fmt.Sprint("id-", n), Generation: uint32(n), Address: netip.AddrFrom4(addr),
		MAC: net.HardwareAddr{2, 0x42, addr[0], addr[1], addr[2], addr[3]}.String(),
	}}
	h.boxes = append(h.boxes, b)
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread stays in the namespace, and ends
		var err error
		b.ns, err = netns.New()
		made <- err
	}()
	if err := <-made; err != nil {
		return nil, err
	}
	mac, _ := net.ParseMAC(b.end.MAC)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprint("spbench-", n)
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(b.ns)}); err != nil {
		return nil, fmt.Errorf("adding a veth pair: %w", err)
	}
	port, err := netlink.LinkByName(attrs.Name)
	if err != nil {
		return nil, err
	}
	b.end.Link = port.Attrs().Index
	bridge, err := netlink.LinkByName(h.config.Bridge)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(netlink.LinkSetMaster(port, bridge), netlink.LinkSetUp(port), b.furnish(h.config)); err != nil {
		return nil, err
	}
	return b, h.guard.Attach(b.end)
}

func (b *box) furnish(config datapath.Config) error {
	inside, err := netlink.NewHandleAt(b.ns)
	if err != nil {
		return err
	}
	defer inside.Close()
	for _, name := range []string{"lo", "eth0"} {
		l, err := inside.LinkByName(name)
		if err != nil {
			return err
		}
		if err := inside.LinkSetUp(l); err != nil {
			return err
		}
		if name == "lo" {
			continue
		}
		own := &net.IPNet{IP: b.end.Address.AsSlice(), Mask: net.CIDRMask(config.Subnet.Bits(), 32)}
		if err := inside.AddrAdd(l, &netlink.Addr{IPNet: own}); err != nil {
			return err
		}
		everywhere := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
		route := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: everywhere, Gw: config.Gateway().AsSlice()}
		if err := inside.RouteAdd(route); err != nil {
			return err
		}
	}
	return nil
}

// do runs f in the box, on a thread that ends with it.
func (b *box) do(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(b.ns); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
