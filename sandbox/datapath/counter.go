package datapath

import "fmt"

// Traffic is a number of frames and of their bytes, Ethernet headers included.
type Traffic struct {
	Packets, Bytes uint64
}

// Counters count since the datapath was first opened after the last boot.
type Counters struct {
	Sent      Traffic // passed by the sandboxes' ports
	Accepted  Traffic // of those, passed by the bridge to the host
	Delivered Traffic // passed to the sandboxes
	Answered  Traffic // of those, the port's own answers to datagrams that it dropped
	Dropped   map[Reason]Traffic
}

// Counters returns what passed and what was dropped. Every reason has an entry.
func (d *Datapath) Counters() (Counters, error) {
	c := Counters{Dropped: make(map[Reason]Traffic, reasons)}
	for r := Unknown + 1; r < reasons; r++ {
		t, err := d.count(uint32(r))
		if err != nil {
			return Counters{}, err
		}
		c.Dropped[r] = t
	}
	for slot, t := range map[guardSlot]*Traffic{
		guardSlotSENT:      &c.Sent,
		guardSlotACCEPTED:  &c.Accepted,
		guardSlotDELIVERED: &c.Delivered,
		guardSlotANSWERED:  &c.Answered,
	} {
		var err error
		if *t, err = d.count(uint32(slot)); err != nil {
			return Counters{}, err
		}
	}
	return c, nil
}

func (d *Datapath) count(slot uint32) (Traffic, error) {
	var perCPU []guardTraffic
	if err := d.objs.Counters.Lookup(slot, &perCPU); err != nil {
		return Traffic{}, fmt.Errorf("reading counter %d: %w", slot, err)
	}
	var sum Traffic
	for _, t := range perCPU {
		sum.Packets += t.Packets
		sum.Bytes += t.Bytes
	}
	return sum, nil
}
