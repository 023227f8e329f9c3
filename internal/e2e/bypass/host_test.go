package bypass

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// hostScript is what a process of the host tries: a connection, with a request, or
// a datagram. It says what it got.
const hostScript = `
import socket, sys
kind, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
s.settimeout(2)
try:
    s.connect((host, port))
    s.send(b"GET / HTTP/1.0\r\n\r\n")
    print("answered" if s.recv(1) else "closed")
except OSError as e:
    print("nothing")
`

// insideServer answers in the sandbox over TCP and UDP.
const insideServer = `
import socket, threading
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("0.0.0.0", 8000))
def datagrams():
    while True:
        b, a = u.recvfrom(100); u.sendto(b, a)
threading.Thread(target=datagrams, daemon=True).start()
s = socket.socket(); s.bind(("0.0.0.0", 8000)); s.listen()
while True:
    c, _ = s.accept(); c.recv(100); c.sendall(b"from inside"); c.close()
`

var hostCases = []struct {
	name string
	uid  uint32
	kind string
}{
	{"a connection of another user's", 65534, "tcp"},
	{"a connection of root's", 0, "tcp"},
	{"a datagram of another user's", 65534, "udp"},
	{"a datagram of root's", 0, "udp"},
}

// testHost goes the other way: what serves in a sandbox is for the daemon alone, who
// lets in what a rule and an exposure allow.
func testHost(t *testing.T, r *rig) {
	const name = "served"
	r.run(t, "", "run", name, "--", "true")
	address := strings.Fields(strings.Split(r.run(t, "", "sandbox", "get", name), "\n")[1])[4]
	r.run(t, "", "sandbox", "exec", name, "-d", "--", "python3", "-c", insideServer)
	// The same from inside, where it is answered.
	for _, kind := range []string{"tcp", "udp"} {
		got := ""
		for end := time.Now().Add(2 * time.Minute); got != "answered" && time.Now().Before(end); {
			got = strings.TrimSpace(r.run(t, "", "run", name, "--", "python3", "-c", hostScript, kind, address, "8000"))
		}
		if got != "answered" {
			t.Fatalf("over %s from inside: %s: the test shows nothing", kind, got)
		}
	}
	for _, c := range hostCases {
		t.Run(c.name, func(t *testing.T) {
			p := exec.Command("/usr/bin/python3", "-c", hostScript, c.kind, address, "8000")
			p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.uid, Gid: c.uid}}
			if out, err := p.CombinedOutput(); err != nil || string(out) != "nothing\n" {
				t.Errorf("got %q, %v", out, err)
			}
		})
	}
	// It is told, a flood of it in few events.
	kinds := map[string]bool{}
	for end := time.Now().Add(time.Minute); len(kinds) < 2 && time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		for e, err := range auditlog.Read(context.Background(), r.log, auditlog.Query{}) {
			must.OK(t, err)
			x := e.Unmapped.Sallyport
			if x.Kind == audit.KindDrop && x.Sandbox == name && x.Reason == "host-process" && e.Source.IP == gatewayAddress && fmt.Sprint(e.Destination.IP, e.Destination.Port) == fmt.Sprint(address, 8000) {
				kinds[e.Connection.ProtocolName] = e.Connection.Direction == 1
			}
		}
	}
	if !kinds["tcp"] || !kinds["udp"] {
		t.Errorf("the log tells of %v", kinds)
	}
}
