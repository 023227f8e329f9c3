package datapath

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// packet is a frame to be made; the zero value of a field is the usual one.
type packet struct {
	dst, src     net.HardwareAddr
	tags         []uint16 // tag protocols: 0x8100, 0x88a8
	ethertype    uint16
	saddr, daddr netip.Addr
	proto        byte
	sport, dport uint16
	flags        byte   // TCP; default SYN
	fragment     uint16 // IPv4 flags and offset
	options      []byte // IPv4
	arp          *arp
	icmp, code   byte
	body         []byte // of anything
	cut          int    // keep so many bytes
	raw          []byte // all of it, instead
}

type arp struct {
	op             uint16
	sender, target net.HardwareAddr
	spa, tpa       netip.Addr
}

const (
	protoICMP  = 1
	protoTCP   = 6
	protoUDP   = 17
	protoGRE   = 47
	protoICMP6 = 58
	protoSCTP  = 132
)

func (p packet) bytes() []byte {
	if p.raw != nil {
		return p.raw
	}
	be := binary.BigEndian
	b := append(append([]byte{}, p.dst...), p.src...)
	for i, tag := range p.tags {
		b = be.AppendUint16(b, tag)
		b = be.AppendUint16(b, uint16(100+i))
	}
	ethertype := p.ethertype
	if ethertype == 0 {
		switch {
		case p.arp != nil:
			ethertype = 0x0806
		case p.daddr.Is6():
			ethertype = 0x86dd
		default:
			ethertype = 0x0800
		}
	}
	b = be.AppendUint16(b, ethertype)
	switch {
	case p.arp != nil:
		b = append(b, 0, 1, 8, 0, 6, 4)
		b = be.AppendUint16(b, p.arp.op)
		b = append(append(b, p.arp.sender...), p.arp.spa.AsSlice()...)
		b = append(append(b, p.arp.target...), p.arp.tpa.AsSlice()...)
		b = append(b, p.body...)
	case !p.daddr.IsValid():
		b = append(b, p.body...)
	default:
		b = append(b, p.network()...)
	}
	if p.cut > 0 {
		b = b[:p.cut]
	}
	return b
}

func (p packet) network() []byte {
	be := binary.BigEndian
	segment := p.transport()
	if p.daddr.Is6() {
		b := be.AppendUint32(nil, 6<<28)
		b = be.AppendUint16(b, uint16(len(segment)))
		b = append(b, p.proto, 255)
		b = append(append(b, p.saddr.AsSlice()...), p.daddr.AsSlice()...)
		return append(b, segment...)
	}
	header := 20 + len(p.options)
	b := []byte{4<<4 | byte(header/4), 0}
	b = be.AppendUint16(b, uint16(header+len(segment)))
	b = be.AppendUint16(b, 0x5a5a)
	b = be.AppendUint16(b, p.fragment)
	b = append(b, 64, p.proto, 0, 0)
	b = append(append(b, p.saddr.AsSlice()...), p.daddr.AsSlice()...)
	b = append(b, p.options...)
	be.PutUint16(b[10:], checksum(b))
	return append(b, segment...)
}

func (p packet) transport() []byte {
	be := binary.BigEndian
	var b []byte
	at := 0 // of the checksum
	switch p.proto {
	case protoTCP:
		flags := p.flags
		if flags == 0 {
			flags = 0x02
		}
		b = be.AppendUint16(be.AppendUint16(b, p.sport), p.dport)
		b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
		at = 16
	case protoUDP:
		b = be.AppendUint16(be.AppendUint16(b, p.sport), p.dport)
		b = be.AppendUint16(b, uint16(8+len(p.body)))
		b = append(b, 0, 0)
		at = 6
	case protoICMP, protoICMP6:
		b = append(b, p.icmp, p.code, 0, 0, 0, 1, 0, 1)
		at = 2
	}
	b = append(b, p.body...)
	if at == 0 {
		return b
	}
	var pseudo []byte
	if p.proto != protoICMP {
		pseudo = append(append(pseudo, p.saddr.AsSlice()...), p.daddr.AsSlice()...)
		pseudo = append(pseudo, 0, p.proto)
		pseudo = be.AppendUint16(pseudo, uint16(len(b)))
	}
	be.PutUint16(b[at:], checksum(append(pseudo, b...)))
	return b
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
