package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/sandbox"
)

// thinker is a process with something in its memory, a file that it keeps open, and
// a connection that it keeps. For each number that it is asked it says what it is:
// on a line of /memory/said, so that each sandbox has its own.
const thinker = `cat >/tmp/c.py <<'EOF'
import http.client, os, random, secrets, socket, ssl, threading, time
token = secrets.token_hex(8); ballast = os.urandom(1 << 20) * BALLAST
held = open("/root/held", "w+"); count = 0
kept = http.client.HTTPSConnection("shared.example.test", timeout=30)
kept.request("GET", "/"); kept.getresponse().read()
def fetch(c):
    try:
        c.request("GET", "/"); r = c.getresponse(); return "%d/%s" % (r.status, r.read(5).decode().strip())
    except Exception as e: return "failed:" + type(e).__name__
def address():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("198.51.100.1", 53)); return s.getsockname()[0]
told = ["nothing"]
def listen():
    while True: told.append(open("/proc/gvisor/checkpoint").read().strip())
threading.Thread(target=listen, daemon=True).start()
time.sleep(0.2)
open("/memory/ready", "w").close()
while True:
    count += 1
    if os.path.exists("/memory/ask"):
        os.unlink("/memory/ask")
        held.write("x"); held.flush()
        began = time.monotonic(); over = fetch(kept); took = time.monotonic() - began
        new = http.client.HTTPSConnection
        line = " ".join(str(x) for x in (token, count, os.fstat(held.fileno()).st_size, open("/etc/hostname").read().strip(), address(), over, "%.1f" % took,
            fetch(new("shared.example.test", timeout=20)), fetch(new("api.example.test", timeout=20)), told[-1], os.urandom(8).hex(), random.random(), len(ballast)))
        with open("/memory/part", "w") as f: f.write(line)
        os.rename("/memory/part", "/memory/said")
    time.sleep(0.01)
EOF
exec python3 /tmp/c.py
`

// said is what a thinker answers.
type said struct {
	token, count, held, hostname, address, kept, took, shared, own string
	told, random, pseudo                                           string
}

func (r *rig) ask(name string) said {
	r.t.Helper()
	_ = os.Remove(r.memory(name, "said"))
	must.OK(r.t, os.WriteFile(r.memory(name, "ask"), nil, 0o600))
	var f []string
	r.await("an answer of "+name, func() bool {
		text, err := os.ReadFile(r.memory(name, "said"))
		f = strings.Fields(string(text))
		return err == nil && len(f) == 13
	})
	return said{f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[10], f[11]}
}

// newForkRig has one rule whose credential forks inherit, and one whose is the
// sandbox's own; and a thinker of so many megabytes that is ready.
func newForkRig(t testing.TB, megabytes int) *rig {
	r := newRig(t, "")
	r.configure(baseConfig, strings.Replace(ruleConfig, "egress:", `- name: passed-on
  destination: shared.example.test
  authRef: key
  inherit: true
  upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}
egress:`, 1))
	hello := testnet.RequireKey(testnet.KeyOf(r.key), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	r.serveSites(hostMux{"shared.example.test": hello, "api.example.test": hello})
	r.up()
	r.setKey()
	r.begin("parent", strings.Replace(thinker, "BALLAST", strconv.Itoa(megabytes), 1))
	r.await("the process", func() bool { _, err := os.Stat(r.memory("parent", "ready")); return err == nil })
	return r
}

// TestForkRunning: three children have the memory and the files of one process, and
// are somebody else to everybody outside.
func TestForkRunning(t *testing.T) {
	r := newForkRig(t, 1)
	before := r.ask("parent")
	if before.shared != "200/hello" || before.own != "200/hello" || before.kept != "200/hello" {
		t.Fatalf("the parent: %+v\n%s", before, r.logged())
	}
	r.ok("sandbox", "fork", "parent", "one", "two", "three")
	addresses, random, pseudo := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, name := range []string{"one", "two", "three", "parent"} {
		i, got := r.info(name), r.ask(name)
		t.Logf("%s: %+v", name, got)
		addresses[got.address], random[got.random], pseudo[got.pseudo] = true, true, true
		if want := map[bool]string{true: "resume", false: "restore"}[name == "parent"]; got.told != want {
			t.Errorf("%s is told %q of its fork, want %q", name, got.told, want)
		}
		if took, _ := strconv.ParseFloat(got.took, 64); took > busy.Seconds() {
			t.Errorf("%s waited %s s for a connection of before", name, got.took)
		}
		if got.token != before.token || got.held != "2" || got.hostname != name || got.address != i.Address.String() {
			t.Errorf("%s, at %s: %+v, of which the parent was %+v", name, i.Address, got, before)
		}
		if a, _ := strconv.Atoi(got.count); func() int { n, _ := strconv.Atoi(before.count); return n }() >= a {
			t.Errorf("%s has begun anew: %s, was %s", name, got.count, before.count)
		}
		// Its own authority is below the root that the process trusts.
		if got.shared != "200/hello" {
			t.Errorf("what forks inherit, from %s: %s", name, got.shared)
		}
		if name == "parent" {
			if got.own != "200/hello" || got.kept != "200/hello" {
				t.Errorf("the parent does not go on: %+v", got)
			}
			continue
		}
		if !strings.HasPrefix(got.own, "403/") && !strings.HasPrefix(got.own, "failed:") {
			t.Errorf("what is the parent's own, from %s: %s", name, got.own)
		}
		if i.Lineage == nil || i.Lineage.Name != "parent" || i.Lineage.Root != r.info("parent").ID {
			t.Errorf("lineage of %s: %+v", name, i.Lineage)
		}
		if states := r.states(name); !slices.Equal(states, []string{"created", "started"}) {
			t.Errorf("events of %s: %v", name, states)
		}
	}
	for _, name := range []string{"one", "parent"} {
		if out := r.inside(name, "hostname -I; cat /etc/hostname").stdout; !strings.Contains(out, r.info(name).Address.String()) || !strings.Contains(out, name) {
			t.Errorf("a command in %s says %q", name, out)
		}
	}
	// docs/sandboxes/snapshots.md says so.
	if len(addresses) != 4 || len(random) != 4 || len(pseudo) != 1 {
		t.Errorf("addresses %v, of the kernel's random numbers %v, of a generator of the process's own %v", addresses, random, pseudo)
	}
	if out := r.ok("audit", "query", "--sandbox", "one", "-o", "json"); !strings.Contains(out, `"sallyport.fork":"true"`) {
		t.Errorf("the events of a fork do not say so: %.500s", out)
	}

	// A snapshot, and back, through a restart of the daemon.
	r.ok("sandbox", "snapshot", "one", "s", "--memory")
	kept := r.info("one")
	must.OK(t, os.WriteFile(r.memory("one", "later"), nil, 0o600))
	if left := r.inClear(before.token); len(left) > 0 {
		t.Errorf("memory in the clear: %v", left)
	}
	r.kill(9)
	r.up()
	r.ok("sandbox", "restore", "one", "s")
	if _, err := os.Stat(r.memory("one", "later")); err == nil {
		t.Error("what came after the snapshot is there after the restore")
	}
	if got, i := r.ask("one"), r.info("one"); got.token != before.token || i.State != sandbox.Running || i.Session == kept.Session || got.shared != "200/hello" {
		t.Errorf("restored: %+v, %+v", got, i)
	} else {
		t.Logf("restored: %+v", got)
	}
	if out := r.ok("sandbox", "snapshots", "one"); !strings.Contains(out, "before-") {
		t.Errorf("snapshots: %s", out)
	}
	r.ok("sandbox", "fork", "one", "--snapshot", "s", "four")
	if got := r.ask("four"); got.token != before.token || got.hostname != "four" {
		t.Errorf("of the snapshot: %+v", got)
	}
	for _, name := range []string{"one", "two", "three", "four", "parent"} {
		r.ok("sandbox", "rm", name)
	}
}

// inClear lists files of the daemon's that hold a text, but for the sandboxes' own.
func (r *rig) inClear(text string) (found []string) {
	r.t.Helper()
	for _, dir := range []string{"data/sandboxes/one/snapshots", "run/sleep"} {
		_ = filepath.Walk(filepath.Join(r.dir, dir), func(path string, info os.FileInfo, err error) error {
			if err == nil && info.Mode().IsRegular() {
				if b, _ := os.ReadFile(path); strings.Contains(string(b), text) {
					found = append(found, path)
				}
			}
			return nil
		})
	}
	return found
}
