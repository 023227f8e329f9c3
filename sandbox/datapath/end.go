package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// EndFlows ends this host's TCP sockets that are connected to an address, whoever has them,
// those that were closed with something left to send included. It is for a detached endpoint:
// the next one with the address would get that, and could answer.
func (d *Datapath) EndFlows(a netip.Addr) error {
	for _, last := range []bool{false, true} {
		list, err := sockets(a)
		if err != nil {
			return fmt.Errorf("ending connections with %s: %w", a, err)
		}
		for _, s := range list {
			// Linux before 6.10 cannot end what waits in FIN-WAIT-2 without a process. That sends nothing.
			if err := destroy(s); last && err != nil && s.State != unix.BPF_TCP_FIN_WAIT2 {
				return fmt.Errorf("ending connections with %s: %w: does this kernel have CONFIG_INET_DIAG_DESTROY?", a, err)
			}
		}
	}
	return nil
}

// sockets lists the TCP sockets that are connected to an IPv4 address.
func sockets(a netip.Addr) (list []*netlink.Socket, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		all, err := netlink.SocketDiagTCP(family)
		if err != nil {
			return nil, err
		}
		for _, s := range all {
			to, ok := netip.AddrFromSlice(s.ID.Destination)
			if ok && to.Unmap() == a && s.State != unix.BPF_TCP_LISTEN && s.State != unix.BPF_TCP_TIME_WAIT {
				list = append(list, s)
			}
		}
	}
	return list, nil
}

// destroy ends a socket, if it is there still (SOCK_DESTROY of sock_diag(7)). Without the
// cookie, the kernel would look for another one with these addresses: for a listener.
func destroy(s *netlink.Socket) error {
	r := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	r.AddRawData(diagRequest(s))
	_, err := r.Execute(unix.NETLINK_INET_DIAG, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) {
		return nil
	}
	return err
}

// diagRequest is inet_diag_req_v2 of linux/inet_diag.h.
func diagRequest(s *netlink.Socket) []byte {
	b := make([]byte, 56)
	b[0], b[1] = s.Family, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(b[8:], s.ID.SourcePort)
	binary.BigEndian.PutUint16(b[10:], s.ID.DestinationPort)
	from, to := s.ID.Source.To16(), s.ID.Destination.To16()
	if s.Family == unix.AF_INET {
		from, to = s.ID.Source.To4(), s.ID.Destination.To4()
	}
	copy(b[12:28], from)
	copy(b[28:44], to)
	binary.NativeEndian.PutUint32(b[44:], s.ID.Interface)
	binary.NativeEndian.PutUint32(b[48:], s.ID.Cookie[0])
	binary.NativeEndian.PutUint32(b[52:], s.ID.Cookie[1])
	return b
}
