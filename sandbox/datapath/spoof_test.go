package datapath

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sallyport/internal/test/must"
)

// A machine that is not behind the bridge cannot speak to the host in a sandbox's name: the
// resolver tells sandboxes by address. Nor does it get to the resolver in its own.
func TestSandboxAddressFromOutside(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	resolver, err := net.ListenPacket("udp4", "0.0.0.0:53")
	must.OK(t, err)
	defer resolver.Close()
	up, err := netlink.LinkByIndex(l.outside.host)
	must.OK(t, err)
	ask := func(wait time.Duration, from, to netip.Addr) bool {
		l.outside.send(packet{
			dst: up.Attrs().HardwareAddr, src: l.outside.link.Attrs().HardwareAddr, proto: protoUDP,
			saddr: from, daddr: to, sport: 4000, dport: 53, body: []byte("in whose name?"),
		}.bytes())
		must.OK(t, resolver.SetReadDeadline(time.Now().Add(wait)))
		_, _, err := resolver.ReadFrom(make([]byte, 512))
		return err == nil
	}
	neighbour, host := netip.MustParseAddr("198.51.100.2"), netip.MustParseAddr("198.51.100.1")
	for _, to := range []netip.Addr{gateway, host} {
		if ask(brief, alice.Address, to) {
			t.Errorf("a question from outside with a sandbox's address arrived at %s", to)
		}
	}
	if ask(brief, neighbour, gateway) {
		t.Error("a question from outside arrived at the resolver")
	}
	if !ask(patience, neighbour, host) {
		t.Error("nothing arrives at all: the test shows nothing")
	}
}
