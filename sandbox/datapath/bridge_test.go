package datapath

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// onLoopback gives the gateway's address to the loopback interface.
func onLoopback(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByIndex(loopback)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: gateway.AsSlice(), Mask: net.CIDRMask(32, 32)}}
	if err := netlink.AddrAdd(lo, addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.AddrDel(lo, addr); err != nil {
			t.Error(err)
		}
	})
}

func TestBridgeIn(t *testing.T) {
	d := programs(t)
	admit(t, d, alice, loopback)
	admit(t, d, bob, loopback+1)
	stamped := skb{skbMark: alice.Generation}
	tests := []struct {
		name   string
		in     skb
		change func(*packet)
		want   Reason
	}{
		{"no stamp", skb{}, func(*packet) {}, Unattached},
		{"the stamp of nobody", skb{skbMark: 99}, func(*packet) {}, Unattached},
		{"bob's stamp", skb{skbMark: bob.Generation}, func(*packet) {}, Stale},
		{"another source MAC", stamped, func(p *packet) { p.src = hw(bob) }, Stale},
		{"another sender address", stamped, func(p *packet) { p.arp.spa = bob.Address }, Stale},
		{"TCP of another source address", stamped, func(p *packet) { *p = aliceTCP(); p.saddr = bob.Address }, Stale},
		{"IPv6", stamped, func(p *packet) {
			*p = aliceTCP()
			p.saddr, p.daddr = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		}, IPv6},
		{"VLAN", stamped, func(p *packet) { p.tags = []uint16{0x8100} }, VLAN},
		{"fragment", stamped, func(p *packet) { *p = aliceDNS(); p.fragment = 0x2000 }, Fragment},
		{"ping", stamped, func(p *packet) { *p = aliceDNS(); p.proto, p.icmp = protoICMP, 8 }, Protocol},
		{"UDP", stamped, func(p *packet) { *p = aliceDNS(); p.dport = 123 }, UDP},
		{"another resolver", stamped, func(p *packet) { *p = aliceDNS(); p.daddr = outside }, UDP},
		{"TCP without a listener", stamped, func(p *packet) { *p = aliceTCP() }, NoListener},
		{"DNS without a resolver", stamped, func(p *packet) { *p = aliceDNS() }, NoResolver},
		{"DNS over TCP without a resolver", stamped, func(p *packet) {
			*p = aliceTCP()
			p.daddr, p.dport = gateway, 53
		}, NoResolver},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := aliceARP()
			expect(t, d, d.objs.BridgeIn, p, stamped, Unknown)
			test.change(&p)
			expect(t, d, d.objs.BridgeIn, p, test.in, test.want)
		})
	}
}

// A name server of the host must not become a way out, whether or not the
// daemon is there.
func TestBridgeInResolver(t *testing.T) {
	d := programs(t)
	onLoopback(t)
	admit(t, d, alice, loopback)
	stamped := skb{skbMark: alice.Generation}
	overTCP := aliceTCP()
	overTCP.daddr, overTCP.dport = gateway, 53
	bind := func(t *testing.T, host string, ours bool) {
		t.Helper()
		var config net.ListenConfig
		config.SetMultipathTCP(false)
		if ours {
			config.Control = Mark
		}
		udp, err := config.ListenPacket(t.Context(), "udp4", host+":53")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { udp.Close() })
		tcp, err := config.Listen(t.Context(), "tcp4", host+":53")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tcp.Close() })
	}
	steer := func(t *testing.T) {
		t.Helper()
		l, err := Listen()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		if err := d.Steer(l); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name    string
		host    string
		ours    bool
		steered bool
		want    Reason
	}{
		{"ours", gateway.String(), true, true, Unknown},
		{"another's on the gateway's address", gateway.String(), false, true, NoResolver},
		{"another's on every address", "0.0.0.0", false, true, NoResolver},
		{"another's on the gateway's address while the daemon is dead", gateway.String(), false, false, NoResolver},
		{"another's on every address while the daemon is dead", "0.0.0.0", false, false, NoResolver},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bind(t, test.host, test.ours)
			if test.steered {
				steer(t)
			}
			expect(t, d, d.objs.BridgeIn, aliceDNS(), stamped, test.want)
			expect(t, d, d.objs.BridgeIn, overTCP, stamped, test.want)
		})
	}
}

func TestSteerRefuses(t *testing.T) {
	d := programs(t)
	onLoopback(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := d.Steer(l.(*net.TCPListener)); err == nil {
		t.Error("a listener that is not transparent was taken")
	}
}
