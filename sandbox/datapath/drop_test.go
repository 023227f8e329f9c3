package datapath

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sallyport/internal/test/must"
)

func drops(t *testing.T, d *Datapath) (next func(Reason) Drop) {
	t.Helper()
	told := make(chan Drop, 1000)
	ended := make(chan error)
	ctx := t.Context()
	go func() { ended <- d.Drops(ctx, func(d Drop) { told <- d }) }()
	t.Cleanup(func() { must.OK(t, <-ended) })
	return func(want Reason) Drop {
		t.Helper()
		timeout := time.After(patience)
		for {
			select {
			case got := <-told:
				if got.Reason == want {
					return got
				}
			case <-timeout:
				t.Fatalf("never told of a drop for %s", want)
			}
		}
	}
}

func TestDrops(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	next := drops(t, d)
	quic := packet{dst: bridgeMAC(testBridge), src: hw(alice), saddr: alice.Address, daddr: outside, proto: protoUDP, sport: 4000, dport: 443}
	before := time.Now()
	l.alice.send(quic.bytes())
	got := next(QUIC)
	if got.Time.Before(before.Add(-time.Second)) || got.Time.After(time.Now().Add(time.Second)) {
		t.Errorf("got time %v, want about %v", got.Time, before)
	}
	got.Time = time.Time{}
	want := Drop{
		Reason: QUIC, Generation: alice.Generation, Link: l.alice.host, Sandbox: alice.Sandbox, SandboxID: alice.ID,
		Source:      netip.AddrPortFrom(alice.Address, 4000),
		Destination: netip.AddrPortFrom(outside, 443),
		SourceMAC:   hw(alice), DestinationMAC: bridgeMAC(testBridge),
		EtherType: 0x0800, Protocol: protoUDP, Count: 1,
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Error(diff)
	}

	arp := aliceARP()
	arp.arp.tpa = bob.Address
	l.alice.send(arp.bytes())
	if got := next(BadARP); got.Source.Addr() != alice.Address || got.Destination.Addr() != bob.Address || got.Protocol != 0 {
		t.Errorf("of ARP got %+v", got)
	}
	v6 := quic
	v6.saddr, v6.daddr = netip.MustParseAddr("2001:db8:1::a"), l.outsideV6
	l.alice.send(v6.bytes())
	if got := next(IPv6); got.Destination != netip.AddrPortFrom(l.outsideV6, 443) {
		t.Errorf("of IPv6 got %+v", got)
	}
	// A port has words of its own when it comes up, neighbour discovery's, which
	// may be what a window tells of.
	for range 20 {
		l.stranger.send(packet{dst: bridgeMAC(testBridge), src: l.strangerMAC, saddr: outside, daddr: outside, proto: protoTCP}.bytes())
		got = next(Unattached)
		if got.SourceMAC.String() == l.strangerMAC.String() {
			break
		}
	}
	if got.Link != l.stranger.host || got.Sandbox != "" || got.SourceMAC.String() != l.strangerMAC.String() {
		t.Errorf("of the stranger got %+v", got)
	}
}

// A flood is a few events whose counts add up; another's drop is told at once.
func TestDropsOfAFlood(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	const n = 20_000
	ntp := packet{dst: bridgeMAC(testBridge), src: hw(alice), saddr: alice.Address, daddr: outside, proto: protoUDP, sport: 4000, dport: 123}
	var frames [][]byte
	for range n {
		frames = append(frames, ntp.bytes())
	}
	next := drops(t, d)
	l.alice.send(frames...)
	quiet := ntp
	quiet.src, quiet.saddr = hw(bob), bob.Address
	l.bob.send(quiet.bytes())
	var ofAlice, calls, ofBob uint64
	for ofAlice < n || ofBob < 1 {
		got := next(UDP)
		if got.Sandbox == bob.Sandbox {
			ofBob += got.Count
			continue
		}
		calls++
		ofAlice += got.Count
	}
	if ofAlice != n || ofBob != 1 || calls > 10 {
		t.Errorf("told of %d of alice's in %d calls and %d of bob's; want %d in a few, and 1", ofAlice, calls, ofBob, n)
	}
	if got := dropped(t, d)[UDP].Packets; got != n+1 {
		t.Errorf("counted %d, want %d", got, n+1)
	}
}

// Drops from when nobody listened are told by the next process, once.
func TestDropsWhileDead(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	must.OK(t, d.Close())
	ping := packet{dst: bridgeMAC(testBridge), src: hw(alice), saddr: alice.Address, daddr: outside, proto: protoICMP, icmp: 8}.bytes()
	l.alice.send(ping, ping, ping)
	for _, want := range []uint64{3, 2} {
		d, err := Open(l.config)
		must.OK(t, err)
		t.Run("a process", func(t *testing.T) {
			next := drops(t, d)
			for got := uint64(0); got != want; {
				got += next(ICMP).Count
				if got > want {
					t.Fatalf("told of %d, want %d", got, want)
				}
			}
		})
		must.OK(t, d.Close())
		l.alice.send(ping, ping)
	}
}
