package datapath

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"sallyport/internal/test/must"
)

// way is a frame that alice could send, to get past the gateway.
type way struct {
	name   string
	change func(*packet) // of a UDP packet to the test host
	// steered frames go to the gateway's listener: no drop.
	want Reason
}

func ways(l *lab) []way {
	hostAddr := netip.MustParseAddr("198.51.100.1")
	v6 := func(p *packet) {
		p.saddr, p.daddr = netip.MustParseAddr("2001:db8:1::a"), l.outsideV6
	}
	return []way{
		{"TCP SYN to the test host", func(p *packet) { p.proto = protoTCP }, Unknown},
		{"TCP SYN to the metadata address", func(p *packet) {
			p.proto, p.daddr, p.dport = protoTCP, netip.MustParseAddr("169.254.169.254"), 80
		}, Unknown},
		{"TCP ACK out of nowhere", func(p *packet) { p.proto, p.flags = protoTCP, 0x10 }, Unknown},
		{"TCP SYN with a foreign address", func(p *packet) { p.proto, p.saddr = protoTCP, bob.Address }, BadAddress},
		{"TCP SYN with an address of the internet", func(p *packet) { p.proto, p.saddr = protoTCP, netip.MustParseAddr("203.0.113.77") }, BadAddress},
		{"TCP SYN with a foreign MAC", func(p *packet) { p.proto, p.src = protoTCP, net.HardwareAddr{2, 1, 1, 1, 1, 1} }, BadMAC},
		{"TCP SYN with bob's MAC and address", func(p *packet) { p.proto, p.src, p.saddr = protoTCP, hw(bob), bob.Address }, BadMAC},
		{"TCP to bob by the gateway", func(p *packet) { p.proto, p.daddr = protoTCP, bob.Address }, EastWest},
		{"TCP to bob", func(p *packet) { p.proto, p.daddr, p.dst = protoTCP, bob.Address, hw(bob) }, EastWest},
		{"TCP to the stranger", func(p *packet) {
			p.proto, p.daddr, p.dst = protoTCP, netip.MustParseAddr("10.231.0.12"), l.strangerMAC
		}, EastWest},
		{"TCP past the gateway to bob's MAC", func(p *packet) { p.proto, p.dst = protoTCP, hw(bob) }, Destination},
		{"TCP to everyone's MAC", func(p *packet) { p.proto, p.dst = protoTCP, everyone }, Destination},
		{"UDP", func(p *packet) {}, UDP},
		{"UDP with bob's address", func(p *packet) { p.saddr = bob.Address }, BadAddress},
		{"QUIC", func(p *packet) { p.dport = 443 }, QUIC},
		{"another resolver", func(p *packet) { p.dport = 53 }, DNS},
		{"UDP to the metadata address", func(p *packet) { p.daddr = netip.MustParseAddr("169.254.169.254") }, UDP},
		{"UDP to a service of the host", func(p *packet) { p.daddr, p.dport = hostAddr, hostPort }, UDP},
		{"UDP to a service on the gateway", func(p *packet) { p.daddr, p.dport = gateway, hostPort }, UDP},
		{"UDP to a service on the gateway from port 53", func(p *packet) {
			p.daddr, p.sport, p.dport = gateway, 53, hostPort
		}, UDP},
		{"UDP to a service of the host by a link-local group", func(p *packet) {
			p.dst, p.daddr, p.dport = net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 0x0e}, gateway, hostPort
		}, UDP},
		{"UDP to a service of the host by the group of slow protocols", func(p *packet) {
			p.dst, p.daddr, p.dport = net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 0x02}, gateway, hostPort
		}, UDP},
		{"UDP to a service of the host by the group of port authentication", func(p *packet) {
			p.dst, p.daddr, p.dport = net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 0x03}, gateway, hostPort
		}, UDP},
		{"UDP to bob", func(p *packet) { p.daddr, p.dst = bob.Address, hw(bob) }, EastWest},
		{"UDP to the subnet's broadcast", func(p *packet) {
			p.daddr, p.dst, p.dport = netip.MustParseAddr("10.231.255.255"), everyone, hostPort
		}, EastWest},
		{"multicast", func(p *packet) {
			p.daddr, p.dst = netip.MustParseAddr("224.0.0.251"), net.HardwareAddr{1, 0, 0x5e, 0, 0, 0xfb}
		}, UDP},
		{"first fragment", func(p *packet) { p.fragment = 0x2000 }, Fragment},
		{"later fragment", func(p *packet) { p.fragment = 0x0010 }, Fragment},
		{"fragment of TCP", func(p *packet) { p.proto, p.fragment = protoTCP, 0x2000 }, Fragment},
		{"record route option", func(p *packet) { p.options = []byte{7, 7, 4, 0, 0, 0, 0, 0} }, Options},
		{"ping", func(p *packet) { p.proto, p.icmp = protoICMP, 8 }, ICMP},
		{"ping of bob", func(p *packet) { p.proto, p.icmp, p.daddr, p.dst = protoICMP, 8, bob.Address, hw(bob) }, EastWest},
		{"GRE", func(p *packet) { p.proto = protoGRE }, Protocol},
		{"SCTP", func(p *packet) { p.proto = protoSCTP }, Protocol},
		{"IPv6 UDP", v6, IPv6},
		{"IPv6 TCP", func(p *packet) { v6(p); p.proto = protoTCP }, IPv6},
		{"IPv6 ping", func(p *packet) { v6(p); p.proto, p.icmp = protoICMP6, 128 }, IPv6},
		{"router advertisement", func(p *packet) {
			p.saddr, p.daddr = netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::1")
			p.dst, p.proto, p.icmp = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, protoICMP6, 134
		}, Neighbour},
		{"VLAN", func(p *packet) { p.dst, p.tags = everyone, []uint16{0x8100} }, VLAN},
		{"VLAN in VLAN to bob", func(p *packet) { p.dst, p.tags = hw(bob), []uint16{0x88a8, 0x8100} }, VLAN},
		{"spanning tree", func(p *packet) {
			*p = packet{dst: net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0}, src: p.src, ethertype: 100, body: append(make([]byte, 40), p.body...)}
		}, STP},
		{"any ethertype", func(p *packet) { *p = packet{dst: everyone, src: p.src, ethertype: 0x88b5, body: p.body} }, EtherType},
		{"ARP in the gateway's name", func(p *packet) {
			*p = packet{dst: everyone, src: p.src, body: p.body, arp: &arp{2, p.src, everyone, gateway, bob.Address}}
		}, BadARP},
		{"ARP for bob", func(p *packet) {
			*p = packet{dst: everyone, src: p.src, body: p.body, arp: &arp{1, p.src, nobody, alice.Address, bob.Address}}
		}, BadARP},
	}
}

// frame is the way's, with its name as the marker.
func (w way) frame() []byte {
	p := packet{
		dst: bridgeMAC(testBridge), src: hw(alice), saddr: alice.Address, daddr: outside,
		proto: protoUDP, sport: 40000, dport: 9, body: []byte(markerStart + w.name + markerEnd),
	}
	w.change(&p)
	return p.bytes()
}

// inbound sends from the outside to bob, and says whether it reached him.
func (l *lab) inbound(t *testing.T) bool {
	t.Helper()
	up, err := netlink.LinkByIndex(l.outside.host)
	must.OK(t, err)
	p := packet{
		dst: up.Attrs().HardwareAddr, src: l.outside.link.Attrs().HardwareAddr, saddr: outside, daddr: bob.Address,
		proto: protoUDP, sport: 9, dport: 9, body: []byte(markerStart + "inbound" + markerEnd),
	}
	for range 2 {
		l.outside.send(p.bytes())
		settle()
	}
	return l.witnessed.where("inbound") != ""
}

// none sends every way and wants none of them to arrive anywhere.
func (l *lab) none(t *testing.T, moment string) {
	t.Helper()
	l.witnessed.forget()
	for _, w := range ways(l) {
		l.alice.send(w.frame())
	}
	settle()
	for _, w := range ways(l) {
		if where := l.witnessed.where(w.name); where != "" {
			t.Errorf("%s: %s arrived at %s", moment, w.name, where)
		}
	}
}

// The positive control: without the datapath every way arrives somewhere.
func TestWaysOutOfAPlainBridge(t *testing.T) {
	l := newLab(t)
	l.plain(t)
	settle()
	// More than once: neighbours are to be found, and a new device's IPv6 routes
	// take a moment of the kernel's own.
	var lost []string
	for range 40 {
		lost = lost[:0]
		for _, w := range ways(l) {
			if l.witnessed.where(w.name) != "" {
				continue
			}
			lost = append(lost, w.name)
			// Some ways take bob's MAC address over: he says where he is.
			l.bob.send(packet{dst: everyone, src: hw(bob), ethertype: 0x88b5}.bytes())
			l.alice.send(w.frame())
		}
		if len(lost) == 0 {
			break
		}
		settle()
	}
	for _, name := range lost {
		t.Errorf("%s arrived nowhere: it proves nothing", name)
	}
	if !l.inbound(t) {
		t.Error("nothing arrived at bob from outside: it proves nothing")
	}
}

func TestNoWayOut(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	l.none(t, "before Attach")

	attachBoth(t, d, l)
	l.none(t, "without a listener")

	listener := listening(t, d)
	for _, w := range ways(l) {
		t.Run(w.name, func(t *testing.T) {
			before := dropped(t, d)
			l.alice.send(w.frame())
			if w.want == Unknown {
				return
			}
			for r, after := range dropped(t, d) {
				n := after.Packets - before[r].Packets
				if (r == w.want && n != 1) || (r != w.want && n != 0) {
					t.Errorf("counted %d for %s, want one for %s", n, r, w.want)
				}
			}
		})
	}
	l.none(t, "while attached")
	if l.inbound(t) {
		t.Error("bob was reached from outside")
	}

	must.OK(t, d.Detach(alice.Generation))
	l.none(t, "after Detach")

	must.OK(t, d.Attach(l.aliceEnd))
	must.OK(t, d.Close())
	l.none(t, "after Close")
	must.OK(t, listener.Close())
	l.none(t, "after the listener's end")
}

// A port that nobody attached reaches neither the host nor another such port.
func TestStranger(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	must.OK(t, d.Attach(l.bobEnd))
	settle()
	forged := packet{dst: bridgeMAC(testBridge), src: hw(bob), saddr: bob.Address, daddr: outside, proto: protoUDP, sport: 1, dport: 9, body: []byte(markerStart + "forged" + markerEnd)}
	toAlice := packet{dst: hw(alice), src: l.strangerMAC, saddr: netip.MustParseAddr("10.231.0.12"), daddr: alice.Address, proto: protoUDP, sport: 1, dport: 9}
	toBob := toAlice
	toBob.dst, toBob.daddr, toBob.body = hw(bob), bob.Address, []byte(markerStart+"to bob"+markerEnd)
	l.stranger.send(forged.bytes(), toBob.bytes())
	// alice is not attached either: she is as strange.
	toStranger := packet{dst: l.strangerMAC, src: hw(alice), saddr: alice.Address, daddr: netip.MustParseAddr("10.231.0.12"), proto: protoUDP, sport: 1, dport: 9, body: []byte(markerStart + "to the stranger" + markerEnd)}
	l.alice.send(toStranger.bytes())
	settle()
	for _, marker := range []string{"forged", "to bob", "to the stranger"} {
		if where := l.witnessed.where(marker); where != "" {
			t.Errorf("%s arrived at %s", marker, where)
		}
	}
	// The forged source address has not moved bob's entry.
	entries, err := netlink.NeighList(l.bob.host, 7) // AF_BRIDGE
	must.OK(t, err)
	found := false
	for _, e := range entries {
		found = found || e.HardwareAddr.String() == bob.MAC && e.Flags&netlink.NTF_STICKY != 0
	}
	if !found {
		t.Errorf("bob's forwarding entry is gone: %v", entries)
	}
}
