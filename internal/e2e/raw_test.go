package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// frame is an Ethernet frame as a hostile root with raw sockets would make it.
// Its fields' zero values are the sandbox's own.
type frame struct {
	name      string
	from, to  string // IPv4 addresses
	fromMAC   string
	toMAC     string
	protocol  byte
	port      uint16
	ethertype uint16 // instead of IPv4
	fragment  bool
}

// rawWays are what gVisor itself would not emit.
var rawWays = []frame{
	{name: "UDP to a bare address", protocol: unix.IPPROTO_UDP, port: 9999},
	{name: "UDP to another resolver", protocol: unix.IPPROTO_UDP, port: 53},
	{name: "QUIC", protocol: unix.IPPROTO_UDP, port: 443},
	{name: "ICMP", protocol: unix.IPPROTO_ICMP},
	{name: "SCTP", protocol: unix.IPPROTO_SCTP, port: 80},
	{name: "GRE", protocol: unix.IPPROTO_GRE},
	{name: "IP in IP", protocol: unix.IPPROTO_IPIP},
	{name: "a spoofed source address", from: "10.232.0.77", protocol: unix.IPPROTO_UDP, port: 9999},
	{name: "the gateway's source address", from: "10.232.0.1", protocol: unix.IPPROTO_UDP, port: 9999},
	{name: "a source address of the outside", from: "203.0.113.5", protocol: unix.IPPROTO_UDP, port: 9999},
	{name: "a spoofed MAC address", fromMAC: "02:42:0a:e8:00:4d", protocol: unix.IPPROTO_UDP, port: 9999},
	{name: "a TCP SYN with a spoofed source", from: "10.232.0.77", protocol: unix.IPPROTO_TCP, port: 443},
	{name: "a TCP SYN with a spoofed MAC address", fromMAC: "02:42:0a:e8:00:4d", protocol: unix.IPPROTO_TCP, port: 443},
	{name: "a fragment", protocol: unix.IPPROTO_UDP, port: 9999, fragment: true},
	{name: "a VLAN tag", ethertype: unix.ETH_P_8021Q, protocol: unix.IPPROTO_UDP, port: 9999},
	{name: "IPv6", ethertype: unix.ETH_P_IPV6},
	{name: "a frame to everybody", toMAC: "ff:ff:ff:ff:ff:ff", protocol: unix.IPPROTO_UDP, port: 9999},
	{name: "a frame to a link-local group", toMAC: "01:80:c2:00:00:0e", protocol: unix.IPPROTO_UDP, port: 9999},
	{name: "another sandbox", to: "10.232.0.200", protocol: unix.IPPROTO_TCP, port: 8000},
}

// bytes builds the frame for the sandbox with this address and MAC address.
func (f frame) bytes(self string, mac, gateway net.HardwareAddr) []byte {
	pick := func(given, own string) string {
		if given != "" {
			return given
		}
		return own
	}
	hw := func(given string, own net.HardwareAddr) net.HardwareAddr {
		if given == "" {
			return own
		}
		m, err := net.ParseMAC(given)
		if err != nil {
			panic(err)
		}
		return m
	}
	payload := []byte("leak")
	segment := make([]byte, 8, 32)
	binary.BigEndian.PutUint16(segment, 40000)
	binary.BigEndian.PutUint16(segment[2:], f.port)
	if f.protocol == unix.IPPROTO_TCP {
		segment = append(segment, make([]byte, 12)...)
		segment[12], segment[13] = 5<<4, 2 // header of five words, SYN
		payload = nil
	} else {
		binary.BigEndian.PutUint16(segment[4:], uint16(8+len(payload)))
	}
	segment = append(segment, payload...)

	ip := make([]byte, 20, 64)
	ip[0], ip[8], ip[9] = 0x45, 64, f.protocol
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(segment)))
	if f.fragment {
		binary.BigEndian.PutUint16(ip[6:], 0x2000) // more fragments
	}
	src, dst := netip.MustParseAddr(pick(f.from, self)).As4(), netip.MustParseAddr(pick(f.to, upstreamAddress)).As4()
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))

	out := append([]byte{}, hw(f.toMAC, gateway)...)
	out = append(out, hw(f.fromMAC, mac)...)
	switch f.ethertype {
	case unix.ETH_P_8021Q:
		out = append(out, 0x81, 0, 0, 7, 8, 0)
	case 0:
		out = append(out, 8, 0)
	default:
		out = binary.BigEndian.AppendUint16(out, f.ethertype)
	}
	return append(append(out, ip...), segment...)
}

// send puts a frame on the sandbox's end of its cable, as raw sockets of its
// own would: from a thread inside its network namespace.
func (r *rig) send(pid int, frames ...[]byte) {
	r.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread is thrown away with its namespace
		done <- func() error {
			ns, err := netns.GetFromPid(pid)
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := netns.Set(ns); err != nil {
				return err
			}
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
			if err != nil {
				return err
			}
			defer unix.Close(s)
			for _, f := range frames {
				if err := unix.Sendto(s, f, 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index}); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	must.OK(r.t, <-done)
}

// pid is that of a sandbox's first process.
func (r *rig) pid(name string) (pid int) {
	r.t.Helper()
	out, err := r.docker("inspect", "-f", "{{.State.Pid}}", r.container(name)).Output()
	if err == nil {
		_, err = fmt.Sscan(string(out), &pid)
	}
	if err != nil || pid == 0 {
		r.t.Fatalf("the first process of %s: %q, %v", name, out, err)
	}
	return pid
}

// testRawPackets: what gVisor would not emit does not leave either, sent from the
// namespaces of a gVisor sandbox and of a runc sandbox, which also tries all other
// ways. The control is for when nothing guards any more.
func testRawPackets(t *testing.T, r *rig, arrived *testnet.Capture) (control func(*testing.T)) {
	if res := r.sallyport("run", "plain", "--runtime", "runc", "--", "true"); res.code != 0 || !strings.Contains(res.stderr, "shares the host's kernel") {
		t.Fatalf("runc: got %s, want exit 0 and a warning", res)
	}
	bridge, err := net.InterfaceByName("spe2e0")
	must.OK(t, err)
	mac := func(name string) net.HardwareAddr {
		a := netip.MustParseAddr(r.address(name)).As4()
		return net.HardwareAddr{2, 0x42, a[0], a[1], a[2], a[3]}
	}
	for _, name := range []string{"agent", "plain"} {
		for _, f := range rawWays {
			t.Run(name+" "+f.name, func(t *testing.T) {
				before := count(t, arrived)
				frame := f.bytes(r.address(name), mac(name), bridge.HardwareAddr)
				r.send(r.pid(name), frame, frame, frame)
				time.Sleep(50 * time.Millisecond)
				if n := count(t, arrived) - before; n != 0 {
					t.Errorf("%d packets arrived: %v", n, arrived.Seen()[before:])
				}
			})
		}
	}
	t.Run("runc", func(t *testing.T) { tryWays(t, r, "plain", r.address("agent"), arrived) })
	plain, plainMAC := r.address("plain"), mac("plain") // while the daemon can say
	return func(t *testing.T) {
		for _, f := range rawWays {
			switch f.name {
			case "UDP to a bare address", "ICMP", "SCTP", "GRE", "a spoofed source address", "QUIC":
			default:
				continue // these a host that routes would not pass on by itself
			}
			before := count(t, arrived)
			r.send(r.pid("plain"), f.bytes(plain, plainMAC, bridge.HardwareAddr))
			r.await(f.name, func() bool { return count(t, arrived) > before })
		}
	}
}
