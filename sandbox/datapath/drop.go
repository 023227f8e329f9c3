package datapath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// Drop is a number of frames of one endpoint that were dropped for one reason. The
// addresses are those of one of the frames.
type Drop struct {
	Reason     Reason
	Generation uint32 // 0: of no endpoint
	Link       int    // interface index where they were dropped
	Sandbox    string // empty: of no endpoint, or detached since
	SandboxID  string
	// Source and Destination have port 0 for a protocol without ports, and are zero
	// without an IP packet. For ARP they are the sender and the target.
	Source, Destination       netip.AddrPort
	SourceMAC, DestinationMAC net.HardwareAddr
	EtherType                 uint16 // zero: too short to tell
	Protocol                  uint8  // IP's
	Count                     uint64
	Time                      time.Time // of the last of them that is known
}

// sweepEvery is how often the ends of floods are reported. In that time the kernel reports
// each flood once (WINDOW of bpf/state.h).
const sweepEvery = time.Second

// Drops calls f for dropped frames until ctx is done, and returns nil then. Every drop is
// in the Count of one call, also drops from before this process. There are at most about
// two calls a second for each endpoint and reason. One process may call Drops at a time.
func (d *Datapath) Drops(ctx context.Context, f func(Drop)) error {
	reader, err := ringbuf.NewReader(d.objs.Drops)
	if err != nil {
		return fmt.Errorf("reading drops: %w", err)
	}
	defer reader.Close()
	defer context.AfterFunc(ctx, func() { reader.Close() })()
	t := teller{d: d, tell: f, last: map[guardFlood]Drop{}}
	var record ringbuf.Record
	var swept time.Time
	for {
		if time.Since(swept) >= sweepEvery {
			swept = time.Now()
			if err := t.sweep(); err != nil {
				return err
			}
			reader.SetDeadline(swept.Add(sweepEvery))
		}
		err := reader.ReadInto(&record)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			return fmt.Errorf("reading drops: %w", err)
		default:
			if err := t.event(record.RawSample); err != nil {
				return err
			}
		}
	}
}

// teller turns the kernel's running totals of floods into counts.
type teller struct {
	d    *Datapath
	tell func(Drop)
	last map[guardFlood]Drop // what the tail of a flood looked like
}

func (t *teller) event(sample []byte) error {
	e, d, err := decode(sample)
	if err != nil {
		return err
	}
	if len(t.last) >= int(t.d.objs.Floods.MaxEntries()) {
		clear(t.last)
	}
	t.last[e.Flood] = d
	return t.settle(e.Flood, e.Seen, d)
}

// decode reads a record of the ring buffer, which rounds its size up.
func decode(sample []byte) (e guardEvent, d Drop, err error) {
	if len(sample) < int(unsafe.Sizeof(e)) {
		return e, d, fmt.Errorf("reading drops: an event of %d bytes", len(sample))
	}
	e = *(*guardEvent)(unsafe.Pointer(&sample[0]))
	return e, Drop{
		Reason:         Reason(e.Flood.Reason),
		Generation:     e.Flood.Generation,
		Link:           int(e.Flood.Link),
		Source:         addrPort(e.Saddr, e.Sport),
		Destination:    addrPort(e.Daddr, e.Dport),
		SourceMAC:      net.HardwareAddr(e.Src.Addr[:]),
		DestinationMAC: net.HardwareAddr(e.Dst.Addr[:]),
		EtherType:      e.Ethertype,
		Protocol:       e.Proto,
		Time:           sinceBoot(e.Time),
	}, nil
}

// sweep reports drops that the kernel counted without an event.
func (t *teller) sweep() error {
	var (
		flood guardFlood
		tally guardTally
	)
	entries := t.d.objs.Floods.Iterate()
	for entries.Next(&flood, &tally) {
		since := sinceBoot(tally.Since)
		if time.Since(since) < sweepEvery {
			continue // its next event may be on the way
		}
		d, ok := t.last[flood]
		if !ok {
			d = Drop{Reason: Reason(flood.Reason), Generation: flood.Generation, Link: int(flood.Link), Time: since}
		}
		if err := t.settle(flood, tally.Seen, d); err != nil {
			return err
		}
	}
	// A change of the map may end the iteration early: the next sweep goes on.
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("sweeping drops: %w", err)
	}
	return nil
}

// settle reports what was seen and not reported.
func (t *teller) settle(flood guardFlood, seen uint64, d Drop) error {
	var told uint64
	err := t.d.objs.Told.Lookup(flood, &told)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("reading what was told of drops: %w", err)
	}
	if seen == told {
		return nil
	}
	d.Count = seen - told
	if seen < told {
		// Either the kernel has forgotten the flood and counts anew, or the sweep came
		// before the event and has reported it.
		var tally guardTally
		if err := t.d.objs.Floods.Lookup(flood, &tally); err == nil && tally.Seen >= told {
			return nil
		}
		d.Count = seen
	}
	if err := t.d.objs.Told.Put(flood, seen); err != nil {
		return fmt.Errorf("noting what was told of drops: %w", err)
	}
	var e guardEndpoint
	if d.Generation != 0 && t.d.objs.Endpoints.Lookup(d.Generation, &e) == nil {
		d.Sandbox, d.SandboxID = text(e.Sandbox[:]), text(e.Id[:])
	}
	t.tell(d)
	return nil
}

// addrPort is zero for no address; the port is in network order.
func addrPort(addr [16]byte, port uint16) netip.AddrPort {
	a := netip.AddrFrom16(addr).Unmap()
	if addr == [16]byte{} {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, unwirePort(port))
}

// sinceBoot turns the kernel's clock into the time of day.
func sinceBoot(ns uint64) time.Time {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return time.Now()
	}
	return time.Now().Add(-time.Duration(uint64(now.Nano()) - ns))
}
