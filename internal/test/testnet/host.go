package testnet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Config describes a host.
type Config struct {
	// Name appears in errors only.
	Name string
	// Address is the host's own, with the length of its network:
	// 198.51.100.10/24.
	Address netip.Prefix
	// HostSide is the address on this side of the cable and the host's way
	// out. Default: the first address of Address's network.
	HostSide netip.Addr
	// Also lists further addresses of the host, of either family; those of an
	// IPv6 network have its first address on this side.
	Also []netip.Prefix
}

// Host is a machine of its own at the other end of a veth cable.
//
// This side of the cable has a route to exactly the host's addresses, so that
// several hosts may share one network. Both sides know each other's MAC
// address: no ARP and no neighbour discovery disturbs a packet count. (With an
// IPv6 address, a few multicast listener reports to ff02::16 do.)
type Host struct {
	cfg  Config
	ns   netns.NsHandle
	link string // this side's device
	mac  net.HardwareAddr

	mu     sync.Mutex
	closed bool
	undo   []func() // in reverse order
}

// NewHost makes a host that lasts as long as the test.
func NewHost(t testing.TB, cfg Config) *Host {
	t.Helper()
	h, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("closing test host %s: %v", cfg.Name, err)
		}
	})
	return h
}

// Start makes a host. It lasts until Close or the end of the process.
func Start(cfg Config) (*Host, error) {
	if !cfg.Address.IsValid() {
		return nil, fmt.Errorf("test host %s: no address", cfg.Name)
	}
	if !cfg.HostSide.IsValid() {
		cfg.HostSide = first(cfg.Address)
	}
	h := &Host{cfg: cfg, link: fmt.Sprintf("lab%08x", rand.Uint32())}
	if err := h.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("making test host %s: %w", cfg.Name, err), h.Close())
	}
	return h, nil
}

// first is the first address of p's network after the network's own.
func first(p netip.Prefix) netip.Addr { return p.Masked().Addr().Next() }

// Name of the host.
func (h *Host) Name() string { return h.cfg.Name }

// Addr of the host.
func (h *Host) Addr() netip.Addr { return h.cfg.Address.Addr() }

// Link is the name of the device at this side of the cable.
func (h *Host) Link() string { return h.link }

// MAC of the host's own device.
func (h *Host) MAC() net.HardwareAddr { return h.mac }

const device = "eth0" // the host's own end

func (h *Host) build() error {
	ns, err := newNamespace()
	if err != nil {
		return err
	}
	h.ns = ns
	h.undo = append(h.undo, func() { ns.Close() })

	attrs := netlink.NewLinkAttrs()
	attrs.Name = h.link
	veth := netlink.NewVeth(attrs)
	veth.PeerName = device
	veth.PeerNamespace = netlink.NsFd(ns)
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("adding a veth pair: %w", err)
	}
	h.undo = append(h.undo, func() { netlink.LinkDel(veth) })

	near, err := netlink.LinkByName(h.link)
	if err != nil {
		return err
	}
	h.quiet(h.link)
	if err := netlink.LinkSetUp(near); err != nil {
		return err
	}
	all := append([]netip.Prefix{h.cfg.Address}, h.cfg.Also...)
	if err := h.Do(func() error { return h.furnish(near.Attrs().HardwareAddr, all) }); err != nil {
		return err
	}
	if err := carrier(near); err != nil {
		return err
	}
	for _, p := range all {
		// A point-to-point address routes to the one host only (ip-address(8), peer).
		if err := addAddress(near, netip.PrefixFrom(h.near(p), p.Addr().BitLen()), p.Addr()); err != nil {
			return err
		}
		if err := neighbour(near, p.Addr(), h.mac); err != nil {
			return err
		}
		if err := reachable(p.Addr()); err != nil {
			return err
		}
	}
	return h.Do(func() error { return reachable(h.near(all[len(all)-1])) })
}

// ready is how long the kernel may take to notice that a cable is plugged in;
// until then it has no IPv6 routes.
const ready = time.Minute

func carrier(l netlink.Link) error {
	for deadline := time.Now().Add(ready); ; time.Sleep(time.Millisecond) {
		now, err := netlink.LinkByIndex(l.Attrs().Index)
		if err != nil {
			return err
		}
		if now.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("device %s does not come up", l.Attrs().Name)
		}
	}
}

func reachable(addr netip.Addr) error {
	for deadline := time.Now().Add(ready); ; time.Sleep(time.Millisecond) {
		_, err := netlink.RouteGet(addr.AsSlice())
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no route to %s: %w", addr, err)
		}
	}
}

// near is the address at this side that faces p.
func (h *Host) near(p netip.Prefix) netip.Addr {
	if p.Contains(h.cfg.HostSide) {
		return h.cfg.HostSide
	}
	return first(p)
}

// furnish runs inside the namespace.
func (h *Host) furnish(nearMAC net.HardwareAddr, all []netip.Prefix) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	far, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	h.mac = far.Attrs().HardwareAddr
	h.quiet(device)
	if err := netlink.LinkSetUp(far); err != nil {
		return err
	}
	if err := carrier(far); err != nil {
		return err
	}
	routed := map[bool]bool{} // by "is IPv6": one default route for each family
	for _, p := range all {
		if err := addAddress(far, p, netip.Addr{}); err != nil {
			return err
		}
		if err := neighbour(far, h.near(p), nearMAC); err != nil {
			return err
		}
		if routed[p.Addr().Is6()] {
			continue
		}
		routed[p.Addr().Is6()] = true
		route := &netlink.Route{LinkIndex: far.Attrs().Index, Gw: h.near(p).AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("routing by %s: %w", h.near(p), err)
		}
	}
	return nil
}

// quiet keeps the kernel from talking by itself on a device. Without an IPv6
// address of ours it has no IPv6 at all; with one, multicast listener reports
// (RFC 3810, to ff02::16) are what remains. Kernels without IPv6 have no such
// files.
func (h *Host) quiet(dev string) {
	conf := "/proc/sys/net/ipv6/conf/" + dev + "/"
	six := slices.ContainsFunc(append([]netip.Prefix{h.cfg.Address}, h.cfg.Also...),
		func(p netip.Prefix) bool { return p.Addr().Is6() })
	if !six {
		os.WriteFile(conf+"disable_ipv6", []byte("1"), 0o644)
		return
	}
	os.WriteFile(conf+"addr_gen_mode", []byte("1"), 0o644) // no link-local address
	os.WriteFile(conf+"accept_ra", []byte("0"), 0o644)
}

func addAddress(l netlink.Link, p netip.Prefix, peer netip.Addr) error {
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if peer.IsValid() {
		a.Peer = ipNet(netip.PrefixFrom(peer, peer.BitLen()))
	}
	if err := netlink.AddrAdd(l, a); err != nil {
		return fmt.Errorf("giving %s to %s: %w", p, l.Attrs().Name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func neighbour(l netlink.Link, addr netip.Addr, mac net.HardwareAddr) error {
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: l.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT,
		IP: addr.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("naming %s a neighbour: %w", addr, err)
	}
	return nil
}

// newNamespace makes a network namespace and leaves the caller in its own.
func newNamespace() (netns.NsHandle, error) {
	type result struct {
		ns  netns.NsHandle
		err error
	}
	done := make(chan result)
	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		ns, err := netns.New()
		done <- result{ns, err}
	}()
	r := <-done
	if r.err != nil {
		return netns.None(), fmt.Errorf("making a network namespace: %w", r.err)
	}
	return r.ns, nil
}

// Do runs f on a thread inside the host. Sockets that f makes and processes
// that it starts are the host's for good, whoever uses them; a goroutine that
// f starts is not inside.
func (h *Host) Do(f func() error) error {
	h.mu.Lock()
	closed := h.closed
	h.mu.Unlock()
	if closed {
		return fmt.Errorf("test host %s is closed", h.cfg.Name)
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer home.Close()
		if err := netns.Set(h.ns); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("entering test host %s: %w", h.cfg.Name, err)
			return
		}
		result := fmt.Errorf("test host %s: the function ended its goroutine", h.cfg.Name)
		defer func() {
			// A thread that cannot come home ends with this goroutine.
			if netns.Set(home) == nil {
				runtime.UnlockOSThread()
			}
			done <- result
		}()
		result = f()
	}()
	return <-done
}

// Listen accepts TCP on all of the host's addresses. Port 0 takes a free one.
func (h *Host) Listen(port int) (net.Listener, error) {
	var l net.Listener
	err := h.Do(func() (err error) {
		l, err = net.Listen("tcp", ":"+strconv.Itoa(port))
		return err
	})
	return l, err
}

// ListenPacket receives UDP on the host's main address.
func (h *Host) ListenPacket(port int) (net.PacketConn, error) {
	var c net.PacketConn
	err := h.Do(func() (err error) {
		c, err = net.ListenPacket("udp", netip.AddrPortFrom(h.Addr(), uint16(port)).String())
		return err
	})
	return c, err
}

// Dial connects from the host to an address with a literal IP.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, err
	}
	var c net.Conn
	err := h.Do(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// onClose runs f when the host closes, before what came earlier.
func (h *Host) onClose(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.undo = append(h.undo, f)
}

// Close ends the host's servers and takes its devices and namespace away.
func (h *Host) Close() error {
	h.mu.Lock()
	undo := h.undo
	already := h.closed
	h.undo, h.closed = nil, true
	h.mu.Unlock()
	if already {
		return nil
	}
	for i := len(undo) - 1; i >= 0; i-- {
		undo[i]()
	}
	if _, err := netlink.LinkByName(h.link); err == nil {
		return fmt.Errorf("device %s is still there", h.link)
	}
	return nil
}
