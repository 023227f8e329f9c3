package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

func aliceQUIC() packet {
	p := aliceTCP()
	p.proto, p.body = protoUDP, make([]byte, 1200)
	return p
}

// turn runs the frame in port_in and gives what is left of it.
func turn(t *testing.T, d *Datapath, p packet) (verdict uint32, left []byte) {
	t.Helper()
	o := &ebpf.RunOptions{Data: p.bytes(), DataOut: make([]byte, 2048), Context: skb{}}
	verdict, err := d.objs.PortIn.Run(o)
	if err != nil {
		t.Fatal(err)
	}
	return verdict, o.DataOut
}

// The answer is destination unreachable, port unreachable (RFC 792), about the
// header and the first 8 bytes of what was sent, from the gateway to the sender
// alone; it is counted, and so is the drop.
func TestAnswer(t *testing.T) {
	d := programs(t)
	admit(t, d, alice, loopback)
	for name, p := range map[string]packet{
		"QUIC":                  aliceQUIC(),
		"an empty datagram":     {dst: aliceTCP().dst, src: hw(alice), saddr: alice.Address, daddr: outside, proto: protoUDP, sport: 1, dport: 9},
		"one padded to 60":      {dst: aliceTCP().dst, src: hw(alice), saddr: alice.Address, daddr: outside, proto: protoUDP, sport: 1, dport: 9, body: make([]byte, 18)},
		"one of 70, the same":   {dst: aliceTCP().dst, src: hw(alice), saddr: alice.Address, daddr: outside, proto: protoUDP, sport: 1, dport: 9, body: make([]byte, 28)},
		"to the gateway":        {dst: aliceTCP().dst, src: hw(alice), saddr: alice.Address, daddr: gateway, proto: protoUDP, sport: 1, dport: 123},
		"to another resolver":   {dst: aliceTCP().dst, src: hw(alice), saddr: alice.Address, daddr: outside, proto: protoUDP, sport: 1, dport: 53},
		"to bob":                {dst: aliceTCP().dst, src: hw(alice), saddr: alice.Address, daddr: bob.Address, proto: protoUDP, sport: 1, dport: 9},
		"to nobody of our net":  {dst: aliceTCP().dst, src: hw(alice), saddr: alice.Address, daddr: netip.MustParseAddr("10.231.77.77"), proto: protoUDP, sport: 1, dport: 9},
		"to the metadata's net": {dst: aliceTCP().dst, src: hw(alice), saddr: alice.Address, daddr: netip.MustParseAddr("169.254.169.254"), proto: protoUDP, sport: 1, dport: 80},
	} {
		t.Run(name, func(t *testing.T) {
			before := counters(t, d)
			verdict, got := turn(t, d, p)
			if verdict != redirect {
				t.Fatalf("got verdict %d, want %d", int32(verdict), redirect)
			}
			want := packet{
				dst: hw(alice), src: p.dst, saddr: gateway, daddr: alice.Address,
				proto: protoICMP, icmp: 3, code: 3, body: p.network()[:28],
			}.bytes()
			ip := want[14:34]
			ip[1] = 0xc0
			binary.BigEndian.PutUint16(ip[4:], 0)      // identification
			binary.BigEndian.PutUint16(ip[6:], 0x4000) // do not fragment
			sum(ip, 10)
			copy(want[38:42], make([]byte, 4)) // unused
			sum(want[34:], 2)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			after := counters(t, d)
			var drops uint64
			for r, traffic := range after.Dropped {
				drops += traffic.Packets - before.Dropped[r].Packets
			}
			if after.Answered.Packets-before.Answered.Packets != 1 || drops != 1 {
				t.Errorf("counted %d answers and %d drops, want 1 of each", after.Answered.Packets-before.Answered.Packets, drops)
			}
		})
	}
}

// sum puts the checksum of b into it.
func sum(b []byte, at int) {
	b[at], b[at+1] = 0, 0
	binary.BigEndian.PutUint16(b[at:], checksum(b))
}

// Nobody is told of what RFC 1122, 3.2.2, forbids to answer, of what shows
// another's address, and of anything but UDP.
func TestNoAnswer(t *testing.T) {
	d := programs(t)
	admit(t, d, alice, loopback)
	for name, change := range map[string]func(*packet){
		"to everyone":                  func(p *packet) { p.daddr = netip.MustParseAddr("255.255.255.255") },
		"to everyone's MAC":            func(p *packet) { p.dst = everyone },
		"to a group":                   func(p *packet) { p.daddr = netip.MustParseAddr("224.0.0.251") },
		"to a group's MAC":             func(p *packet) { p.dst = net.HardwareAddr{1, 0, 0x5e, 0, 0, 1} },
		"to the subnet's broadcast":    func(p *packet) { p.daddr = netip.MustParseAddr("10.231.255.255") },
		"to the subnet itself":         func(p *packet) { p.daddr = netip.MustParseAddr("10.231.0.0") },
		"to this network":              func(p *packet) { p.daddr = netip.MustParseAddr("0.0.0.1") },
		"to loopback":                  func(p *packet) { p.daddr = netip.MustParseAddr("127.0.0.1") },
		"past the gateway's MAC":       func(p *packet) { p.dst = hw(bob) },
		"with bob's MAC":               func(p *packet) { p.src = hw(bob) },
		"with bob's address":           func(p *packet) { p.saddr = bob.Address },
		"with an address elsewhere":    func(p *packet) { p.saddr = outside },
		"a first fragment":             func(p *packet) { p.fragment = 0x2000 },
		"a later fragment":             func(p *packet) { p.fragment = 0x00b9 },
		"with options":                 func(p *packet) { p.options = []byte{131, 7, 4, 203, 0, 113, 1, 0} },
		"tagged":                       func(p *packet) { p.tags = []uint16{0x8100} },
		"cut in the UDP header":        func(p *packet) { p.cut = 14 + 20 + 7 },
		"ICMP port unreachable itself": func(p *packet) { p.proto, p.icmp, p.code = protoICMP, 3, 3 },
		"ping":                         func(p *packet) { p.proto, p.icmp = protoICMP, 8 },
		"SCTP":                         func(p *packet) { p.proto = protoSCTP },
		"TCP to loopback":              func(p *packet) { p.proto, p.daddr = protoTCP, netip.MustParseAddr("127.0.0.1") },
		"IPv6": func(p *packet) {
			p.saddr, p.daddr = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := aliceQUIC()
			if verdict, _ := turn(t, d, p); verdict != redirect {
				t.Fatalf("QUIC: got verdict %d, want an answer", int32(verdict))
			}
			change(&p)
			before := counters(t, d).Answered
			if verdict, left := turn(t, d, p); verdict != shot || !cmp.Equal(left, p.bytes()) {
				t.Errorf("got verdict %d and %d bytes, want it dropped as it was", int32(verdict), len(left))
			}
			if after := counters(t, d).Answered; after != before {
				t.Error("an answer was counted")
			}
		})
	}
	dismiss(t, d, alice.Generation)
	if verdict, _ := turn(t, d, aliceQUIC()); verdict != shot {
		t.Errorf("of a port without endpoint: got verdict %d", int32(verdict))
	}
}

// A flood gets its burst and then a hundred answers a second; every datagram of
// it is counted, and another sandbox is told as if there were none.
func TestAnswersAreBounded(t *testing.T) {
	d := programs(t)
	admit(t, d, alice, loopback)
	const n = 2000
	// dry is a moment at which there was not a whole answer left.
	flood := func() (answers int, dry time.Time) {
		for range n {
			asked := time.Now()
			if verdict, _ := turn(t, d, aliceQUIC()); verdict == redirect {
				answers++
			} else {
				dry = asked
			}
		}
		return answers, dry
	}
	began := time.Now()
	got, dry := flood()
	most := 100 + int(time.Since(began)/(10*time.Millisecond)) + 1
	if got < 100 || got > most {
		t.Errorf("got %d answers to %d datagrams, want 100 to %d", got, n, most)
	}
	if c := counters(t, d); c.Dropped[QUIC].Packets != n || c.Answered.Packets != uint64(got) {
		t.Errorf("counted %d drops and %d answers, want %d and %d", c.Dropped[QUIC].Packets, c.Answered.Packets, n, got)
	}
	// On the same interface, now.
	admit(t, d, bob, loopback)
	q := aliceQUIC()
	q.src, q.saddr = hw(bob), bob.Address
	if verdict, _ := turn(t, d, q); verdict != redirect {
		t.Errorf("bob's: got verdict %d, want an answer", int32(verdict))
	}
	admit(t, d, alice, loopback)
	time.Sleep(200 * time.Millisecond)
	got, _ = flood()
	if most := int(time.Since(dry)/(10*time.Millisecond)) + 2; got < 20 || got > most {
		t.Errorf("after 200 ms and more got %d answers, want 20 to %d", got, most)
	}
}

// ask sends a datagram by a connected socket and says how that ended.
func (s *space) ask(wait time.Duration, to string, body []byte, options ...func(fd int) error) (err error) {
	s.t.Helper()
	s.do(func() error {
		c, e := net.Dial("udp4", to)
		if e != nil {
			return e
		}
		defer c.Close()
		raw, e := c.(*net.UDPConn).SyscallConn()
		if e != nil {
			return e
		}
		for _, set := range options {
			var failed error
			if e := errors.Join(raw.Control(func(fd uintptr) { failed = set(int(fd)) }), failed); e != nil {
				return e
			}
		}
		if _, e := c.Write(body); e != nil {
			return e
		}
		if e := c.SetReadDeadline(time.Now().Add(wait)); e != nil {
			return e
		}
		_, err = c.Read(make([]byte, 64))
		return nil
	})
	return err
}

// Clients with connected sockets, which those of QUIC are, learn that there is nobody,
// and the datagram is told of as a drop.
func TestRefusedDatagrams(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	next := drops(t, d)
	heard := l.alice.listen(func(frame []byte) bool {
		return len(frame) >= 42 && frame[12] == 8 && frame[13] == 0 && frame[23] == protoICMP
	})
	segments := func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, 1200) }
	for _, checksums := range []bool{true, false} {
		if !checksums {
			// The host's end computes what the sandbox's left to the device.
			must.OK(t, offload(l.alice.host, unix.ETHTOOL_STXCSUM, 0))
		}
		for _, test := range []struct {
			name    string
			to      string
			size    int
			options []func(int) error
			want    Reason
		}{
			{"QUIC", "198.51.100.2:443", 1200, nil, QUIC},
			{"QUIC, many at once", "198.51.100.2:443", 12000, []func(int) error{segments}, QUIC},
			{"NTP", "198.51.100.2:123", 48, nil, UDP},
			{"nothing", "198.51.100.2:9", 0, nil, UDP},
			{"a byte", "198.51.100.2:9", 1, nil, UDP},
			{"another resolver", "198.51.100.2:53", 30, nil, DNS},
			{"a service of the host", fmt.Sprintf("10.231.0.1:%d", hostPort), 30, nil, UDP},
		} {
			t.Run(fmt.Sprintf("%s, checksums by the device %t", test.name, checksums), func(t *testing.T) {
				l.witnessed.forget()
				body := append(make([]byte, test.size), markerStart+"datagram"+markerEnd...)[:test.size]
				copy(body, markerStart+"datagram"+markerEnd)
				before := counters(t, d)
				if err := l.alice.ask(patience, test.to, body, test.options...); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("got %v, want connection refused", err)
				}
				after := counters(t, d)
				if n := after.Dropped[test.want].Packets - before.Dropped[test.want].Packets; n != 1 {
					t.Errorf("%d drops for %s, want 1", n, test.want)
				}
				if n := after.Answered.Packets - before.Answered.Packets; n != 1 {
					t.Errorf("%d answers, want 1", n)
				}
				// The device says that checksums are right, so no kernel looks.
				select {
				case frame := <-heard:
					if checksum(frame[14:34]) != 0 || checksum(frame[34:]) != 0 {
						t.Errorf("a wrong checksum in %x", frame)
					}
				case <-time.After(patience):
					t.Error("heard no ICMP message")
				}
				settle()
				if where := l.witnessed.where("datagram"); where != "" {
					t.Errorf("it arrived at %s", where)
				}
			})
		}
	}
	for _, want := range []Reason{QUIC, UDP, DNS} {
		if got := next(want); got.Sandbox != alice.Sandbox || got.Protocol != protoUDP {
			t.Errorf("told of %+v", got)
		}
	}
	if err := l.alice.ask(brief, "10.231.255.255:9", nil, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
	}); !isTimeout(err) {
		t.Errorf("a broadcast got %v, want silence", err)
	}
	must.OK(t, d.Detach(alice.Generation))
	if err := l.alice.ask(brief, "198.51.100.2:443", nil); !isTimeout(err) {
		t.Errorf("after Detach got %v, want silence", err)
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// offload sets a feature of an interface, by ethtool's older command for it.
func offload(ifindex int, command, value uint32) error {
	link, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var request struct {
		name [unix.IFNAMSIZ]byte
		data *[2]uint32
		pad  [16]byte
	}
	copy(request.name[:], link.Attrs().Name)
	request.data = &[2]uint32{command, value}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}
