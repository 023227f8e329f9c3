package datapath

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// Who is not behind the bridge cannot speak to the host in a sandbox's name:
// the resolver tells sandboxes by address.
func TestSandboxAddressFromOutside(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	resolver, err := net.ListenPacket("udp4", gateway.String()+":53")
	must(t, err)
	defer resolver.Close()
	up, err := netlink.LinkByIndex(l.outside.host)
	must(t, err)
	ask := func(from netip.Addr) bool {
		l.outside.send(packet{
			dst: up.Attrs().HardwareAddr, src: l.outside.link.Attrs().HardwareAddr, proto: protoUDP,
			saddr: from, daddr: gateway, sport: 4000, dport: 53, body: []byte("in whose name?"),
		}.bytes())
		must(t, resolver.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
		_, _, err := resolver.ReadFrom(make([]byte, 512))
		return err == nil
	}
	if ask(alice.Address) {
		t.Error("a question from outside with a sandbox's address arrived")
	}
	if !ask(netip.MustParseAddr("198.51.100.2")) {
		t.Error("nothing arrives at all: the test shows nothing")
	}
}
