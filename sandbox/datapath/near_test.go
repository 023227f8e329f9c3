package datapath

import (
	"testing"

	"github.com/cilium/ebpf"

	"sallyport/internal/test/must"
)

// passes says whether alice's frames pass all three programs.
func passes(t *testing.T, d *Datapath, generation uint32) bool {
	t.Helper()
	toAlice := packet{dst: hw(alice), src: bridgeMAC(testBridge), saddr: outside, daddr: alice.Address, proto: protoTCP, sport: 443, dport: 40000, flags: syn | ack}
	in, mark := run(t, d.objs.PortIn, aliceTCP(), skb{})
	out, _ := run(t, d.objs.PortOut, toAlice, skb{skbMark: routeMark})
	bridge, _ := run(t, d.objs.BridgeIn, aliceARP(), skb{skbMark: generation})
	if in == redirect && mark != generation {
		t.Errorf("got stamp %d, want %d", mark, generation)
	}
	if (in == redirect) != (out == next) || out != bridge {
		t.Errorf("the programs disagree: %d, %d, %d", int32(in), int32(out), int32(bridge))
	}
	return in == redirect
}

// An endpoint whose slots are another's is found in the maps, and is gone when
// it is detached like any other.
func TestSharedSlots(t *testing.T) {
	d := programs(t)
	other := bob
	other.Generation = alice.Generation + d.objs.NearGenerations.MaxEntries()
	admit(t, d, other, loopback+d.objs.NearLinks.MaxEntries())
	if passes(t, d, alice.Generation) {
		t.Fatal("nobody's frames passed")
	}
	admit(t, d, alice, loopback)
	for _, s := range d.slots(alice.Generation, loopback) {
		if n, err := s.read(); err != nil || n.Generation != other.Generation {
			t.Fatalf("slot %d of %v: got %+v, %v, want the other's", s.index, s.table, n, err)
		}
	}
	if !passes(t, d, alice.Generation) {
		t.Error("alice's frames did not pass")
	}
	dismiss(t, d, alice.Generation)
	if passes(t, d, alice.Generation) {
		t.Error("alice's frames passed after her end")
	}
	admit(t, d, alice, loopback)
	dismiss(t, d, other.Generation)
	if !passes(t, d, alice.Generation) {
		t.Error("alice's frames did not pass after the other's end")
	}
}

// Entries that another build leaves in the tables, or does not put there, are mended when the
// datapath is opened.
func TestAlign(t *testing.T) {
	d := programs(t)
	admit(t, d, alice, loopback)
	var v guardEndpoint
	must.OK(t, d.objs.Endpoints.Lookup(alice.Generation, &v))
	t.Run("detached", func(t *testing.T) {
		must.OK(t, d.objs.Ports.Delete(uint32(loopback)))
		must.OK(t, d.objs.Endpoints.Delete(alice.Generation))
		must.OK(t, d.align())
		if passes(t, d, alice.Generation) {
			t.Error("frames passed of what is in the tables only")
		}
	})
	t.Run("moved to another interface", func(t *testing.T) {
		admit(t, d, alice, loopback)
		moved := v
		moved.Face.Link = 2
		must.OK(t, d.objs.Endpoints.Put(alice.Generation, moved))
		must.OK(t, d.objs.Ports.Delete(uint32(loopback)))
		must.OK(t, d.objs.Ports.Put(uint32(2), alice.Generation))
		must.OK(t, d.align())
		if verdict, _ := run(t, d.objs.PortIn, aliceTCP(), skb{}); verdict != shot {
			t.Errorf("from the interface before: got verdict %d", int32(verdict))
		}
		dismiss(t, d, alice.Generation)
	})
	t.Run("superseded", func(t *testing.T) {
		// Endpoints that no interface speaks for any more.
		for generation := uint32(100); generation < 120; generation++ {
			must.OK(t, d.objs.Endpoints.Put(generation, v))
		}
		admit(t, d, alice, loopback)
		must.OK(t, d.takeAway(alice.Generation, loopback))
		must.OK(t, d.align())
		if !passes(t, d, alice.Generation) {
			t.Error("alice's frames did not pass")
		}
	})
	t.Run("attached", func(t *testing.T) {
		must.OK(t, d.takeAway(alice.Generation, loopback))
		must.OK(t, d.align())
		// Emptied maps show who is in the tables.
		for _, m := range []*ebpf.Map{d.objs.Ports, d.objs.Endpoints} {
			for key := uint32(0); m.NextKey(nil, &key) == nil; {
				must.OK(t, m.Delete(key))
			}
		}
		if !passes(t, d, alice.Generation) {
			t.Error("alice is not in the tables")
		}
	})
}
