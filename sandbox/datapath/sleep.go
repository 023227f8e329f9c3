package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sallyport/sandbox"
)

// maxFlows bounds the connections of a sleeping sandbox that are remembered. The gateway
// allows a sandbox 1024.
const maxFlows = 4096

// Flows lists the TCP connections between this host's sockets and a sandbox
// (sock_diag(7)).
func Flows(a netip.Addr) ([]sandbox.Flow, error) {
	all, err := netlink.SocketDiagTCP(unix.AF_INET)
	if err != nil {
		return nil, fmt.Errorf("listing connections with %s: %w", a, err)
	}
	var list []sandbox.Flow
	for _, s := range all {
		far, ok := netip.AddrFromSlice(s.ID.Destination.To4())
		near, also := netip.AddrFromSlice(s.ID.Source.To4())
		if !ok || !also || far != a || s.State == unix.BPF_TCP_LISTEN || s.State == unix.BPF_TCP_TIME_WAIT {
			continue
		}
		if len(list) == maxFlows {
			break
		}
		list = append(list, sandbox.Flow{Sandbox: netip.AddrPortFrom(far, s.ID.DestinationPort), Peer: netip.AddrPortFrom(near, s.ID.SourcePort)})
	}
	return list, nil
}

// probePriority is PROBE_PRIORITY of bpf/flow.h.
const probePriority = 0x5350

// ProbeFlows makes a woken sandbox find out which of its connections are gone on the host.
// It sends the sandbox a segment outside of any window on each; the sandbox answers with
// its position (RFC 9293, 3.10.7.4). A socket takes note of the answer; without a socket,
// the kernel resets the connection.
func ProbeFlows(flows []sandbox.Flow) error {
	if len(flows) == 0 {
		return nil
	}
	// With IPPROTO_RAW the IP header, and the source address in it, are this process's
	// (raw(7)).
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err != nil {
		return fmt.Errorf("rousing connections: %w", err)
	}
	defer unix.Close(fd)
	err = mark(fd)
	if err == nil { // so that no probe counts as a connection's segment
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, probePriority)
	}
	if err != nil {
		return fmt.Errorf("rousing connections: %w", err)
	}
	var errs []error
	for _, f := range flows[:min(len(flows), maxFlows)] {
		if !f.Sandbox.Addr().Is4() || !f.Peer.Addr().Is4() {
			continue
		}
		seq := rand.Uint32()
		// A window has at most 2^30 bytes (RFC 7323, 2.3): one of the two is outside.
		for _, n := range []uint32{seq, seq + 1<<31} {
			err := unix.Sendto(fd, rousing(f, n), unix.MSG_DONTWAIT, &unix.SockaddrInet4{Addr: f.Sandbox.Addr().As4()})
			if err != nil && !errors.Is(err, unix.EAGAIN) && len(errs) < 3 {
				errs = append(errs, fmt.Errorf("rousing %s: %w", f.Sandbox, err))
			}
		}
	}
	return errors.Join(errs...)
}

// rousing is an acknowledgement without content from a flow's peer (RFC 791, RFC
// 9293, 3.1). The kernel fills the IP header's length, checksum and identification.
func rousing(f sandbox.Flow, seq uint32) []byte {
	const ip, tcp = 20, 20
	b := make([]byte, ip+tcp)
	from, to := f.Peer.Addr().As4(), f.Sandbox.Addr().As4()
	b[0] = 0x45 // version 4, five words
	b[8], b[9] = 64, unix.IPPROTO_TCP
	copy(b[12:], from[:])
	copy(b[16:], to[:])
	t := b[ip:]
	binary.BigEndian.PutUint16(t, f.Peer.Port())
	binary.BigEndian.PutUint16(t[2:], f.Sandbox.Port())
	binary.BigEndian.PutUint32(t[4:], seq)
	binary.BigEndian.PutUint32(t[8:], seq)
	t[12], t[13] = 5<<4, 0x10 // five words; ACK
	binary.BigEndian.PutUint16(t[14:], 1024)
	sum := uint32(unix.IPPROTO_TCP + tcp)
	for _, part := range [][]byte{from[:], to[:], t} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(t[16:], ^uint16(sum))
	return b
}
