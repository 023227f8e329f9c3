package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// A client of QUIC in a gVisor sandbox, which has a connected socket, is refused
// and turns to TCP; the test host gets no packet of it, and the refusal is in the
// audit log.
func testDatagrams(t *testing.T, r *rig) {
	forward(t)
	r.ok("run", "agent", "--", "true")
	arrived, err := r.host.Capture(nil)
	must.OK(t, err)
	cases := []struct{ name, host, port, size, reason string }{
		{"QUIC to an allowed name", `socket.gethostbyname("api.example.test")`, "443", "1200", "quic"},
		{"QUIC to a bare address", fmt.Sprintf("%q", upstreamAddress), "443", "1200", "quic"},
		{"NTP", fmt.Sprintf("%q", upstreamAddress), "123", "48", "udp"},
		{"another resolver", fmt.Sprintf("%q", upstreamAddress), "53", "30", "dns"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			before := count(t, arrived)
			res := r.feed(fmt.Sprintf(`
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
s.connect((%s, %s))
try:
    s.send(b"\xc0\x00\x00\x00\x01".ljust(%s, b"\0"))
    s.recv(1500)
except Exception as e:
    print(type(e).__name__)
`, c.host, c.port, c.size), "run", "agent", "--", "python3", "-")
			if want := "ConnectionRefusedError\n"; res.stdout != want {
				t.Errorf("got %s, want %q", res, want)
			}
			time.Sleep(50 * time.Millisecond)
			if n := count(t, arrived) - before; n != 0 {
				t.Errorf("%d packets arrived: %v", n, arrived.Seen()[before:])
			}
		})
	}
	for _, c := range cases { // drops are counted and recorded every few seconds
		r.await("the record of the drop of "+c.name, func() bool {
			for line := range strings.Lines(r.ok("audit", "tail", "-n", "50", "-o", "json")) {
				if strings.Contains(line, `"reason":"`+c.reason+`"`) && strings.Contains(line, "agent") {
					return true
				}
			}
			return false
		})
	}
	t.Run("control: TCP to the same name is answered", func(t *testing.T) {
		if res := r.inside("agent", "curl -sS https://api.example.test/v1/models"); !strings.Contains(res.stdout, "saw_key") {
			t.Errorf("got %s", res)
		}
	})
}
