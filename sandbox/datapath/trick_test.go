package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"sallyport/internal/test/must"
)

// trick is a frame of alice's that a guard could read in another way than who
// gets it.
type trick struct {
	name  string
	frame []byte
	want  Reason // Unknown: it is the gateway's own TCP that deals with it
	reply byte   // TCP flags of what the gateway sends back; 0: nothing
	why   string
}

const (
	fin, syn, rst, psh, ack, urg, ece, cwr = 1, 2, 4, 8, 16, 32, 64, 128

	ipAt, tcpAt = 14, 34 // in a frame without options
)

// forge makes frames out of alice's SYN, each from a port of its own, so that the
// answers can be told apart.
type forge struct{ port uint16 }

func (f *forge) syn() packet {
	p := aliceTCP()
	f.port++
	p.sport = f.port
	return p
}

// set has bytes put where they belong, from an offset on, and then what follows
// appended; checksums are made good.
func (f *forge) set(at int, bytes []byte, more ...byte) []byte {
	frame := append(f.syn().bytes(), more...)
	binary.BigEndian.PutUint16(frame[ipAt+2:], uint16(len(frame)-ipAt))
	copy(frame[at:], bytes)
	mend(frame)
	return frame
}

// flags has other flags of TCP, and data.
func (f *forge) flags(flags byte, data ...byte) []byte {
	return f.set(tcpAt+13, []byte{flags}, data...)
}

// option has options of TCP, a multiple of four bytes, and data.
func (f *forge) option(options []byte, data ...byte) []byte {
	return f.set(tcpAt+12, []byte{byte(5+len(options)/4) << 4}, append(slices.Clone(options), data...)...)
}

// ipOptions has options of IPv4.
func (f *forge) ipOptions(options ...byte) []byte {
	p := f.syn()
	p.options = options
	return p.bytes()
}

// piece is the bytes of the segment from one offset to another as a fragment.
func (f *forge) piece(from, to int, more bool) []byte {
	p := f.syn()
	p.body, p.fragment = p.transport()[from:to], uint16(from/8)
	p.proto = 255
	if more {
		p.fragment |= 0x2000
	}
	frame := p.bytes()
	frame[ipAt+9] = protoTCP
	sum(frame[ipAt:tcpAt], 10)
	return frame
}

// mend computes the checksums of IPv4, with its options, and TCP.
func mend(frame []byte) {
	header := int(frame[ipAt]&0xf) * 4
	if header < 20 || len(frame) < ipAt+header {
		header = 20
	}
	sum(frame[ipAt:ipAt+header], 10)
	segment := frame[ipAt+header:]
	if frame[ipAt+9] != protoTCP || len(segment) < 18 {
		return
	}
	segment[16], segment[17] = 0, 0
	pseudo := append(slices.Clone(frame[ipAt+12:ipAt+20]), 0, protoTCP, byte(len(segment)>>8), byte(len(segment)))
	binary.BigEndian.PutUint16(segment[16:], checksum(append(pseudo, segment...)))
}

func tricks() []trick {
	f := &forge{port: 41000}
	request := []byte("GET / HTTP/1.1\r\n\r\n")
	badSum := f.syn().bytes()
	badSum[tcpAt+16] ^= 0x55
	badHeader := f.syn().bytes()
	badHeader[ipAt+10] ^= 0x55
	padded := append(f.syn().bytes(), make([]byte, 6)...)
	urgent := f.flags(syn | urg)
	urgent[tcpAt+19] = 9
	mend(urgent)
	return []trick{
		{"control: a SYN", f.syn().bytes(), Unknown, syn | ack, "it is what everybody sends"},
		{"control: padded to 60 bytes", padded, Unknown, syn | ack, "Ethernet's least length; the padding is not read"},

		{"tiny first fragment, ports only", f.piece(0, 8, true), Fragment, 0, "flags are in another piece (RFC 1858)"},
		{"tiny second fragment, flags", f.piece(8, 16, true), Fragment, 0, "no ports to judge"},
		{"last fragment", f.piece(16, 20, false), Fragment, 0, "no ports to judge"},
		{"first fragment, whole header", f.piece(0, 16, true), Fragment, 0, "more may overwrite it"},
		{"overlapping fragment, other ports", f.piece(0, 8, true), Fragment, 0, "who reassembles decides which counts (RFC 5722)"},
		{"fragment beyond 64 KB", f.set(ipAt+6, []byte{0x1f, 0xff}), Fragment, 0, "reassembly would overflow"},
		{"more fragments and do not fragment", f.set(ipAt+6, []byte{0x60, 0}), Fragment, 0, "a contradiction is still a piece"},
		{"atomic: do not fragment", f.set(ipAt+6, []byte{0x40, 0}), Unknown, syn | ack, "whole (RFC 6864)"},
		{"the reserved flag", f.set(ipAt+6, []byte{0x80, 0}), Unknown, syn | ack, "nobody reads it (RFC 3514)"},

		{"strict source route to metadata", f.ipOptions(137, 7, 4, 169, 254, 169, 254, 0), Options, 0, "the destination is in the option"},
		{"strict source route, used up", f.ipOptions(137, 7, 8, 169, 254, 169, 254, 0), Options, 0, "still a route"},
		{"record route", f.ipOptions(7, 7, 4, 0, 0, 0, 0, 0), Options, 0, "tells of the host's addresses"},
		{"time stamps", f.ipOptions(68, 8, 5, 1, 0, 0, 0, 0), Options, 0, "tells of the host's addresses"},
		{"security", f.ipOptions(130, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), Options, 0, "nobody needs it"},
		{"stream identifier", f.ipOptions(136, 4, 0, 1), Options, 0, "nobody needs it"},
		{"router alert", f.ipOptions(148, 4, 0, 0), Options, 0, "hosts that route look closer"},
		{"options that do nothing", f.ipOptions(1, 1, 1, 0), Options, 0, "they move what stands behind"},
		{"forty bytes of options", f.ipOptions(slices.Repeat([]byte{1}, 40)...), Options, 0, "they move what stands behind"},
		{"option of length 0", f.ipOptions(68, 0, 0, 0), Options, 0, "parsers have looped on it"},
		{"option beyond the header", f.ipOptions(68, 60, 5, 0), Options, 0, "parsers have read on"},
		{"options that are not there", f.set(ipAt, []byte{0x4f}), Options, 0, "said before what is not there is read"},
		{"header of no words", f.set(ipAt, []byte{0x40}), Malformed, 0, "shorter than itself"},
		{"IP version 0", f.set(ipAt, []byte{0x05}), Malformed, 0, "not what the frame says it is"},
		{"IP version 5", f.set(ipAt, []byte{0x55}), Malformed, 0, "not what the frame says it is"},
		{"total length beyond the frame", f.set(ipAt+2, []byte{0, 41}), Malformed, 0, "cut short"},
		{"total length of 64 KB", f.set(ipAt+2, []byte{0xff, 0xff}), Malformed, 0, "cut short"},
		{"total length 0", f.set(ipAt+2, []byte{0, 0}), Malformed, 0, "for segments beyond 64 KB only, which a frame is not"},
		{"total length of half the IP header", f.set(ipAt+2, []byte{0, 10}), Malformed, 0, "shorter than itself"},
		{"total length without a TCP header", f.set(ipAt+2, []byte{0, 20}), Malformed, 0, "the ports would be padding"},
		{"total length of half a TCP header", f.set(ipAt+2, []byte{0, 30}), Malformed, 0, "the flags would be padding"},
		{"TTL 0", f.set(ipAt+8, []byte{0}), Unknown, syn | ack, "the gateway is the end of the way (RFC 1122, 3.2.1.7)"},
		{"TTL 1", f.set(ipAt+8, []byte{1}), Unknown, syn | ack, "so traceroute sees one hop"},
		{"all of the type of service", f.set(ipAt+1, []byte{0xff}), Unknown, syn | ack, "nobody reads it"},
		{"bad IP checksum", badHeader, Unknown, 0, "IP drops it: ip_rcv"},

		{"SYN and FIN", f.flags(syn | fin), Unknown, 0, "TCP drops it"},
		{"SYN and RST", f.flags(syn | rst), Unknown, 0, "TCP drops it"},
		{"no flags", f.flags(0), Unknown, 0, "TCP drops it"},
		{"FIN, PSH and URG", f.flags(fin | psh | urg), Unknown, 0, "TCP drops it"},
		{"all flags", f.flags(0xff), Unknown, 0, "TCP drops it for its RST"},
		{"FIN", f.flags(fin), Unknown, 0, "TCP drops it"},
		{"RST", f.flags(rst), Unknown, 0, "there is nothing to reset"},
		{"ACK", f.flags(ack), Unknown, rst, "no connection: TCP resets it"},
		{"SYN and ACK", f.flags(syn | ack), Unknown, rst, "no connection: TCP resets it"},
		{"data without a connection", f.flags(psh|ack, request...), Unknown, rst, "no connection: TCP resets it"},
		{"SYN with ECE and CWR", f.flags(syn | ece | cwr), Unknown, syn | ack, "ECN is asked for (RFC 3168)"},
		{"SYN with data", f.flags(syn, request...), Unknown, syn | ack, "the data is not acknowledged"},
		{"SYN that is urgent", urgent, Unknown, syn | ack, "there is no data to point to"},
		{"SYN asking for a cookie", f.option([]byte{34, 2, 1, 1}), Unknown, syn | ack, "the listener has no TCP Fast Open"},
		{"SYN with a cookie and data", f.option([]byte{34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1}, request...), Unknown, syn | ack, "the data is not acknowledged"},
		{"SYN with an MSS of 0", f.option([]byte{2, 4, 0, 0}), Unknown, syn | ack, "TCP has a least one of its own"},
		{"SYN with an option of length 0", f.option([]byte{2, 0, 0, 0}), Unknown, syn | ack, "TCP stops reading options"},
		{"SYN with an option beyond the header", f.option([]byte{2, 40, 0, 0}), Unknown, syn | ack, "TCP stops reading options"},
		{"SYN signed with MD5", f.option(append([]byte{19, 18}, make([]byte, 18)...)), Unknown, 0, "TCP has no key for it (RFC 2385)"},
		{"TCP header of 4 words", f.set(tcpAt+12, []byte{4 << 4}), Malformed, 0, "shorter than itself"},
		{"TCP header of no words", f.set(tcpAt+12, []byte{0}), Malformed, 0, "shorter than itself"},
		{"TCP header beyond the packet", f.set(tcpAt+12, []byte{15 << 4}), Malformed, 0, "options that are not there"},
		{"bad TCP checksum", badSum, Unknown, 0, "TCP drops it"},
		{"from port 0", f.set(tcpAt, []byte{0, 0}), Malformed, 0, "no socket has it (RFC 6335)"},
		{"to port 0", f.set(tcpAt+2, []byte{0, 0}), Malformed, 0, "no socket has it (RFC 6335)"},

		{"to itself", f.set(ipAt+16, alice.Address.AsSlice()), EastWest, 0, "a loop (land)"},
		{"to the subnet's broadcast", f.set(ipAt+16, []byte{10, 231, 255, 255}), EastWest, 0, "everybody is asked"},
		{"to the subnet itself", f.set(ipAt+16, []byte{10, 231, 0, 0}), EastWest, 0, "an old form of broadcast"},
		{"to everybody", f.set(ipAt+16, []byte{255, 255, 255, 255}), Destination, 0, "TCP has one other end"},
		{"to a group", f.set(ipAt+16, []byte{239, 1, 2, 3}), Destination, 0, "TCP has one other end"},
		{"to the future", f.set(ipAt+16, []byte{240, 0, 0, 1}), Destination, 0, "reserved (RFC 1112)"},
		{"to a group's MAC", f.set(0, []byte{1, 0, 0x5e, 0, 0, 1}), Destination, 0, "others would hear"},
		{"to a link-local group's MAC", f.set(0, []byte{1, 0x80, 0xc2, 0, 0, 0}), Destination, 0, "bridges treat it in other ways"},
		{"to no MAC", f.set(0, []byte{0, 0, 0, 0, 0, 0}), Destination, 0, "it is nobody's"},
		{"from a group's MAC", f.set(6, []byte{3}), BadMAC, 0, "bridges may learn it"},
	}
}

func TestTricks(t *testing.T) {
	d := programs(t)
	admit(t, d, alice, loopback)
	for _, trick := range tricks() {
		t.Run(trick.name, func(t *testing.T) {
			expect(t, d, d.objs.PortIn, packet{raw: trick.frame}, skb{}, trick.want)
			if t.Failed() {
				t.Log(trick.why)
			}
		})
	}
}

// Of IP's protocols TCP, UDP and ICMP have reasons of their own.
func TestEveryProtocol(t *testing.T) {
	d := programs(t)
	admit(t, d, alice, loopback)
	for proto := range 256 {
		p := aliceTCP()
		if p.proto = byte(proto); proto == protoTCP || proto == protoUDP || proto == protoICMP {
			continue
		}
		p.body = append(aliceTCP().network(), make([]byte, 20)...) // a packet inside
		t.Run(fmt.Sprint("IPv4 ", proto), func(t *testing.T) {
			expect(t, d, d.objs.PortIn, p, skb{}, Protocol)
			p.fragment = 0x2000
			expect(t, d, d.objs.PortIn, p, skb{}, Fragment)
		})
	}
	neighbours := 0
	for proto := range 256 {
		p := aliceTCP()
		p.saddr, p.daddr = netip.MustParseAddr("::ffff:10.231.0.10"), netip.MustParseAddr("::ffff:198.51.100.2")
		p.proto, p.body = byte(proto), append([]byte{protoTCP}, aliceTCP().transport()...)
		t.Run(fmt.Sprint("IPv6 ", proto), func(t *testing.T) {
			for kind := range 256 {
				if proto != protoICMP6 && kind > 0 {
					break
				}
				want := IPv6
				if p.icmp = byte(kind); proto == protoICMP6 && kind >= 133 && kind <= 137 {
					want = Neighbour
					neighbours++
				}
				expect(t, d, d.objs.PortIn, p, skb{}, want)
			}
		})
	}
	if neighbours != 5 {
		t.Errorf("%d messages of neighbour discovery, want 5", neighbours)
	}
}

// Of all that can stand in the frame's type field, only two pass at all.
func TestEveryEtherType(t *testing.T) {
	d := programs(t)
	admit(t, d, alice, loopback)
	inside := aliceTCP().network()
	for ethertype := range 1 << 16 {
		frame := append(append([]byte{}, aliceTCP().bytes()[:14]...), inside...)
		binary.BigEndian.PutUint16(frame[12:], uint16(ethertype))
		verdict, err := d.objs.PortIn.Run(&ebpf.RunOptions{Data: frame, Context: skb{}})
		must.OK(t, err)
		if passed := verdict == redirect; passed != (ethertype == 0x0800) {
			t.Fatalf("ethertype %#04x: got verdict %d", ethertype, int32(verdict))
		}
	}
	dropped := dropped(t, d)
	for reason, want := range map[Reason]uint64{
		STP: 0x600, VLAN: 2, IPv6: 0, BadARP: 1, Malformed: 0, EtherType: 1<<16 - 0x600 - 2 - 3,
	} {
		// Anything in an IPv6 header's place is taken for one.
		if reason == IPv6 {
			want = 1
		}
		if got := dropped[reason].Packets; got != want {
			t.Errorf("%d dropped for %s, want %d", got, reason, want)
		}
	}
}

// Layers below IP, and frames that say two things.
func layers() []trick {
	to := func(ethertype uint16, body ...byte) packet {
		return packet{dst: bridgeMAC(testBridge), src: hw(alice), ethertype: ethertype, body: append(body, aliceTCP().network()...)}
	}
	resolve := func(change func(*arp)) packet {
		p := aliceARP()
		change(p.arp)
		return p
	}
	header := func(at int, bytes ...byte) packet {
		frame := aliceARP().bytes()
		copy(frame[14+at:], bytes)
		return packet{raw: frame}
	}
	cut := func(p packet, n int) packet {
		p.cut = n
		return p
	}
	v6 := aliceTCP()
	v6.saddr, v6.daddr = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	reply := aliceARP()
	reply.dst, reply.arp.op = bridgeMAC(testBridge), 2
	long := aliceTCP()
	long.flags, long.body = ack, make([]byte, 3000)
	var all []trick
	for _, l := range []struct {
		name string
		p    packet
		want Reason
	}{
		{"control: ARP", aliceARP(), Unknown},
		{"control: ARP reply", reply, Unknown},
		{"provider's tag", to(0x88a8, 0, 5, 8, 0), VLAN},
		{"priority tag", to(0x8100, 0xe0, 0, 8, 0), VLAN},
		{"three tags", to(0x88a8, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7, 8, 0), VLAN},
		{"old QinQ", to(0x9100, 0, 5, 8, 0), EtherType},
		{"MPLS, to a group", to(0x8848, 0, 1, 0x11, 64), EtherType},
		{"PPPoE discovery", to(0x8863, 0x11, 9, 0, 0, 0, 0), EtherType},
		{"pause", packet{dst: []byte{1, 0x80, 0xc2, 0, 0, 1}, src: hw(alice), ethertype: 0x8808, body: make([]byte, 46)}, EtherType},
		{"link aggregation", packet{dst: []byte{1, 0x80, 0xc2, 0, 0, 2}, src: hw(alice), ethertype: 0x8809, body: make([]byte, 46)}, EtherType},
		{"port authentication", packet{dst: []byte{1, 0x80, 0xc2, 0, 0, 3}, src: hw(alice), ethertype: 0x888e, body: make([]byte, 46)}, EtherType},
		{"LLDP to its group", packet{dst: []byte{1, 0x80, 0xc2, 0, 0, 14}, src: hw(alice), ethertype: 0x88cc, body: make([]byte, 46)}, EtherType},
		{"MACsec", to(0x88e5, 0, 0, 0, 0, 0, 1), EtherType},
		{"reverse ARP's type", to(0x8035), EtherType},
		{"batman", to(0x4305), EtherType},
		{"Ethernet in Ethernet", to(0x6558, aliceTCP().bytes()[:14]...), EtherType},
		{"IPv4 in SNAP", to(48, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0), STP},
		{"IPX's raw 802.3", to(46, 0xff, 0xff), STP},
		{"802.3 of no length", header(-2, 0, 0), STP},
		{"802.3 of the greatest length", to(1500), STP},
		{"between length and type", to(0x05ff), STP},
		{"IPv4 said to be IPv6", to(0x86dd), IPv6},
		{"IPv6 said to be IPv4", packet{dst: v6.dst, src: v6.src, ethertype: 0x0800, body: v6.network()}, Malformed},

		{"gratuitous ARP for bob", resolve(func(a *arp) { a.spa, a.tpa = bob.Address, bob.Address }), BadARP},
		{"gratuitous ARP for the gateway", resolve(func(a *arp) { a.spa, a.tpa = gateway, gateway }), BadARP},
		{"gratuitous ARP reply", resolve(func(a *arp) { a.op, a.tpa = 2, alice.Address }), BadARP},
		{"ARP probe", resolve(func(a *arp) { a.spa = netip.IPv4Unspecified() }), BadARP},
		{"ARP for the host's other address", resolve(func(a *arp) { a.tpa = netip.MustParseAddr("198.51.100.1") }), BadARP},
		{"proxy ARP: bob is here", packet{dst: bridgeMAC(testBridge), src: hw(alice), arp: &arp{2, hw(alice), bridgeMAC(testBridge), bob.Address, gateway}}, BadARP},
		{"bob's MAC is alice's address", packet{dst: bridgeMAC(testBridge), src: hw(alice), arp: &arp{2, hw(bob), bridgeMAC(testBridge), alice.Address, gateway}}, BadARP},
		{"alice is at everybody's MAC", packet{dst: bridgeMAC(testBridge), src: hw(alice), arp: &arp{2, everyone, bridgeMAC(testBridge), alice.Address, gateway}}, BadARP},
		{"ARP of no operation", resolve(func(a *arp) { a.op = 0 }), BadARP},
		{"inverse ARP", resolve(func(a *arp) { a.op = 8 }), BadARP},
		{"ARP's refusal", resolve(func(a *arp) { a.op = 10 }), BadARP},
		{"ARP of another hardware", header(1, 6), BadARP},
		{"ARP of IPv6", header(2, 0x86, 0xdd), BadARP},
		{"ARP with long hardware addresses", header(4, 8), BadARP},
		{"ARP with long protocol addresses", header(5, 16), BadARP},

		{"an Ethernet header alone", cut(aliceTCP(), 14), Malformed},
		{"a byte of IP", cut(aliceTCP(), 15), Malformed},
		{"IP but for a byte", cut(aliceTCP(), 33), Malformed},
		{"IP alone", cut(aliceTCP(), 34), Malformed},
		{"TCP but for a byte", cut(aliceTCP(), 53), Malformed},
		{"UDP but for a byte", cut(aliceDNS(), 41), Malformed},
		{"UDP but for its data", cut(aliceDNS(), 42), Malformed},
		{"ARP but for a byte", cut(aliceARP(), 41), Malformed},
		{"IPv6 but for a byte", cut(v6, 53), Malformed},
		{"IPv6 alone", cut(v6, 54), IPv6},
		{"beyond the MTU", long, Unknown},
	} {
		all = append(all, trick{name: l.name, frame: l.p.bytes(), want: l.want})
	}
	return all
}

func TestLinkLayer(t *testing.T) {
	d := programs(t)
	admit(t, d, alice, loopback)
	for _, l := range layers() {
		t.Run(l.name, func(t *testing.T) {
			if len(l.frame) < tcpAt || len(l.frame) < ipAt+40 && l.frame[12] == 0x86 {
				return // Program.Run has none of these: TestTricksOnTheWire has
			}
			expect(t, d, d.objs.PortIn, packet{raw: l.frame}, skb{}, l.want)
		})
	}
}
