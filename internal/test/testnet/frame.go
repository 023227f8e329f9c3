package testnet

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Frame is one Ethernet frame as it arrived. Fields that it is too short or too odd to have
// are zero; Raw has all of it.
type Frame struct {
	Time     time.Time
	Source   net.HardwareAddr
	Dest     net.HardwareAddr
	Type     uint16         // EtherType, host byte order: 0x0800 IPv4, 0x0806 ARP, 0x86dd IPv6
	Protocol uint8          // IP protocol: 1 ICMP, 6 TCP, 17 UDP, 58 ICMPv6
	From, To netip.AddrPort // ports are 0 but for TCP and UDP
	Raw      []byte         // at most 256 bytes
}

func (f Frame) String() string {
	return fmt.Sprintf("%s > %s type %#04x proto %d %s > %s", f.Source, f.Dest, f.Type, f.Protocol, f.From, f.To)
}

// parse reads Ethernet II, IPv4 (RFC 791), IPv6 with at most a hop-by-hop
// header (RFC 8200) and the ports of TCP and UDP.
func parse(raw []byte) Frame {
	f := Frame{Time: time.Now(), Raw: raw}
	if len(raw) < 14 {
		return f
	}
	f.Dest, f.Source = net.HardwareAddr(raw[0:6]), net.HardwareAddr(raw[6:12])
	f.Type = binary.BigEndian.Uint16(raw[12:])
	var from, to netip.Addr
	rest := raw[14:]
	switch {
	case f.Type == 0x0800 && len(rest) >= 20:
		from, _ = netip.AddrFromSlice(rest[12:16])
		to, _ = netip.AddrFromSlice(rest[16:20])
		f.Protocol = rest[9]
		header := int(rest[0]&0x0f) * 4
		if fragment := binary.BigEndian.Uint16(rest[6:]) & 0x1fff; fragment != 0 || header < 20 || header > len(rest) {
			header = len(rest)
		}
		rest = rest[header:]
	case f.Type == 0x86dd && len(rest) >= 40:
		from, _ = netip.AddrFromSlice(rest[8:24])
		to, _ = netip.AddrFromSlice(rest[24:40])
		f.Protocol = rest[6]
		rest = rest[40:]
		if f.Protocol == 0 && len(rest) >= 8 && len(rest) >= 8+int(rest[1])*8 {
			f.Protocol, rest = rest[0], rest[8+int(rest[1])*8:]
		}
	default:
		return f
	}
	var ports [2]uint16
	if (f.Protocol == 6 || f.Protocol == 17) && len(rest) >= 4 {
		ports = [2]uint16{binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])}
	}
	f.From, f.To = netip.AddrPortFrom(from, ports[0]), netip.AddrPortFrom(to, ports[1])
	return f
}
