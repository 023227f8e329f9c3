package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// lab is a host with sandboxes on a bridge and the rest of the world behind it:
// the tests' own namespace is the host, each of the others a space.
type lab struct {
	config            Config
	alice, bob        *space // sandboxes
	stranger          *space // on the bridge, and nobody's sandbox
	outside           *space // everything that the host can route to
	aliceEnd, bobEnd  sandbox.Endpoint
	strangerMAC       net.HardwareAddr
	hostUDP           *net.UDPConn // a service of the host that trusts its neighbours
	witnessed         *witness
	outsideV6, hostV6 netip.Addr
}

const hostPort = 9999

// space is a network namespace with one interface, eth0.
type space struct {
	t      *testing.T
	ns     netns.NsHandle
	handle *netlink.Handle
	link   netlink.Link // eth0
	host   int          // index of the host's end
}

// do runs f in the namespace, on a thread that ends with it.
func (s *space) do(f func() error) {
	s.t.Helper()
	errs := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(s.ns); err != nil {
			errs <- err
			return
		}
		errs <- f()
	}()
	if err := <-errs; err != nil {
		s.t.Fatal(err)
	}
}

// newSpace makes a namespace joined to the host by a veth whose host end has
// the name.
func newSpace(t *testing.T, name string, mac net.HardwareAddr) *space {
	t.Helper()
	s := &space{t: t}
	made := make(chan error)
	go func() {
		runtime.LockOSThread()
		var err error
		s.ns, err = netns.New() // the thread stays in it, and ends
		made <- err
	}()
	must.OK(t, <-made)
	t.Cleanup(func() { s.ns.Close() })
	var err error
	s.handle, err = netlink.NewHandleAt(s.ns)
	must.OK(t, err)
	t.Cleanup(s.handle.Close)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	must.OK(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(s.ns)}))
	host, err := netlink.LinkByName(name)
	must.OK(t, err)
	s.host = host.Attrs().Index
	t.Cleanup(func() { netlink.LinkDel(host) })
	must.OK(t, netlink.LinkSetUp(host))
	s.link, err = s.handle.LinkByName("eth0")
	must.OK(t, err)
	lo, err := s.handle.LinkByName("lo")
	must.OK(t, err)
	must.OK(t, s.handle.LinkSetUp(lo))
	must.OK(t, s.handle.LinkSetUp(s.link))
	return s
}

func (s *space) address(prefix string) {
	s.t.Helper()
	addr, err := netlink.ParseAddr(prefix)
	must.OK(s.t, err)
	addr.Flags = unix.IFA_F_NODAD
	must.OK(s.t, s.handle.AddrAdd(s.link, addr))
}

func (s *space) via(dst, gw string) {
	s.t.Helper()
	must.OK(s.t, s.handle.RouteAdd(&netlink.Route{LinkIndex: s.link.Attrs().Index, Dst: cidr(dst), Gw: net.ParseIP(gw)}))
}

func cidr(s string) *net.IPNet {
	_, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return n
}

// enslave puts the host's end on the bridge.
func (s *space) enslave(bridge string) {
	s.t.Helper()
	b, err := netlink.LinkByName(bridge)
	must.OK(s.t, err)
	port, err := netlink.LinkByIndex(s.host)
	must.OK(s.t, err)
	must.OK(s.t, netlink.LinkSetMaster(port, b))
}

// send puts raw frames on the wire.
func (s *space) send(frames ...[]byte) {
	s.t.Helper()
	s.do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := &unix.SockaddrLinklayer{Ifindex: s.link.Attrs().Index, Halen: 6}
		for _, f := range frames {
			if err := unix.Sendto(fd, f, 0, to); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return fmt.Errorf("sending %d bytes: %w", len(f), err)
			}
		}
		return nil
	})
}

func sysctl(t testing.TB, name, value string) {
	t.Helper()
	must.OK(t, os.WriteFile("/proc/sys/net/"+name, []byte(value), 0))
}

// newLab makes the spaces. The bridge is the caller's: Open's, or a plain one.
func newLab(t *testing.T) *lab {
	t.Helper()
	needRoot(t)
	l := &lab{
		config:      Config{Bridge: testBridge, Subnet: subnet},
		strangerMAC: net.HardwareAddr{2, 0x42, 0xba, 0xd, 0, 1},
		outsideV6:   netip.MustParseAddr("2001:db8:2::2"),
		hostV6:      netip.MustParseAddr("2001:db8:1::1"),
		witnessed:   &witness{seen: map[string]string{}},
	}
	lo, err := netlink.LinkByIndex(loopback)
	must.OK(t, err)
	must.OK(t, netlink.LinkSetUp(lo))
	sysctl(t, "ipv4/ip_forward", "1")
	sysctl(t, "ipv6/conf/all/forwarding", "1")
	// The least helpful host: no reverse path filter.
	sysctl(t, "ipv4/conf/all/rp_filter", "0")
	sysctl(t, "ipv4/conf/default/rp_filter", "0")

	l.outside = newSpace(t, "spdp-out", nil)
	l.outside.address("198.51.100.2/24")
	l.outside.address("203.0.113.1/24")
	l.outside.address("169.254.169.254/16")
	l.outside.address("2001:db8:2::2/64")
	up, err := netlink.LinkByIndex(l.outside.host)
	must.OK(t, err)
	for _, a := range []string{"198.51.100.1/24", "2001:db8:2::1/64"} {
		addr, err := netlink.ParseAddr(a)
		must.OK(t, err)
		addr.Flags = unix.IFA_F_NODAD
		must.OK(t, netlink.AddrAdd(up, addr))
	}
	must.OK(t, netlink.RouteAdd(&netlink.Route{Dst: cidr("0.0.0.0/0"), Gw: net.ParseIP("198.51.100.2")}))
	l.outside.via("0.0.0.0/0", "198.51.100.1")

	l.alice = newSpace(t, "spdp-a", hw(alice))
	l.alice.address(alice.Address.String() + "/16")
	l.bob = newSpace(t, "spdp-b", hw(bob))
	l.bob.address(bob.Address.String() + "/16")
	l.stranger = newSpace(t, "spdp-s", l.strangerMAC)
	l.stranger.address("10.231.0.12/16")
	for _, s := range []*space{l.alice, l.bob, l.stranger} {
		s.via("0.0.0.0/0", gateway.String())
		// Their own IPv6 stacks would be counted too.
		s.do(func() error { return withoutIPv6("eth0") })
	}
	for _, e := range []sandbox.Endpoint{alice, bob} { // what an earlier lab has left would be counted
		must.OK(t, new(Datapath).EndFlows(e.Address))
	}
	l.aliceEnd, l.bobEnd = alice, bob
	l.aliceEnd.Link, l.bobEnd.Link = l.alice.host, l.bob.host

	pc, err := net.ListenPacket("udp4", fmt.Sprintf("0.0.0.0:%d", hostPort))
	must.OK(t, err)
	l.hostUDP = pc.(*net.UDPConn)
	l.watch(t)
	return l
}

// plain makes the bridge as it would be without us.
func (l *lab) plain(t *testing.T) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = l.config.Bridge
	attrs.HardwareAddr = bridgeMAC(l.config.Bridge)
	must.OK(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	bridge, err := netlink.LinkByName(attrs.Name)
	must.OK(t, err)
	t.Cleanup(func() { netlink.LinkDel(bridge) })
	for _, a := range []string{gateway.String() + "/16", l.hostV6.String() + "/64"} {
		addr, err := netlink.ParseAddr(a)
		must.OK(t, err)
		addr.Flags = unix.IFA_F_NODAD
		must.OK(t, netlink.AddrAdd(bridge, addr))
	}
	must.OK(t, netlink.LinkSetUp(bridge))
	l.enslave()
}

func (l *lab) enslave() {
	for _, s := range []*space{l.alice, l.bob, l.stranger} {
		s.enslave(l.config.Bridge)
	}
}

// open opens the datapath with all three on the bridge, guarded.
func (l *lab) open(t *testing.T) *Datapath {
	t.Helper()
	d, err := Open(l.config)
	must.OK(t, err)
	l.undo(t)
	t.Cleanup(func() { d.Close() })
	l.enslave()
	eventually(t, "the ports are guarded", func() bool {
		for _, s := range []*space{l.alice, l.bob, l.stranger} {
			if !live(portPin(d.config.Pins, hookOut, s.host), s.host) {
				return false
			}
		}
		return true
	})
	return d
}

// undo takes the datapath away when the test ends.
func (l *lab) undo(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		for _, s := range []*space{l.alice, l.bob, l.stranger} {
			if port, err := netlink.LinkByIndex(s.host); err == nil {
				netlink.LinkDel(port)
			}
		}
		if err := Remove(l.config); err != nil {
			t.Error(err)
		}
	})
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func attachBoth(t *testing.T, d *Datapath, l *lab) {
	t.Helper()
	must.OK(t, d.Attach(l.aliceEnd))
	must.OK(t, d.Attach(l.bobEnd))
}

// listening is a listener that the connections of sandboxes are steered to.
func listening(t *testing.T, d *Datapath) *net.TCPListener {
	t.Helper()
	listener, err := Listen()
	must.OK(t, err)
	t.Cleanup(func() { listener.Close() })
	must.OK(t, d.Steer(listener))
	return listener
}

// witness collects the markers of frames that got somewhere.
type witness struct {
	mu   sync.Mutex // guards seen
	seen map[string]string
}

const markerStart, markerEnd = "<way:", ">"

func (w *witness) look(where string, b []byte) {
	_, rest, ok := bytes.Cut(b, []byte(markerStart))
	if !ok {
		return
	}
	marker, _, ok := bytes.Cut(rest, []byte(markerEnd))
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[string(marker)] = strings.TrimSpace(w.seen[string(marker)] + " " + where)
}

func (w *witness) where(marker string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[marker]
}

func (w *witness) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.seen)
}

// watch listens everywhere but at the sender's until the test ends.
func (l *lab) watch(t *testing.T) {
	t.Helper()
	done := make(chan struct{})
	var running sync.WaitGroup
	t.Cleanup(func() {
		close(done)
		l.hostUDP.Close()
		running.Wait()
	})
	running.Go(func() {
		b := make([]byte, 2048)
		for {
			n, _, err := l.hostUDP.ReadFrom(b)
			if err != nil {
				return
			}
			l.witnessed.look("host", b[:n])
		}
	})
	for name, s := range map[string]*space{"outside": l.outside, "bob": l.bob, "stranger": l.stranger} {
		var fd int
		s.do(func() (err error) {
			protocol := unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
			if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol&0xffff); err != nil {
				return err
			}
			if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(protocol), Ifindex: s.link.Attrs().Index}); err != nil {
				return err
			}
			return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
		})
		running.Go(func() {
			defer unix.Close(fd)
			b := make([]byte, 65536)
			for {
				select {
				case <-done:
					return
				default:
				}
				n, from, err := unix.Recvfrom(fd, b, 0)
				ll, ok := from.(*unix.SockaddrLinklayer)
				if err == nil && ok && ll.Pkttype != unix.PACKET_OUTGOING {
					l.witnessed.look(name, b[:n])
				}
			}
		})
	}
}

// listen gives the frames of some kind that arrive at the space.
func (s *space) listen(want func(frame []byte) bool) <-chan []byte {
	s.t.Helper()
	var fd int
	s.do(func() (err error) {
		const protocol = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol); err != nil {
			return err
		}
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	})
	heard, done := make(chan []byte, 100), make(chan struct{})
	go func() {
		defer close(heard)
		defer unix.Close(fd)
		for {
			b := make([]byte, 2048)
			n, from, err := unix.Recvfrom(fd, b, 0)
			ll, ok := from.(*unix.SockaddrLinklayer)
			if err == nil && ok && ll.Pkttype != unix.PACKET_OUTGOING && want(b[:n]) {
				heard <- b[:n]
			}
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	s.t.Cleanup(func() {
		close(done)
		for range heard { // until it has ended
		}
	})
	return heard
}

const (
	// patience is for how long something is waited for that comes. Only failures take it.
	patience = time.Minute
	// brief is for how long something is waited for that is not to come.
	brief = 700 * time.Millisecond
)

// settle gives frames time to arrive.
func settle() { time.Sleep(250 * time.Millisecond) }
