package datapath

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

var (
	subnet  = netip.MustParsePrefix("10.231.0.0/16")
	gateway = netip.MustParseAddr("10.231.0.1")
	outside = netip.MustParseAddr("198.51.100.2")

	alice = sandbox.Endpoint{
		Sandbox: "alice", ID: "id-of-alice", Generation: 7,
		Address: netip.MustParseAddr("10.231.0.10"), MAC: "02:42:0a:e7:00:0a",
	}
	bob = sandbox.Endpoint{
		Sandbox: "bob", ID: "id-of-bob", Generation: 8,
		Address: netip.MustParseAddr("10.231.0.11"), MAC: "02:42:0a:e7:00:0b",
	}

	everyone = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	nobody   = net.HardwareAddr{0, 0, 0, 0, 0, 0}
)

const testBridge = "spdp0"

func hw(e sandbox.Endpoint) net.HardwareAddr {
	mac, err := net.ParseMAC(e.MAC)
	if err != nil {
		panic(err)
	}
	return mac
}

// Frames of alice's that pass.
func aliceTCP() packet {
	return packet{dst: bridgeMAC(testBridge), src: hw(alice), saddr: alice.Address, daddr: outside, proto: protoTCP, sport: 40000, dport: 443}
}

func aliceDNS() packet {
	p := aliceTCP()
	p.daddr, p.proto, p.dport, p.body = gateway, protoUDP, 53, []byte("a question")
	return p
}

func aliceARP() packet {
	return packet{dst: everyone, src: hw(alice), arp: &arp{1, hw(alice), nobody, alice.Address, gateway}}
}

// loopback is the interface that Program.Run takes for the frame's.
const loopback = 1

// programs loads the programs without a bridge.
func programs(t testing.TB) *Datapath {
	t.Helper()
	needRoot(t)
	config, err := Config{Bridge: testBridge, Subnet: subnet, Pins: filepath.Join(bpffs, "sallyport-"+t.Name())}.complete()
	if err != nil {
		t.Fatal(err)
	}
	if err := mountPins(config.Pins); err != nil {
		t.Fatal(err)
	}
	d := &Datapath{config: config, mac: bridgeMAC(testBridge)}
	if err := d.load(); err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		d.Close()
		os.RemoveAll(config.Pins)
	})
	return d
}

// admit writes the endpoint's entries as Attach does.
func admit(t testing.TB, d *Datapath, e sandbox.Endpoint, ifindex uint32) {
	t.Helper()
	var old uint32
	if d.objs.Ports.Lookup(ifindex, &old) == nil {
		dismiss(t, d, old)
	}
	dismiss(t, d, e.Generation)
	var v guardEndpoint
	v.Face.Link, v.Face.Address = ifindex, wire(e.Address)
	copy(v.Face.Mac.Addr[:], hw(e))
	if e.Offline {
		v.Face.Offline = 1
	}
	copy(v.Sandbox[:], e.Sandbox)
	must.OK(t, d.putProbePorts(e.Generation, e.ProbePorts))
	must.OK(t, d.objs.Endpoints.Put(e.Generation, v))
	must.OK(t, d.objs.Ports.Put(ifindex, e.Generation))
	must.OK(t, d.bringNear(e.Generation, v))
}

// dismiss takes them away again.
func dismiss(t testing.TB, d *Datapath, generation uint32) {
	t.Helper()
	must.OK(t, d.detach(generation))
}

// skb is struct __sk_buff of linux/bpf.h.
type skb [48]uint32

const (
	skbMark    = 2
	skbIngress = 9
)

const (
	next     = ^uint32(0) // TCX_NEXT
	shot     = 2          // TCX_DROP
	redirect = 7          // TCX_REDIRECT: to the bridge, or turned round as an answer
)

// run gives the verdict and the mark left on the packet.
func run(t *testing.T, program *ebpf.Program, p packet, in skb) (verdict, mark uint32) {
	t.Helper()
	var out skb
	verdict, err := program.Run(&ebpf.RunOptions{Data: p.bytes(), Context: in, ContextOut: &out})
	if err != nil {
		t.Fatal(err)
	}
	return verdict, out[skbMark]
}

func counters(t *testing.T, d *Datapath) Counters {
	t.Helper()
	c, err := d.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func dropped(t *testing.T, d *Datapath) map[Reason]Traffic {
	t.Helper()
	return counters(t, d).Dropped
}

// expect runs the frame and wants it dropped for the one reason, or passed for
// Unknown.
func expect(t *testing.T, d *Datapath, program *ebpf.Program, p packet, in skb, want Reason) {
	t.Helper()
	before := counters(t, d)
	verdict, _ := run(t, program, p, in)
	after := counters(t, d)
	var got Reason
	for r, traffic := range after.Dropped {
		if traffic.Packets == before.Dropped[r].Packets+1 {
			got = r
		}
	}
	passed := after.Sent.Packets + after.Accepted.Packets + after.Delivered.Packets -
		before.Sent.Packets - before.Accepted.Packets - before.Delivered.Packets
	answered := after.Answered.Packets - before.Answered.Packets
	agree := verdict == next && passed == 1 || verdict == shot && passed+answered == 0 || verdict == redirect && passed+answered == 1
	if got != want || (passed == 1) != (want == Unknown) || !agree {
		t.Errorf("got verdict %d, %d passed, %d answered, dropped for %s; want dropped for %s", int32(verdict), passed, answered, got, want)
	}
}

func TestPortIn(t *testing.T) {
	d := programs(t)
	admit(t, d, alice, loopback)
	tests := []struct {
		name   string
		base   func() packet // passes
		change func(*packet)
		want   Reason
	}{
		{"source MAC of bob", aliceTCP, func(p *packet) { p.src = hw(bob) }, BadMAC},
		{"source MAC of the bridge", aliceTCP, func(p *packet) { p.src = bridgeMAC(testBridge) }, BadMAC},
		{"source MAC differs in the last bit", aliceTCP, func(p *packet) { m := hw(alice); m[5] ^= 1; p.src = m }, BadMAC},
		{"DNS with a foreign MAC", aliceDNS, func(p *packet) { p.src = hw(bob) }, BadMAC},
		{"source address of bob", aliceTCP, func(p *packet) { p.saddr = bob.Address }, BadAddress},
		{"source address of the gateway", aliceTCP, func(p *packet) { p.saddr = gateway }, BadAddress},
		{"source address 0.0.0.0", aliceTCP, func(p *packet) { p.saddr = netip.IPv4Unspecified() }, BadAddress},
		{"DNS with a foreign address", aliceDNS, func(p *packet) { p.saddr = bob.Address }, BadAddress},
		{"DHCP", aliceDNS, func(p *packet) {
			p.dst, p.saddr, p.daddr = everyone, netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255")
			p.sport, p.dport = 68, 67
		}, BadAddress},
		{"ARP with a foreign sender MAC", aliceARP, func(p *packet) { p.arp.sender = hw(bob) }, BadARP},
		{"ARP with a foreign Ethernet source", aliceARP, func(p *packet) { p.src = hw(bob) }, BadMAC},
		{"ARP with a foreign sender address", aliceARP, func(p *packet) { p.arp.spa = bob.Address }, BadARP},
		{"ARP in the gateway's name", aliceARP, func(p *packet) { p.arp.spa = gateway }, BadARP},
		{"ARP for bob", aliceARP, func(p *packet) { p.arp.tpa = bob.Address }, BadARP},
		{"ARP announcement", aliceARP, func(p *packet) { p.arp.tpa = alice.Address }, BadARP},
		{"ARP reply to everyone", aliceARP, func(p *packet) { p.arp.op = 2 }, BadARP},
		{"ARP request to bob's MAC", aliceARP, func(p *packet) { p.dst = hw(bob) }, BadARP},
		{"reverse ARP", aliceARP, func(p *packet) { p.arp.op = 3 }, BadARP},
		{"TCP to bob", aliceTCP, func(p *packet) { p.daddr = bob.Address }, EastWest},
		{"TCP to bob by his MAC", aliceTCP, func(p *packet) { p.daddr, p.dst = bob.Address, hw(bob) }, EastWest},
		{"UDP to bob", aliceDNS, func(p *packet) { p.daddr = bob.Address }, EastWest},
		{"to the subnet's broadcast", aliceDNS, func(p *packet) { p.daddr = netip.MustParseAddr("10.231.255.255") }, EastWest},
		{"TCP past the gateway's MAC", aliceTCP, func(p *packet) { p.dst = hw(bob) }, Destination},
		{"TCP to the broadcast MAC", aliceTCP, func(p *packet) { p.dst = everyone }, Destination},
		{"DNS past the gateway's MAC", aliceDNS, func(p *packet) { p.dst = hw(bob) }, Destination},
		{"TCP to loopback", aliceTCP, func(p *packet) { p.daddr = netip.MustParseAddr("127.0.0.1") }, Destination},
		{"TCP to 0.0.0.0", aliceTCP, func(p *packet) { p.daddr = netip.IPv4Unspecified() }, Destination},
		{"TCP to multicast", aliceTCP, func(p *packet) { p.daddr = netip.MustParseAddr("224.0.0.1") }, Destination},
		{"TCP to 255.255.255.255", aliceTCP, func(p *packet) { p.daddr = netip.MustParseAddr("255.255.255.255") }, Destination},
		{"IPv6 TCP", aliceTCP, func(p *packet) {
			p.saddr, p.daddr = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		}, IPv6},
		{"router advertisement", aliceTCP, func(p *packet) {
			p.saddr, p.daddr = netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::1")
			p.proto, p.icmp = protoICMP6, 134
		}, Neighbour},
		{"neighbour advertisement", aliceTCP, func(p *packet) {
			p.saddr, p.daddr = netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::1")
			p.proto, p.icmp = protoICMP6, 136
		}, Neighbour},
		{"IPv6 echo", aliceTCP, func(p *packet) {
			p.saddr, p.daddr = netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2")
			p.proto, p.icmp = protoICMP6, 128
		}, IPv6},
		{"VLAN tag", aliceTCP, func(p *packet) { p.tags = []uint16{0x8100} }, VLAN},
		{"two tags", aliceTCP, func(p *packet) { p.tags = []uint16{0x88a8, 0x8100} }, VLAN},
		{"tagged DNS", aliceDNS, func(p *packet) { p.tags = []uint16{0x8100} }, VLAN},
		{"tagged ARP", aliceARP, func(p *packet) { p.tags = []uint16{0x8100} }, VLAN},
		{"spanning tree", aliceTCP, func(p *packet) {
			*p = packet{dst: net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0}, src: p.src, ethertype: 38, body: make([]byte, 46)}
		}, STP},
		{"LLDP", aliceTCP, func(p *packet) { *p = packet{dst: p.dst, src: p.src, ethertype: 0x88cc, body: make([]byte, 46)} }, EtherType},
		{"PPPoE", aliceTCP, func(p *packet) { p.ethertype = 0x8864 }, EtherType},
		{"MPLS", aliceTCP, func(p *packet) { p.ethertype = 0x8847 }, EtherType},
		{"first fragment", aliceTCP, func(p *packet) { p.fragment = 0x2000 }, Fragment},
		{"last fragment", aliceTCP, func(p *packet) { p.fragment = 1 }, Fragment},
		{"fragment of DNS", aliceDNS, func(p *packet) { p.fragment = 0x2000 }, Fragment},
		{"loose source route", aliceTCP, func(p *packet) { p.options = []byte{131, 7, 4, 203, 0, 113, 1, 0} }, Options},
		{"router alert", aliceDNS, func(p *packet) { p.options = []byte{148, 4, 0, 0} }, Options},
		{"ping", aliceTCP, func(p *packet) { p.proto, p.icmp = protoICMP, 8 }, ICMP},
		{"ping of the gateway", aliceDNS, func(p *packet) { p.proto, p.icmp = protoICMP, 8 }, ICMP},
		{"ICMP redirect", aliceTCP, func(p *packet) { p.proto, p.icmp = protoICMP, 5 }, ICMP},
		{"QUIC", aliceTCP, func(p *packet) { p.proto = protoUDP }, QUIC},
		{"another resolver", aliceDNS, func(p *packet) { p.daddr = outside }, DNS},
		{"the resolver's other port", aliceDNS, func(p *packet) { p.dport = 5353 }, UDP},
		{"from port 53", aliceDNS, func(p *packet) { p.sport, p.dport = 53, 40000 }, UDP},
		{"NTP", aliceDNS, func(p *packet) { p.daddr, p.dport = outside, 123 }, UDP},
		{"mDNS", aliceDNS, func(p *packet) { p.daddr, p.dport = netip.MustParseAddr("224.0.0.251"), 5353 }, UDP},
		{"GRE", aliceTCP, func(p *packet) { p.proto = protoGRE }, Protocol},
		{"SCTP", aliceTCP, func(p *packet) { p.proto = protoSCTP }, Protocol},
		{"IPv6 in IPv4", aliceTCP, func(p *packet) { p.proto = 41 }, Protocol},
		{"IGMP", aliceTCP, func(p *packet) { p.proto, p.daddr = 2, netip.MustParseAddr("224.0.0.22") }, Protocol},
		{"half a TCP header", aliceTCP, func(p *packet) { p.cut = 14 + 20 + 12 }, Malformed},
		{"half a UDP header", aliceDNS, func(p *packet) { p.cut = 14 + 20 + 6 }, Malformed},
		{"half an ARP packet", aliceARP, func(p *packet) { p.cut = 14 + 20 }, Malformed},
		{"IP version 6 as IPv4", aliceTCP, func(p *packet) {
			*p = packet{dst: p.dst, src: p.src, ethertype: 0x0800, body: append([]byte{0x65}, p.network()[1:]...)}
		}, Malformed},
		{"header of 16 bytes", aliceTCP, func(p *packet) {
			*p = packet{dst: p.dst, src: p.src, ethertype: 0x0800, body: append([]byte{0x44}, p.network()[1:]...)}
		}, Malformed},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := test.base()
			expect(t, d, d.objs.PortIn, p, skb{}, Unknown)
			test.change(&p)
			expect(t, d, d.objs.PortIn, p, skb{}, test.want)
		})
	}
}

func TestPortInPasses(t *testing.T) {
	d := programs(t)
	admit(t, d, alice, loopback)
	reply := aliceARP()
	reply.dst, reply.arp.op = bridgeMAC(testBridge), 2
	unicast := aliceARP()
	unicast.dst = bridgeMAC(testBridge)
	toGateway := aliceTCP()
	toGateway.daddr, toGateway.flags = gateway, 0x12
	metadata := aliceTCP()
	metadata.daddr = netip.MustParseAddr("169.254.169.254")
	for name, p := range map[string]packet{
		"TCP": aliceTCP(), "DNS": aliceDNS(), "ARP": aliceARP(), "ARP reply": reply, "ARP to the gateway's MAC": unicast,
		"TCP to the gateway": toGateway, "TCP to the metadata address, for a legible denial": metadata,
	} {
		t.Run(name, func(t *testing.T) {
			verdict, mark := run(t, d.objs.PortIn, p, skb{skbMark: 99})
			if verdict != redirect || mark != alice.Generation {
				t.Errorf("got verdict %d, stamp %d; want %d", int32(verdict), mark, alice.Generation)
			}
		})
	}
}

func TestPortWithoutEndpoint(t *testing.T) {
	d := programs(t)
	expect(t, d, d.objs.PortIn, aliceTCP(), skb{}, Unattached)
	expect(t, d, d.objs.PortOut, aliceTCP(), skb{}, Unattached)
	admit(t, d, alice, loopback)
	expect(t, d, d.objs.PortIn, aliceTCP(), skb{}, Unknown)
	// The port's number alone is not trusted.
	admit(t, d, alice, 2)
	must.OK(t, d.objs.Ports.Put(uint32(loopback), alice.Generation))
	expect(t, d, d.objs.PortIn, aliceTCP(), skb{}, Unattached)
	admit(t, d, alice, loopback)
	dismiss(t, d, alice.Generation)
	expect(t, d, d.objs.PortIn, aliceTCP(), skb{}, Unattached)
}

func TestPortOut(t *testing.T) {
	d := programs(t)
	admit(t, d, alice, loopback)
	toAlice := func() packet {
		return packet{dst: hw(alice), src: bridgeMAC(testBridge), saddr: outside, daddr: alice.Address, proto: protoTCP, sport: 443, dport: 40000, flags: 0x12}
	}
	question := func() packet {
		return packet{dst: everyone, src: bridgeMAC(testBridge), arp: &arp{1, bridgeMAC(testBridge), nobody, gateway, alice.Address}}
	}
	answer := func() packet {
		return packet{dst: hw(alice), src: bridgeMAC(testBridge), arp: &arp{2, bridgeMAC(testBridge), hw(alice), gateway, alice.Address}}
	}
	tests := []struct {
		name   string
		base   func() packet
		in     skb
		change func(*packet)
		want   Reason
	}{
		{"from another port", toAlice, skb{skbIngress: 1}, func(*packet) {}, NotHost},
		{"ARP from another port", question, skb{skbIngress: 1}, func(*packet) {}, NotHost},
		{"to bob's MAC", toAlice, skb{}, func(p *packet) { p.dst = hw(bob) }, NotAddressed},
		{"to everyone's MAC", toAlice, skb{}, func(p *packet) { p.dst = everyone }, NotAddressed},
		{"to bob's address", toAlice, skb{}, func(p *packet) { p.daddr = bob.Address }, NotAddressed},
		{"to multicast", toAlice, skb{}, func(p *packet) { p.daddr = netip.MustParseAddr("224.0.0.251") }, NotAddressed},
		{"ARP for bob", question, skb{}, func(p *packet) { p.arp.tpa = bob.Address }, NotAddressed},
		{"ARP answer for bob", answer, skb{}, func(p *packet) { p.dst = hw(bob) }, NotAddressed},
		{"IPv6", toAlice, skb{}, func(p *packet) {
			p.saddr, p.daddr = netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2")
		}, IPv6},
		{"VLAN", toAlice, skb{}, func(p *packet) { p.tags = []uint16{0x8100} }, VLAN},
		{"spanning tree", toAlice, skb{}, func(p *packet) {
			*p = packet{dst: net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0}, src: p.src, ethertype: 38, body: make([]byte, 46)}
		}, STP},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := test.base()
			test.in[skbMark] = routeMark
			expect(t, d, d.objs.PortOut, p, skb{skbMark: routeMark}, Unknown)
			test.change(&p)
			expect(t, d, d.objs.PortOut, p, test.in, test.want)
		})
	}
	// A packet of a process of the host has no mark, or another one.
	ping, datagram := toAlice(), toAlice()
	ping.proto, ping.icmp, datagram.proto = protoICMP, 8, protoUDP
	piece := datagram
	piece.fragment = 0x2000
	for name, p := range map[string]packet{"TCP": toAlice(), "UDP": datagram, "ping": ping, "a fragment": piece} {
		for _, mark := range []uint32{0, 1, routeMark << 16, routeMark + 1} {
			t.Run(fmt.Sprintf("%s with mark %#x", name, mark), func(t *testing.T) {
				expect(t, d, d.objs.PortOut, p, skb{skbMark: mark}, HostProcess)
			})
		}
		expect(t, d, d.objs.PortOut, p, skb{skbMark: routeMark}, Unknown)
	}
	expect(t, d, d.objs.PortOut, question(), skb{}, Unknown) // the kernel's own
	// Only a socket that may opens a connection, and that one again.
	opens, other, hidden, cut := toAlice(), toAlice(), toAlice(), toAlice()
	opens.flags, other.flags, hidden.flags, cut.flags = syn, syn, syn, syn
	other.dport++
	hidden.options, cut.fragment = []byte{1, 1, 1, 1}, 0x2000
	for _, p := range []packet{opens, other, hidden, cut} {
		expect(t, d, d.objs.PortOut, p, skb{skbMark: routeMark}, HostProcess)
	}
	expect(t, d, d.objs.PortOut, opens, skb{skbMark: openMark}, Unknown)
	expect(t, d, d.objs.PortOut, opens, skb{skbMark: routeMark}, Unknown)
	expect(t, d, d.objs.PortOut, other, skb{skbMark: routeMark}, HostProcess)
}

// The cost of one packet in each program.
func BenchmarkPrograms(b *testing.B) {
	d := programs(b)
	toAlice := packet{dst: hw(alice), src: bridgeMAC(testBridge), saddr: outside, daddr: alice.Address, proto: protoTCP, sport: 443, dport: 40000, flags: syn | ack}
	// bridge_in leaves another stamp on what it passes, which is the next one's.
	again := alice
	again.Generation = routeMark
	admit(b, d, again, loopback)
	l, err := Listen()
	must.OK(b, err)
	defer l.Close()
	must.OK(b, d.Steer(l))
	segment := toAlice
	segment.flags, segment.body = psh|ack, make([]byte, 1000)
	nowhere := aliceTCP()
	nowhere.daddr = netip.MustParseAddr("127.0.0.1")
	for _, bench := range []struct {
		name    string
		program *ebpf.Program
		packet  packet
		in      skb
	}{
		{"port in", d.objs.PortIn, aliceTCP(), skb{}},
		{"port in, dropped", d.objs.PortIn, nowhere, skb{}},
		{"port out", d.objs.PortOut, toAlice, skb{skbMark: routeMark}},
		{"port out, of a flow", d.objs.PortOut, segment, skb{skbMark: routeMark}},
		{"bridge in, to the listener", d.objs.BridgeIn, aliceTCP(), skb{skbMark: routeMark}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			data := bench.packet.bytes()
			if _, err := bench.program.Run(&ebpf.RunOptions{Data: data, Context: bench.in, Repeat: uint32(b.N)}); err != nil {
				b.Fatal(err)
			}
		})
	}
}
