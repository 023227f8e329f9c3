package e2e

import (
	"archive/tar"
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// holder is a process that goes on: it keeps a connection to the upstream open,
// fetches over it again and again, and holds canaries that are in its memory
// and nowhere else.
const holder = `
import base64, http.client, time
def plain(hidden): return bytes(b ^ 0x5a for b in bytes.fromhex(hidden))
held = [plain("%x") + b"%%d" %% i for i in range(64)]
coded = [base64.b64encode(b"%%d" %% i + plain("%x")) for i in range(64)]
c = http.client.HTTPSConnection("api.example.test")
first = None
while True:
    c.request("GET", "/held")
    answer = c.getresponse().read()
    first = first or c.sock
    ok = b'"saw_key":true' in answer and c.sock is first
    with open("/memory/held", "w") as f: f.write("ok" if ok else "no")
    time.sleep(0.5)
`

// Everything that proc(5) says inside of every process but this one: a line
// with kind, PID and length, then that many bytes.
const procReader = `
import os, sys
out = sys.stdout.buffer
def put(kind, pid, data): out.write(b"%s %d %d\n" % (kind, pid, len(data)) + data)
for pid in sorted(int(p) for p in os.listdir("/proc") if p.isdigit()):
    if pid == os.getpid(): continue
    for kind in ("environ", "cmdline"):
        try: put(kind.encode(), pid, open("/proc/%d/%s" % (pid, kind), "rb").read())
        except OSError as e: put(b"failed", pid, str(e).encode())
    try:
        mem = open("/proc/%d/mem" % pid, "rb", 0)
        for line in open("/proc/%d/maps" % pid):
            f = line.split()
            if f[1][0] != "r": continue
            at, end = (int(x, 16) for x in f[0].split("-"))
            try:
                mem.seek(at)
                while at < end:
                    data = mem.read(min(end - at, 1 << 20))
                    if not data: break
                    put(b"mem", pid, data)
                    at += len(data)
            except (OSError, OverflowError, ValueError): pass
    except OSError as e: put(b"failed", pid, str(e).encode())
`

// A secret never enters a sandbox: not its memory, disk, environment or checkpoint; and it is
// in no log, no metric and nowhere on the host's disk in the clear. A text put there on
// purpose is found in each of these places.
func TestNoSecretInside(t *testing.T) {
	r := newRig(t, "")
	// With what base64, hexadecimal and URL encoding spell differently.
	r.key = "sk+e2e/" + rand.Text() + "/%=&~+=="
	r.serve()
	r.up()
	r.setKey()

	values := map[string]string{"the secret": r.key}
	for _, name := range []string{"on disk", "packed", "remembered", "in the spec", "in an environment", "in a command line", "held", "held coded", "in a path"} {
		values[name] = "canary-" + rand.Text()
	}
	// The rest of a request beside its path is in no record.
	unrecorded := []string{"a query value", "a header", "a cookie", "a body", "userinfo", "a query value refused", "a body refused"}
	for _, name := range unrecorded {
		values[name] = "canary-" + rand.Text()
	}
	h := newHunt(values)
	// The real clients, each once; then what goes on meanwhile.
	r.ok("sandbox", "create", "agent", "-e", "CANARY="+values["in the spec"], "--workdir", "/"+values["in the spec"])
	r.install("client", filepath.Join(tools.Dir, "client"))
	saw := `"saw_key":true,"key_sha256":"` + r.keyID() + `"`
	for _, c := range []struct{ shell, want string }{
		{"curl -sS https://api.example.test/v1/" + values["in a path"], saw},
		{"wget -qO- https://api.example.test/v1/models", saw},
		{"git clone -q https://git.example.test/repo.git /root/r && git -C /root/r log --format=%s", "first"},
		{`python3 -c 'import urllib.request as u; print(u.urlopen("https://api.example.test/v1/models").read().decode())'`, saw},
		{"client https://api.example.test/v1/models", saw},
	} {
		if res := r.inside("agent", c.shell); res.code != 0 || !strings.Contains(res.stdout, c.want) {
			t.Fatalf("%s: got %s, want %q", c.shell, res, c.want)
		}
	}
	for _, shell := range []string{
		fmt.Sprintf("curl -sS -H 'X-Canary: %s' -b 'canary=%s' -d '%s' 'https://user:%s@api.example.test/v1/recorded?canary=%s'",
			values["a header"], values["a cookie"], values["a body"], values["userinfo"], values["a query value"]),
		fmt.Sprintf("curl -sS -d '%s' 'http://denied.example.test/recorded?canary=%s'", values["a body refused"], values["a query value refused"]),
	} {
		if res := r.inside("agent", shell); res.code != 0 {
			t.Fatal(res)
		}
	}
	script := fmt.Sprintf(holder, hidden(values["held"]), hidden(values["held coded"]))
	if res := r.feed(script, "run", "agent", "--", "sh", "-c", "cat > /root/hold.py; setsid python3 /root/hold.py </dev/null >/dev/null 2>&1 &"); res.code != 0 {
		t.Fatal(res)
	}
	memory := filepath.Join(r.dir, "data/sandboxes/agent/memory")
	r.await("the connection that stays", func() bool {
		said, _ := os.ReadFile(filepath.Join(memory, "held"))
		return string(said) == "ok"
	})
	for _, shell := range []string{
		"echo " + values["on disk"] + " > /root/canary; printf x" + values["on disk"] + " | base64 -w0 > /var/tmp/canary64",
		"echo " + values["packed"] + " > /root/r/canary && cd /root/r && git add canary && rm canary",
		"echo " + values["remembered"] + " > /memory/memories.md",
		"CANARY=" + values["in an environment"] + " setsid sleep 1000 </dev/null >/dev/null 2>&1 &",
		"setsid python3 -c 'import time; time.sleep(1000)' " + values["in a command line"] + " </dev/null >/dev/null 2>&1 &",
	} {
		if res := r.inside("agent", shell); res.code != 0 {
			t.Fatal(res)
		}
	}
	id, err := r.docker("inspect", "--format", "{{.Id}}", r.container("agent")).Output()
	must.OK(t, err)
	container := strings.TrimSpace(string(id))
	r.must(r.docker("checkpoint", "create", "--leave-running", container, "proof"))

	type sign struct{ value, form string }
	for _, place := range []struct {
		name   string
		search func(*testing.T, *quarry)
		signs  []sign // what the search finds if it works
	}{
		{"file system as exported", func(t *testing.T, q *quarry) { r.exported(t, q, container) },
			[]sign{{"on disk", "raw"}, {"on disk", "base64+1"}, {"packed", "raw"}}},
		{"container as inspected", func(t *testing.T, q *quarry) {
			out, err := r.docker("inspect", container).Output()
			must.OK(t, err)
			_ = q.read("inspect", strings.NewReader(string(out)))
		}, []sign{{"in the spec", "raw"}}},
		{"environments inside", func(t *testing.T, q *quarry) { r.procs(t, q, container, "environ") },
			[]sign{{"in the spec", "raw"}, {"in an environment", "raw"}}},
		{"command lines inside", func(t *testing.T, q *quarry) { r.procs(t, q, container, "cmdline") },
			[]sign{{"in a command line", "raw"}}},
		{"memory of each process inside", func(t *testing.T, q *quarry) { r.procs(t, q, container, "mem") },
			[]sign{{"held", "raw"}, {"held coded", "base64+1"}, {"in an environment", "raw"}, {"in a command line", "raw"}}},
		{"memory checkpoint", func(t *testing.T, q *quarry) {
			q.tree(t, filepath.Join(r.dir, "data/engine/docker/containers", container, "checkpoints/proof"))
		}, []sign{{"held", "raw"}, {"held coded", "base64+1"}, {"in an environment", "raw"}, {"in a command line", "raw"}, {"in the spec", "raw"}}},
		{"memory of gVisor's own processes", func(t *testing.T, q *quarry) { r.sentry(t, q, container) },
			[]sign{{"held", "raw"}, {"in an environment", "raw"}}},
		{"agent's memory folder", func(t *testing.T, q *quarry) { q.tree(t, memory) }, []sign{{"remembered", "raw"}}},
		{"audit log", func(t *testing.T, q *quarry) { q.tree(t, filepath.Join(r.dir, "data/audit")) }, []sign{{"in a path", "raw"}}},
		{"data directory", func(t *testing.T, q *quarry) { q.tree(t, filepath.Join(r.dir, "data")) },
			[]sign{{"on disk", "raw"}, {"on disk", "base64+1"}, {"packed", "raw"}, {"remembered", "raw"}, {"in the spec", "raw"}, {"in a path", "raw"}, {"held", "raw"}}},
		{"run-time directory", func(t *testing.T, q *quarry) { q.tree(t, filepath.Join(r.dir, "run")) }, []sign{{"in the spec", "raw"}}},
	} {
		t.Run(place.name, func(t *testing.T) {
			defer r.within(t)()
			q := h.begin()
			began := time.Now()
			place.search(t, q)
			t.Logf("searched %d streams, %.1f MB in %.1f s", q.streams, float64(q.bytes)/1e6, time.Since(began).Seconds())
			for _, s := range place.signs {
				if len(q.has(s.value, s.form)) == 0 {
					t.Errorf("the canary %s was not found as %s: the search proves nothing", s.value, s.form)
				}
			}
			absent := []string{"the secret"}
			if place.name == "audit log" {
				absent = append(absent, unrecorded...)
			}
			for _, value := range absent {
				if found := q.of(value); len(found) > 0 {
					t.Errorf("found %s: %s", value, strings.Join(found, "\n"))
				}
			}
		})
	}
	t.Run("what is said", func(t *testing.T) { r.said(t, h, "/held", append(unrecorded, "the secret")) })
	t.Run("index of the audit log", func(t *testing.T) {
		if got := r.ok("audit", "query", "--text", values["in a path"]); !strings.Contains(got, values["in a path"]) {
			t.Errorf("the canary in a path was not found: the search proves nothing: %s", got)
		}
		for _, value := range unrecorded {
			if got := r.ok("audit", "query", "--text", values[value]); got != "" {
				t.Errorf("%s finds %s", value, got)
			}
		}
	})
	t.Run("where it belongs", func(t *testing.T) {
		defer r.within(t)()
		// The daemon has it in its memory, and the same search finds it there.
		q := h.begin()
		must.OK(t, q.memory(r.daemon.PID()))
		t.Logf("searched %d mappings, %.1f MB", q.streams, float64(q.bytes)/1e6)
		if len(q.has("the secret", "raw")) == 0 {
			t.Error("the secret was not found in the daemon's memory: the search proves nothing")
		}
	})
}

// hidden is a text that the holder undoes.
func hidden(value string) []byte {
	b := []byte(value)
	for i := range b {
		b[i] ^= 0x5a
	}
	return b
}

// install puts a program of the host's into the sandbox.
func (r *rig) install(name, path string) {
	r.t.Helper()
	program, err := os.ReadFile(path)
	must.OK(r.t, err)
	at := "/usr/local/bin/" + name
	if res := r.feed(string(program), "run", "agent", "--", "sh", "-c", "cat > "+at+" && chmod +x "+at); res.code != 0 {
		r.t.Fatal(res)
	}
}

// exported searches what `docker export` gives.
func (r *rig) exported(t *testing.T, q *quarry, container string) {
	t.Helper()
	c := r.docker("export", container)
	pipe, err := c.StdoutPipe()
	must.OK(t, err)
	must.OK(t, c.Start())
	archive := tar.NewReader(pipe)
	for {
		head, err := archive.Next()
		if err == io.EOF {
			break
		}
		must.OK(t, err)
		_ = q.read("the head of "+head.Name, strings.NewReader(fmt.Sprintf("%+v", *head)))
		must.OK(t, q.read(head.Name, archive))
	}
	must.OK(t, c.Wait())
}

// procs searches one kind of what procReader tells.
func (r *rig) procs(t *testing.T, q *quarry, container, kind string) {
	t.Helper()
	// Privileged, for CAP_SYS_PTRACE.
	c := r.docker("exec", "-i", "--privileged", container, "python3", "-")
	c.Stdin = strings.NewReader(procReader)
	var errs strings.Builder
	c.Stderr = &errs
	pipe, err := c.StdoutPipe()
	must.OK(t, err)
	must.OK(t, c.Start())
	pids := map[int]bool{}
	in := bufio.NewReaderSize(pipe, 1<<20)
	for {
		line, err := in.ReadString('\n')
		if err == io.EOF {
			break
		}
		var got string
		var pid int
		var size int64
		if _, err := fmt.Sscanf(line, "%s %d %d\n", &got, &pid, &size); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		part := io.LimitReader(in, size)
		if got == kind {
			pids[pid] = true
			must.OK(t, q.read(fmt.Sprintf("%s of %d", kind, pid), part))
		}
		if got == "failed" {
			why, _ := io.ReadAll(part)
			t.Logf("process %d: %s", pid, why)
		}
		_, _ = io.Copy(io.Discard, part)
	}
	if err := c.Wait(); err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	t.Logf("%d processes", len(pids))
}

// sentry searches the memory of the host's processes that are the sandbox:
// gVisor's kernel with its network stack, and its keeper of files.
func (r *rig) sentry(t *testing.T, q *quarry, container string) {
	t.Helper()
	n := 0
	for _, p := range processes() {
		name, _, _ := strings.Cut(p.cmdline, "\x00")
		if !strings.HasPrefix(filepath.Base(name), "runsc") || !strings.Contains(p.cmdline, container) {
			continue
		}
		if err := q.memory(p.pid); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		n++
	}
	t.Logf("%d processes", n)
	if n == 0 {
		t.Error("there is none")
	}
}

// said searches what the daemon and the engine say, each with a word of its own
// that shows that the right thing was searched; path is one that was requested.
func (r *rig) said(t *testing.T, h *hunt, path string, absent []string) {
	resp, err := http.Get("http://127.0.0.1:9464/metrics")
	must.OK(t, err)
	defer resp.Body.Close()
	metrics, err := io.ReadAll(resp.Body)
	must.OK(t, err)
	logged, err := os.ReadFile(filepath.Join(r.dir, "daemon.log"))
	must.OK(t, err)
	all := map[string][2]string{
		"metrics":     {string(metrics), "sallyport_"},
		"daemon log":  {string(logged), "sallyport is up"},
		"audit tail":  {r.ok("audit", "tail", "-n", "1000"), path},
		"audit query": {r.ok("audit", "query", "-o", "json"), path},
		"status":      {r.ok("status", "-o", "json"), "version"},
		"sandbox ls":  {r.ok("sandbox", "ls", "-o", "json"), "agent"},
		"secret ls":   {r.ok("secret", "ls", "-o", "json"), `"name"`},
		"doctor":      {r.sallyport("doctor").stdout, "runsc"},
	}
	logs, err := filepath.Glob(filepath.Join(r.dir, "data/logs/*"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no logs of the engine: %v", err)
	}
	for _, path := range logs {
		text, err := os.ReadFile(path)
		must.OK(t, err)
		all["engine's "+filepath.Base(path)] = [2]string{string(text), "level"}
	}
	for name, text := range all {
		if !strings.Contains(text[0], text[1]) {
			t.Errorf("%s: %d bytes without %q: the wrong thing was searched", name, len(text[0]), text[1])
		}
		q := h.begin()
		_ = q.read(name, strings.NewReader(text[0]))
		t.Logf("%s: %d bytes", name, len(text[0]))
		for _, value := range absent {
			if found := q.of(value); len(found) > 0 {
				t.Errorf("%s: %s: %s", name, value, found)
			}
		}
	}
}
