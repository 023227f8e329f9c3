package datapath

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// FuzzDecode: of a record of the ring buffer every field is read from where
// bpf/state.h has it, its addresses in the byte order of packets, and one that is
// too short is an error.
func FuzzDecode(f *testing.F) {
	const size = 80
	v4 := append(make([]byte, 10), 0xff, 0xff)
	record := append([]byte{1, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 0, 8, 17, 0}, make([]byte, 16)...)
	record = append(append(record, v4...), 198, 51, 100, 2)
	record = append(append(record, v4...), 203, 0, 113, 1)
	record = append(record, 0x0f, 0xa0, 0x01, 0xbb, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2)
	f.Add(record)
	f.Add(record[:size-1])
	f.Add(append(bytes.Clone(record), 0, 0, 0, 0, 0, 0, 0, 0))
	f.Add(make([]byte, size))
	f.Add(bytes.Repeat([]byte{0xff}, size))
	f.Add(append(append(bytes.Clone(record[:8]), 1, 1, 0, 0), record[12:]...)) // reason 257
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, sample []byte) {
		buffer := bytes.Clone(sample)
		e, d, err := decode(buffer)
		clear(buffer) // its reader will use it again
		if (err == nil) != (len(sample) >= size) {
			t.Fatalf("%d bytes: %v", len(sample), err)
		}
		if err != nil {
			return
		}
		order := binary.NativeEndian
		where := func(at, port int) netip.AddrPort {
			ip := net.IP(sample[at : at+16])
			if bytes.Equal(ip, net.IPv6zero) {
				return netip.AddrPort{}
			}
			if four := ip.To4(); four != nil {
				ip = four
			}
			addr, _ := netip.AddrFromSlice(ip)
			return netip.AddrPortFrom(addr, uint16(sample[port])<<8|uint16(sample[port+1]))
		}
		switch {
		case d.Generation != order.Uint32(sample), d.Link != int(order.Uint32(sample[4:])), uint32(d.Reason) != order.Uint32(sample[8:]):
			t.Errorf("flood %+v of %x", d, sample[:12])
		case e.Flood.Generation != d.Generation, e.Flood.Link != uint32(d.Link), e.Flood.Reason != order.Uint32(sample[8:]):
			t.Errorf("flood %+v and %+v", e.Flood, d)
		case d.EtherType != order.Uint16(sample[12:]), d.Protocol != sample[14], e.Time != order.Uint64(sample[16:]), e.Seen != order.Uint64(sample[24:]):
			t.Errorf("%+v, %+v of %x", e, d, sample[12:32])
		case d.Source != where(32, 64), d.Destination != where(48, 66):
			t.Errorf("from %v to %v of %x", d.Source, d.Destination, sample[32:68])
		case !bytes.Equal(d.SourceMAC, sample[68:74]), !bytes.Equal(d.DestinationMAC, sample[74:80]):
			t.Errorf("from %v to %v of %x", d.SourceMAC, d.DestinationMAC, sample[68:])
		case d.Sandbox != "" || d.Count != 0:
			t.Errorf("%+v says what no record has", d)
		}
		if known := d.Reason < reasons; known == strings.HasPrefix(d.Reason.String(), "Reason(") || d.Reason.String() == "" {
			t.Errorf("reason %d is called %s", uint32(d.Reason), d.Reason)
		}
	})
}
