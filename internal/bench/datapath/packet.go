package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// burst is how many packets of one mode are timed at a time.
const burst = 20_000

// walk times single packets of an open connection in all modes: nanoseconds of
// processor time by mode and round. They are acknowledgements from far outside
// the window, which TCP looks at and forgets, so all there is to it is the way
// from the sandbox's cable to the gateway's socket. The sender's thread does the
// whole of it, and its time is not changed by who else wants the processor.
func (h *host) walk(ctx context.Context, o options) ([][]float64, error) {
	b, err := h.add()
	if err != nil {
		return nil, err
	}
	bridge, err := netlink.LinkByName(h.config.Bridge)
	if err != nil {
		return nil, err
	}
	took := make([][]float64, len(modes))
	for round := range o.rounds + 1 { // the first warms up
		for i := range modes {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			m := (i + round) % len(modes)
			if err := h.enter(modes[m]); err != nil {
				return nil, fmt.Errorf("%s: %w", modes[m].name, err)
			}
			var each time.Duration
			err := b.do(func() (err error) {
				each, err = stroll(bridge.Attrs().HardwareAddr)
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", modes[m].name, err)
			}
			if round > 0 {
				took[m] = append(took[m], float64(each.Nanoseconds()))
			}
		}
	}
	return took, nil
}

// stroll sends a burst from within a box.
func stroll(gateway net.HardwareAddr) (each time.Duration, err error) {
	c, err := net.DialTimeout("tcp4", net.JoinHostPort(target, bulkPort), 5*time.Second)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return 0, err
	}
	frame := acknowledgement(gateway, link.HardwareAddr, c.LocalAddr().(*net.TCPAddr), c.RemoteAddr().(*net.TCPAddr))
	to := &unix.SockaddrLinklayer{Ifindex: link.Index, Halen: 6}
	began, err := threadTime()
	if err != nil {
		return 0, err
	}
	for range burst {
		if err := unix.Sendto(fd, frame, 0, to); err != nil {
			return 0, err
		}
	}
	ended, err := threadTime()
	return (ended - began) / burst, err
}

// threadTime is what the calling thread has used of a processor.
func threadTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}

// acknowledgement is a frame with a TCP segment that has no data.
func acknowledgement(dst, src net.HardwareAddr, from, to *net.TCPAddr) []byte {
	be := binary.BigEndian
	frame := append(append([]byte{}, dst...), src...)
	frame = append(frame, 8, 0)
	ip := append([]byte{0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0}, from.IP.To4()...)
	ip = append(ip, to.IP.To4()...)
	be.PutUint16(ip[10:], checksum(ip))
	tcp := be.AppendUint16(be.AppendUint16(nil, uint16(from.Port)), uint16(to.Port))
	tcp = append(tcp, 0, 0, 0, 1, 0, 0, 0, 1, 5<<4, 1<<4, 0xff, 0xff, 0, 0, 0, 0)
	pseudo := append(append([]byte{}, ip[12:20]...), 0, unix.IPPROTO_TCP, 0, byte(len(tcp)))
	be.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))
	return append(append(frame, ip...), tcp...)
}

// checksum is RFC 1071's of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
