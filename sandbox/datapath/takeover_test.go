package datapath

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

func TestTakeover(t *testing.T) {
	l := newLab(t)
	first := l.open(t)
	attachBoth(t, first, l)
	want := []sandbox.Endpoint{l.aliceEnd, l.bobEnd}
	byAddr := cmpopts.EquateComparable(netip.Addr{})
	if diff := cmp.Diff(want, sorted(t, first), byAddr); diff != "" {
		t.Error(diff)
	}
	steered(t, first)
	open, err := l.bob.dial("", "198.51.100.2:443")
	must.OK(t, err)
	defer open.Close()
	open.SetDeadline(time.Now().Add(5 * patience))
	r := bufio.NewReader(open)
	_, err = r.ReadString('\n')
	must.OK(t, err)
	must.OK(t, first.Close())

	// Alice floods throughout; nothing may slip through while programs change.
	var stop atomic.Bool
	flooding := make(chan struct{})
	l.witnessed.forget()
	go func() {
		defer close(flooding)
		var frames [][]byte
		for _, w := range ways(l) {
			frames = append(frames, w.frame())
		}
		for !stop.Load() {
			l.alice.send(frames...)
		}
	}()
	for range 10 {
		d, err := Open(l.config)
		must.OK(t, err)
		if diff := cmp.Diff(want, sorted(t, d), byAddr); diff != "" {
			t.Error(diff)
		}
		fmt.Fprintln(open, "still there?")
		if got, err := r.ReadString('\n'); err != nil || got != "still there?\n" {
			t.Fatalf("an open connection: got %q, %v", got, err)
		}
		must.OK(t, d.Close())
	}
	stop.Store(true)
	<-flooding
	settle()
	for _, w := range ways(l) {
		if where := l.witnessed.where(w.name); where != "" {
			t.Errorf("%s arrived at %s during a takeover", w.name, where)
		}
	}

	d, err := Open(l.config)
	must.OK(t, err)
	defer d.Close()
	steered(t, d)
	if got, err := greeted(l.alice, "198.51.100.2:443"); err != nil {
		t.Errorf("after ten takeovers: got %q, %v", got, err)
	}
}

func TestGuardPin(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	bridge, err := netlink.LinkByName(testBridge)
	must.OK(t, err)
	pin := GuardPin(d.config.Pins, bridge.Attrs().Index)
	if _, err := os.Stat(pin); err != nil {
		t.Errorf("no pin of the guarded bridge: %v", err)
	}
	if _, err := os.Stat(GuardPin(d.config.Pins, bridge.Attrs().Index+1)); err == nil {
		t.Error("another interface counts as guarded")
	}
	// Somebody deletes the bridge and makes another of the same name.
	must.OK(t, d.Close())
	must.OK(t, netlink.LinkDel(bridge))
	// The host's last packets to alice do not follow the default route.
	if routes, err := netlink.RouteGet(alice.Address.AsSlice()); err == nil {
		t.Errorf("without a bridge the sandboxes are looked for at %v", routes)
	}
	d, err = Open(l.config)
	must.OK(t, err)
	defer d.Close()
	if _, err := os.Stat(pin); err == nil {
		t.Error("the pin of the deleted bridge is still there")
	}
	if !live(GuardPin(d.config.Pins, d.bridge), d.bridge) {
		t.Error("the new bridge is not guarded")
	}
	if got := sorted(t, d); len(got) != 0 {
		t.Errorf("got endpoints %v", got)
	}
}

// A new interface with the index of an attached one is not trusted.
func TestIndexReuse(t *testing.T) {
	t.Run("while a process has it open", func(t *testing.T) { reuseIndex(t, false) })
	t.Run("while none has", func(t *testing.T) { reuseIndex(t, true) })
}

func reuseIndex(t *testing.T, dead bool) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	index := l.alice.host
	if dead {
		must.OK(t, d.Close())
	}
	old, err := netlink.LinkByIndex(index)
	must.OK(t, err)
	must.OK(t, netlink.LinkDel(old))

	next := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(l.alice.ns), PeerHardwareAddr: hw(alice)}
	next.Name, next.Index = "spdp-n", index
	must.OK(t, netlink.LinkAdd(next))
	l.alice.link, err = l.alice.handle.LinkByName("eth0")
	must.OK(t, err)
	l.alice.address(alice.Address.String() + "/16")
	must.OK(t, l.alice.handle.LinkSetUp(l.alice.link))
	must.OK(t, netlink.LinkSetUp(next))
	l.alice.enslave(testBridge)
	l.alice.via("0.0.0.0/0", gateway.String())
	if dead {
		d, err = Open(l.config)
		must.OK(t, err)
		defer d.Close()
	}
	steered(t, d)
	eventually(t, "the new interface is guarded", func() bool { return d.guarded(index) })
	if got := sorted(t, d); len(got) != 1 || got[0].Generation != bob.Generation {
		t.Errorf("got endpoints %v, want bob's only", got)
	}
	before := counters(t, d)
	refused(t, l.alice, "198.51.100.2:443", "the new interface")
	if got := counters(t, d).Sent.Packets - before.Sent.Packets; got != 0 {
		t.Errorf("%d packets of the new interface passed", got)
	}
	l.none(t, "with another's index")

	e := l.aliceEnd
	e.Generation = 70
	must.OK(t, d.Attach(e))
	// A question that alice's kernel asked in vain may fail after this.
	eventually(t, "the gateway answers once attached", func() bool {
		_, err := greeted(l.alice, "198.51.100.2:443")
		return err == nil
	})
	if got := sorted(t, d); len(got) != 2 || got[1].Generation != 70 {
		t.Errorf("got endpoints %v, want bob's and the new one", got)
	}
}

func TestAttachRefuses(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	must.OK(t, d.Attach(l.bobEnd))
	tests := []struct {
		name   string
		change func(*sandbox.Endpoint)
		want   string
	}{
		{"generation 0", func(e *sandbox.Endpoint) { e.Generation = 0 }, "generation 0"},
		{"no interface", func(e *sandbox.Endpoint) { e.Link = 0 }, "no interface"},
		{"an interface that is gone", func(e *sandbox.Endpoint) { e.Link = 9999 }, "interface 9999"},
		{"an interface elsewhere", func(e *sandbox.Endpoint) { e.Link = l.outside.host }, "not a port of bridge"},
		{"no MAC address", func(e *sandbox.Endpoint) { e.MAC = "" }, "MAC"},
		{"a group's MAC address", func(e *sandbox.Endpoint) { e.MAC = "01:80:c2:00:00:00" }, "MAC"},
		{"the bridge's MAC address", func(e *sandbox.Endpoint) { e.MAC = bridgeMAC(testBridge).String() }, "MAC"},
		{"the gateway's address", func(e *sandbox.Endpoint) { e.Address = gateway }, "not one for a sandbox"},
		{"the broadcast address", func(e *sandbox.Endpoint) { e.Address = netip.MustParseAddr("10.231.255.255") }, "not one for a sandbox"},
		{"an address elsewhere", func(e *sandbox.Endpoint) { e.Address = outside }, "not one for a sandbox"},
		{"an IPv6 address", func(e *sandbox.Endpoint) { e.Address = l.outsideV6 }, "not one for a sandbox"},
		{"bob's address", func(e *sandbox.Endpoint) { e.Address = bob.Address }, "belongs to sandbox \"bob\""},
		{"bob's MAC address", func(e *sandbox.Endpoint) { e.MAC = strings.ToUpper(bob.MAC) }, "belongs to sandbox \"bob\""},
		{"a name too long", func(e *sandbox.Endpoint) { e.Sandbox = strings.Repeat("a", 129) }, "name"},
		{"an ID too long", func(e *sandbox.Endpoint) { e.ID = strings.Repeat("a", 65) }, "ID"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := l.aliceEnd
			test.change(&e)
			err := d.Attach(e)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
			if got := sorted(t, d); len(got) != 1 {
				t.Errorf("got endpoints %v, want bob's only", got)
			}
		})
	}
	must.OK(t, d.Attach(l.aliceEnd))
	must.OK(t, d.Attach(l.aliceEnd)) // again
	must.OK(t, d.Detach(12345))
	later := l.aliceEnd
	later.Generation += 10
	must.OK(t, d.Attach(later)) // the next session on the same interface
	if got := sorted(t, d); len(got) != 2 || got[1] != later {
		t.Errorf("got endpoints %v, want bob's and alice's later one", got)
	}
}

// A port that the daemon has not guarded, dead or not quick enough, is still cut off from the
// host and, in IP, from other ports.
func TestPortWithoutGuard(t *testing.T) {
	l := newLab(t)
	d, err := Open(l.config)
	must.OK(t, err)
	l.undo(t)
	must.OK(t, d.Close())
	l.enslave()
	for _, w := range ways(l) {
		l.alice.send(w.frame())
	}
	settle()
	arrived := 0
	for _, w := range ways(l) {
		switch where := l.witnessed.where(w.name); w.want {
		case IPv6, Neighbour, VLAN, STP, EtherType:
			// Only where nftables knows bridges by name are these held back
			// between ports; they never reach the host or beyond it.
			if strings.Contains(where, "host") || strings.Contains(where, "outside") {
				t.Errorf("%s arrived at %s", w.name, where)
			}
			if where != "" {
				arrived++
			}
		default:
			if where != "" {
				t.Errorf("%s arrived at %s", w.name, where)
			}
		}
	}
	t.Logf("%d ways led from one such port to another", arrived)
}

// A group that no bridge forwards is no way to the host on the port itself, past
// the bridge device, for whatever source address.
func TestGroupThatIsNotBridged(t *testing.T) {
	slow := net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 2}
	arrive := func(t *testing.T, l *lab) (resolved bool, datagram string) {
		t.Helper()
		answers := l.alice.listen(func(frame []byte) bool { return len(frame) >= 42 && frame[12] == 8 && frame[13] == 6 && frame[21] == 2 })
		hostAddr := netip.MustParseAddr("198.51.100.1")
		l.alice.send(packet{dst: slow, src: hw(alice), arp: &arp{1, hw(alice), nobody, alice.Address, hostAddr}}.bytes(), packet{
			dst: slow, src: hw(alice), saddr: netip.MustParseAddr("203.0.113.77"), daddr: hostAddr,
			proto: protoUDP, sport: 40000, dport: hostPort, body: []byte(markerStart + "group" + markerEnd),
		}.bytes())
		settle()
		return len(answers) > 0, l.witnessed.where("group")
	}
	t.Run("of a plain bridge", func(t *testing.T) {
		l := newLab(t)
		l.plain(t)
		settle()
		if resolved, datagram := arrive(t, l); !resolved || datagram == "" {
			t.Errorf("answered %t, arrived at %q: the test shows nothing", resolved, datagram)
		}
	})
	t.Run("of a port without the guard", func(t *testing.T) {
		l := newLab(t)
		d, err := Open(l.config)
		must.OK(t, err)
		l.undo(t)
		must.OK(t, d.Close())
		l.enslave()
		settle()
		if resolved, datagram := arrive(t, l); resolved || datagram != "" {
			t.Errorf("answered %t, arrived at %q", resolved, datagram)
		}
	})
}

// In a network that never had a bridge the filter's hooks come before those of
// bridge netfilter, which pass over what they do not know.
func TestPortWithoutGuardOnTheFirstBridge(t *testing.T) {
	needRoot(t)
	if out, err := inside("-test.run=^TestPortWithoutGuard$").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Should every program be lost, the host still forwards nothing.
func TestFilterAlone(t *testing.T) {
	l := newLab(t)
	d, err := Open(l.config)
	must.OK(t, err)
	l.undo(t)
	must.OK(t, d.Close())
	must.OK(t, os.RemoveAll(d.config.Pins))
	l.enslave()
	for range 2 {
		for _, w := range ways(l) {
			l.alice.send(w.frame())
		}
		settle()
	}
	control := false
	for _, w := range ways(l) {
		where := l.witnessed.where(w.name)
		if strings.Contains(where, "outside") {
			t.Errorf("%s arrived at %s", w.name, where)
		}
		control = control || strings.Contains(where, "host")
	}
	if l.inbound(t) {
		t.Error("bob was reached from outside")
	}
	if !control {
		t.Error("nothing arrived at the host either: the programs are still there")
	}
}

func TestTwoBridges(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	other := Config{Bridge: "spdp1", Subnet: netip.MustParsePrefix("10.232.0.0/24")}
	d2, err := Open(other)
	must.OK(t, err)
	port := newSpace(t, "spdp-c", hw(alice))
	port.address("10.232.0.10/24")
	port.via("0.0.0.0/0", "10.232.0.1")
	port.enslave("spdp1")
	must.OK(t, d2.Attach(sandbox.Endpoint{Link: port.host, Sandbox: "carol", Generation: alice.Generation, Address: netip.MustParseAddr("10.232.0.10"), MAC: alice.MAC}))
	steered(t, d)
	steered(t, d2)
	for _, s := range []*space{l.alice, port} {
		if got, err := greeted(s, "198.51.100.2:443"); err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
	// The other network is nothing that one could reach but through a gateway.
	l.none(t, "beside another bridge")
	must.OK(t, d2.Close())
	if err := Remove(other); err == nil {
		t.Error("a bridge with a port was removed")
	}
	link, err := netlink.LinkByIndex(port.host)
	must.OK(t, err)
	must.OK(t, netlink.LinkDel(link))
	must.OK(t, Remove(other))
	if got, err := greeted(l.alice, "198.51.100.2:443"); err != nil {
		t.Errorf("after the other's end: got %q, %v", got, err)
	}
}

// state is what of the host's the datapath could have touched.
func state(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	rules, err := netlink.RuleList(netlink.FAMILY_V4)
	must.OK(t, err)
	for _, r := range rules {
		b.WriteString(r.String() + "\n")
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	must.OK(t, err)
	for _, r := range routes {
		b.WriteString(r.String() + "\n")
	}
	links, err := netlink.LinkList()
	must.OK(t, err)
	for _, l := range links {
		b.WriteString(l.Attrs().Name + "\n")
	}
	if out, err := exec.Command("nft", "list", "ruleset").Output(); err == nil {
		b.Write(out)
	}
	return b.String()
}

func TestRemove(t *testing.T) {
	needRoot(t)
	before := state(t)
	config := Config{Bridge: "spdp2", Subnet: netip.MustParsePrefix("10.233.0.0/24")}
	d, err := Open(config)
	must.OK(t, err)
	if state(t) == before {
		t.Fatal("this test looks at the wrong things")
	}
	must.OK(t, d.Close())
	must.OK(t, Remove(config))
	if diff := cmp.Diff(before, state(t)); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(bpffs, "sallyport", "spdp2")); err == nil {
		t.Error("pins are left")
	}
	must.OK(t, Remove(config)) // again
}

func TestConfigRefused(t *testing.T) {
	for name, config := range map[string]Config{
		"no bridge":      {Subnet: subnet},
		"a long name":    {Bridge: "a-name-too-long-for-it", Subnet: subnet},
		"no subnet":      {Bridge: testBridge},
		"an IPv6 subnet": {Bridge: testBridge, Subnet: netip.MustParsePrefix("2001:db8::/64")},
		"a tiny subnet":  {Bridge: testBridge, Subnet: netip.MustParsePrefix("10.231.0.0/30")},
		"not a bridge":   {Bridge: "lo", Subnet: subnet},
		"pins on disk":   {Bridge: testBridge, Subnet: subnet, Pins: t.TempDir()},
		"a slash in it":  {Bridge: "../x", Subnet: subnet},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "not a bridge" {
				needRoot(t)
			}
			var before string
			if os.Geteuid() == 0 {
				before = state(t)
			}
			d, err := Open(config)
			if err == nil {
				d.Close()
				t.Error("it was taken")
			}
			if os.Geteuid() == 0 && state(t) != before {
				t.Errorf("left behind: %s", cmp.Diff(before, state(t)))
			}
		})
	}
}
