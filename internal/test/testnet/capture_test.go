package testnet_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

func contains(s, sub string) bool { return strings.Contains(s, sub) }

func capture(t *testing.T, h *testnet.Host, filter func(testnet.Frame) bool) *testnet.Capture {
	t.Helper()
	c, err := h.Capture(filter)
	must.OK(t, err)
	return c
}

func TestCapture(t *testing.T) {
	h := newHost(t, "h", "198.51.100.10/24", netip.MustParsePrefix("2001:db8::10/64"))
	all := capture(t, h, func(f testnet.Frame) bool { return f.To.Addr() != netip.MustParseAddr("ff02::16") })
	port7 := capture(t, h, func(f testnet.Frame) bool { return f.To.Port() == 7 })

	for _, to := range []string{"198.51.100.10:7", "198.51.100.10:9", "[2001:db8::10]:7"} {
		c, err := net.Dial("udp", to)
		must.OK(t, err)
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	must.Soon(t, "three frames", func() bool { return len(all.Seen()) >= 3 })
	seen := all.Seen()
	if len(seen) != 3 {
		t.Fatalf("saw %d frames, want 3: %v", len(seen), seen)
	}
	for i, want := range []string{"198.51.100.10:7", "198.51.100.10:9", "[2001:db8::10]:7"} {
		f := seen[i]
		if f.To.String() != want || f.Protocol != 17 || f.Dest.String() != h.MAC().String() {
			t.Errorf("frame %d = %v, want UDP to %s at %s", i, f, want, h.MAC())
		}
		if !contains(string(f.Raw), "hello") {
			t.Errorf("frame %d has not the payload", i)
		}
	}
	if n, err := port7.Count(); n != 2 || err != nil {
		t.Errorf("filtered count = %d, %v, want 2", n, err)
	}
}

func TestSilence(t *testing.T) {
	h := newHost(t, "h", "198.51.100.10/24")
	all := capture(t, h, nil)
	time.Sleep(1500 * time.Millisecond)
	if seen := all.Seen(); len(seen) != 0 {
		t.Errorf("an idle host saw %v", seen)
	}
}

// TestCaptureLosesNothing: either all that was sent is counted, or Count says
// that its number is not to be trusted.
func TestCaptureLosesNothing(t *testing.T) {
	h := newHost(t, "h", "198.51.100.10/24")
	c := capture(t, h, func(f testnet.Frame) bool { return f.Protocol == 17 })
	conn, err := net.Dial("udp", "198.51.100.10:9")
	must.OK(t, err)
	defer conn.Close()
	sent := 0
	for range 20_000 {
		// ICMP says that nobody listens; what counts is what went out.
		if _, err := conn.Write(make([]byte, 64)); err == nil {
			sent++
		}
	}
	deadline := time.Now().Add(time.Minute)
	got, err := c.Count()
	for ; got < sent && err == nil && time.Now().Before(deadline); got, err = c.Count() {
		time.Sleep(10 * time.Millisecond)
	}
	if got != sent && err == nil {
		t.Errorf("count = %d without an error, want %d", got, sent)
	}
	t.Logf("%d of %d, %v", got, sent, err)
}
