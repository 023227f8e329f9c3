package datapath

import (
	"bytes"
	"encoding/binary"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// segment says what a TCP frame without IP options is about.
type segment struct {
	to    uint16 // port
	flags byte
	ack   uint32
}

// replied waits for a segment that answers one from the port.
func replied(replies <-chan []byte, port uint16, wait time.Duration) (segment, bool) {
	timeout := time.After(wait)
	for {
		select {
		case f := <-replies:
			// Whether ECN is agreed to is a setting of the host.
			s := segment{binary.BigEndian.Uint16(f[tcpAt+2:]), f[tcpAt+13] &^ ece, binary.BigEndian.Uint32(f[tcpAt+8:])}
			if s.to == port {
				return s, true
			}
		case <-timeout:
			return segment{}, false
		}
	}
}

// The same over a real cable: what is dropped is counted for its reason and gets
// nowhere, and what passes gets no more out of the gateway's TCP than it should.
// Nothing makes a connection, and nothing is put together from pieces.
func TestTricksOnTheWire(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	listener := listening(t, d)
	replies := l.alice.listen(func(f []byte) bool {
		return len(f) >= 54 && f[12] == 8 && f[13] == 0 && f[ipAt] == 0x45 && f[ipAt+9] == protoTCP
	})
	fromAlice := func(f []byte) bool {
		return len(f) >= 14 && (bytes.Equal(f[6:12], hw(alice)) || len(f) >= 34 && f[12] == 8 && bytes.Equal(f[26:30], alice.Address.AsSlice()))
	}
	strayed := map[string]<-chan []byte{
		"outside": l.outside.listen(fromAlice), "bob": l.bob.listen(fromAlice), "the stranger": l.stranger.listen(fromAlice),
	}
	reassembled := ipCounter(t, "ReasmReqds")
	mtu := 1514
	for _, trick := range append(tricks(), layers()...) {
		if len(trick.frame) > mtu {
			continue // TestLinkLayer has it
		}
		t.Run(trick.name, func(t *testing.T) {
			before := dropped(t, d)
			l.alice.send(trick.frame)
			var port uint16
			if len(trick.frame) >= 36 {
				port = binary.BigEndian.Uint16(trick.frame[tcpAt:])
			}
			wait := 40 * time.Millisecond // for nothing
			if trick.reply != 0 {
				wait = patience
			} else if trick.want != Unknown {
				eventually(t, "it is dropped", func() bool { return dropped(t, d)[trick.want].Packets > before[trick.want].Packets })
			}
			got, ok := replied(replies, port, wait)
			if got.flags != trick.reply || ok != (trick.reply != 0) {
				t.Errorf("got reply %06b, want %06b: %s", got.flags, trick.reply, trick.why)
			}
			if got.flags == syn|ack && got.ack != 2 {
				t.Errorf("%d bytes of data were acknowledged", got.ack-2)
			}
			for r, after := range dropped(t, d) {
				n := after.Packets - before[r].Packets
				if want := r == trick.want; (n == 1) != want || n > 1 {
					t.Errorf("counted %d for %s, want one for %s: %s", n, r, trick.want, trick.why)
				}
			}
		})
	}
	settle()
	for where, frames := range strayed {
		for len(frames) > 0 {
			t.Errorf("a frame of alice's is with %s: %x", where, <-frames)
		}
	}
	if n := ipCounter(t, "ReasmReqds") - reassembled; n != 0 {
		t.Errorf("%d pieces reached the host's reassembly", n)
	}
	must.OK(t, listener.SetDeadline(time.Now().Add(50*time.Millisecond)))
	if c, err := listener.Accept(); err == nil {
		t.Errorf("a connection was made: from %s to %s", c.RemoteAddr(), c.LocalAddr())
		c.Close()
	}
	// The packets in between have left no trace: a connection can be made.
	must.OK(t, listener.SetDeadline(time.Now().Add(patience)))
	c, err := l.alice.dial("", "198.51.100.2:443")
	must.OK(t, err)
	defer c.Close()
	server, err := listener.Accept()
	must.OK(t, err)
	server.Close()
}

// ipCounter is one of the host's, of RFC 4293's predecessors in /proc/net/snmp.
func ipCounter(t *testing.T, name string) uint64 {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/net/snmp")
	must.OK(t, err)
	var names []string
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if fields[0] != "Ip:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, f := range fields {
			if names[i] == name {
				n, err := strconv.ParseUint(f, 10, 64)
				must.OK(t, err)
				return n
			}
		}
	}
	t.Fatalf("no counter %s", name)
	return 0
}
