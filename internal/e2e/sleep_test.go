package e2e

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// memory is a file in a sandbox's /memory.
func (r *rig) memory(name, file string) string {
	return filepath.Join(r.dir, "data/sandboxes", name, "memory", file)
}

// begin starts a shell script in a sandbox, which lives on.
func (r *rig) begin(name, script string) {
	r.t.Helper()
	r.ok("sandbox", "create", name)
	r.ok("sandbox", "exec", "-d", name, "--", "sh", "-c", script)
}

func (r *rig) info(name string) sandbox.Info {
	r.t.Helper()
	var i sandbox.Info
	must.OK(r.t, json.Unmarshal([]byte(r.ok("sandbox", "get", name, "-o", "json")), &i))
	return i
}

// control is a client of the daemon, for what is measured.
func (r *rig) control() *client.Client {
	return client.Unix(filepath.Join(r.dir, "run", "sallyport.sock"))
}

// states are the recorded changes of a sandbox's.
func (r *rig) states(name string) (list []string) {
	r.t.Helper()
	for line := range strings.Lines(r.ok("audit", "query", "--kind", "lifecycle", "-o", "json", "--sandbox", name)) {
		var rec auditlog.Record
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			r.t.Fatalf("%v: %s", err, line)
		}
		if x := rec.Decision.Unmapped.Sallyport; x.State != sandbox.CommandEvent && x.Memory == nil {
			list = append(list, x.State)
		}
	}
	return list
}

const writer = `needle=$(printf 'needle-%s' "$(echo UNYQRSZQV | tr A-Z N-ZA-M)")
i=0
while :; do i=$((i+1)); echo $$ $i >>/memory/lines; echo $i >>/root/lines; sleep 0.02; done
`

// needle is what writer has in its memory, and nobody has written down.
const needle = "needle-HALDEFMDI"

// written checks that one process wrote all numbers up to the last, into both
// files.
func (r *rig) written(name string) (n int) {
	r.t.Helper()
	text, err := os.ReadFile(r.memory(name, "lines"))
	must.OK(r.t, err)
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	pid := ""
	for line := range strings.Lines(string(whole)) {
		f := strings.Fields(line)
		n++
		if len(f) != 2 || f[1] != strconv.Itoa(n) || pid != "" && f[0] != pid {
			r.t.Fatalf("line %d is %q, of process %s before", n, line, pid)
		}
		pid = f[0]
	}
	return n
}

// more waits until a sandbox's process has written on.
func (r *rig) more(name string) {
	r.t.Helper()
	n := 0
	if _, err := os.Stat(r.memory(name, "lines")); err == nil {
		n = r.written(name)
	}
	r.await("more lines of "+name, func() bool {
		_, err := os.Stat(r.memory(name, "lines"))
		return err == nil && r.written(name) > n+2
	})
}

// TestSleep: a process writes, and its sandbox sleeps.
func TestSleep(t *testing.T) {
	r := newRig(t, "")
	r.up()
	r.begin("agent", writer)
	r.more("agent")
	for _, p := range []part{{"cycles", testSleepCycles}, {"hibernated through restarts", testHibernatedThroughRestarts}} {
		t.Run(p.name, func(t *testing.T) { p.test(t, r.in(t)) })
	}
}

// testSleepCycles: a process that writes loses no line and stays the same, and its
// memory is in the clear nowhere.
func testSleepCycles(t *testing.T, r *rig) {
	c, ctx := r.control(), t.Context()
	before := r.info("agent")
	cycles := soak(10, 50)
	var hibernate, wake, pause, resume []time.Duration
	timed := func(list *[]time.Duration, f func(context.Context, string) (sandbox.Info, error), want sandbox.State) {
		t.Helper()
		began := time.Now()
		i, err := f(ctx, "agent")
		*list = append(*list, time.Since(began))
		if err != nil || i.State != want || i.Session != before.Session || i.Lost != "" {
			t.Fatalf("%+v, %v, want %s\n%s", i, err, want, r.logged())
		}
	}
	for i := range cycles {
		if i%5 == 4 {
			timed(&pause, c.Pause, sandbox.Paused)
			if i%10 == 9 { // from one sleep into the other
				timed(&hibernate, c.Hibernate, sandbox.Hibernated)
				timed(&wake, c.Wake, sandbox.Running)
			} else {
				timed(&resume, c.Resume, sandbox.Running)
			}
		}
		timed(&hibernate, c.Hibernate, sandbox.Hibernated)
		if i == 0 {
			if left := r.needles(t); len(left) > 0 {
				t.Errorf("memory in the clear: %v", left)
			}
			r.await("the end of its last process", func() bool {
				return !slices.ContainsFunc(processes(), func(p process) bool {
					return strings.Contains(p.cmdline, "runsc") && strings.Contains(p.cmdline, r.dir)
				})
			})
		}
		timed(&wake, c.Wake, sandbox.Running)
		r.more("agent")
	}
	for name, list := range map[string][]time.Duration{"pause": pause, "resume": resume, "hibernate": hibernate, "wake": wake} {
		slices.Sort(list)
		t.Logf("%s: median %v, best %v of %d", name, list[len(list)/2], list[0], len(list))
	}
	inside := r.inside("agent", "wc -l </root/lines").stdout // of the container's own files
	if n := r.written("agent"); strings.TrimSpace(inside) == "" || n < 2*cycles {
		t.Errorf("%d lines, %s in the container", n, inside)
	}
	if i := r.info("agent"); i.Address != before.Address {
		t.Errorf("its address is %v, was %v", i.Address, before.Address)
	}
	got := map[string]int{}
	for _, s := range r.states("agent") {
		got[s]++
	}
	want := map[string]int{"created": 1, "started": 1, "hibernated": len(hibernate), "woken": len(wake), "paused": len(pause), "resumed": len(resume)}
	for s, n := range want {
		if got[s] != n {
			t.Errorf("%d events of %q, want %d", got[s], s, n)
		}
	}
}

// needles lists files of the rig's that have in the clear what a sandbox has in its
// memory.
func (r *rig) needles(t *testing.T) (found []string) {
	t.Helper()
	sealed := false
	err := filepath.WalkDir(r.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		sealed = sealed || d.Name() == "checkpoint"
		f, err := os.Open(path)
		if err != nil {
			return nil
		}
		defer f.Close()
		if contains(f, needle) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil || !sealed {
		t.Fatalf("read the sealed memory: %v, %v", sealed, err)
	}
	return found
}

// contains looks for a text in a file's data, which can be of a disk that is nearly
// all holes (lseek(2)).
func contains(f *os.File, text string) bool {
	buf := make([]byte, 1<<20)
	for at := int64(0); ; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if err != nil {
			return false // no more, or it has gone
		}
		n, err := f.ReadAt(buf, data)
		if bytes.Contains(buf[:n], []byte(text)) {
			return true
		}
		if err != nil {
			return false
		}
		at = data + int64(n-len(text))
	}
}

// testHibernatedThroughRestarts: the daemon is killed, and the host reboots.
func testHibernatedThroughRestarts(t *testing.T, r *rig) {
	session := r.info("agent").Session
	still := func() {
		t.Helper()
		if i := r.info("agent"); i.State != sandbox.Hibernated || i.Session != session {
			t.Fatalf("it is %+v, want hibernated\n%s", i, r.logged())
		}
		r.ok("run", "agent", "--", "true") // which wakes it
		if i := r.info("agent"); i.State != sandbox.Running || i.Session != session || i.Lost != "" {
			t.Fatalf("it is %+v, want running\n%s", i, r.logged())
		}
		r.more("agent")
	}
	r.ok("sandbox", "hibernate", "agent")
	r.kill(syscall.SIGKILL)
	r.up()
	still()

	r.ok("sandbox", "hibernate", "agent")
	engine := r.enginePID()
	must.OK(t, syscall.Kill(engine, syscall.SIGKILL))
	// While there is none it stays as it is, and its memory with it.
	r.await("the engine", func() bool { return r.sallyport("sandbox", "wake", "agent").code == 0 })
	if i := r.info("agent"); i.State != sandbox.Running || i.Session != session || i.Lost != "" {
		t.Fatalf("it is %+v, want running\n%s", i, r.logged())
	}
	r.more("agent")

	r.ok("sandbox", "pause", "agent")
	r.kill(syscall.SIGKILL)
	r.up()
	if i := r.info("agent"); i.State != sandbox.Paused {
		t.Errorf("it is %s, was paused", i.State)
	}
	r.ok("sandbox", "resume", "agent")
	r.more("agent")

	r.ok("sandbox", "hibernate", "agent")
	r.ok("sandbox", "create", "dozer")
	r.ok("sandbox", "start", "dozer")
	r.ok("sandbox", "pause", "dozer")
	r.reboot()
	r.up()
	still()
	if i := r.info("dozer"); i.State != sandbox.Stopped || !strings.Contains(i.Lost, "paused") {
		t.Errorf("after a reboot the paused one is %+v", i)
	}
	r.ok("sandbox", "start", "dozer")

	// Damage is said everywhere.
	r.await("the new process", func() bool {
		return r.sallyport("sandbox", "exec", "agent", "--", "pgrep", "-f", "[/]memory/lines").code == 0
	})
	r.ok("sandbox", "hibernate", "agent")
	path := filepath.Join(r.dir, "data/sandboxes/agent/checkpoint")
	text, err := os.ReadFile(path)
	must.OK(t, err)
	text[len(text)/2] ^= 1
	must.OK(t, os.WriteFile(path, text, 0o600))
	if out := r.ok("sandbox", "wake", "agent"); !strings.Contains(out, "anew from its disk") || !strings.Contains(out, "damaged") {
		t.Errorf("the answer: %s", out)
	}
	if out := r.ok("sandbox", "ls"); !strings.Contains(out, "memory lost") {
		t.Errorf("the listing: %s", out)
	}
	if out := r.ok("audit", "query", "-o", "json", "--sandbox", "agent"); !strings.Contains(out, "the sealed data is damaged") {
		t.Error("no event says so")
	}
}

// connections holds three: a kept HTTP connection, a WebSocket, and an answer that
// nobody takes off. A line of a file in /memory tells what each meets.
const connections = `cat >/tmp/c.py <<'EOF'
import base64, http.client, os, socket, ssl, threading, time
def say(who, what):
    with open("/memory/" + who, "a") as f: f.write(what + "\n")
def kept():
    c = http.client.HTTPSConnection("api.example.test", timeout=30); n = 0
    while True:
        if os.path.exists("/memory/ask-%d" % n):
            try:
                c.request("GET", "/kept"); body = c.getresponse().read()
                say("kept", "%d %d %s" % (n, c.sock.getsockname()[1] if c.sock else 0, body.decode()))
            except Exception as e: say("kept", "%d failed %r" % (n, e)); c.close()
            n += 1
        time.sleep(0.02)
def dial(request):
    s = ssl.create_default_context().wrap_socket(socket.create_connection(("api.example.test", 443)), server_hostname="api.example.test")
    s.sendall(("GET " + request + " HTTP/1.1\r\nHost: api.example.test\r\n").encode())
    return s
def web():
    while True:
        s = dial("/ws"); s.sendall(b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n")
        f = s.makefile("rb")
        while f.readline() not in (b"\r\n", b""): pass
        say("web", "open %d" % s.getsockname()[1])
        try:
            while True:
                h = f.read(2)
                if len(h) < 2: raise EOFError("it ended")
                say("web", f.read(h[1]).decode())
        except Exception as e: say("web", "over %r" % e)
        time.sleep(0.2)
def bulk():
    s = dial("/bulk"); s.sendall(b"\r\n"); s.recv(1); say("bulk", "begun")
    while not os.path.exists("/memory/drain"): time.sleep(0.02)
    try:
        while s.recv(1 << 20): pass
        say("bulk", "over")
    except Exception as e: say("bulk", "over %r" % e)
for f in (kept, web, bulk): threading.Thread(target=f).start()
EOF
exec python3 /tmp/c.py
`

// busy is what a second takes where the processors are shared with other tests.
const busy = 15 * time.Second

// TestConnectionsOverSleep: a kept connection and a WebSocket go on, what was in the
// middle is reset, and nothing hangs, also where the gateway began anew.
func TestConnectionsOverSleep(t *testing.T) {
	r := newRig(t, "")
	say := make(chan string, 10)
	r.api = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/kept":
			io.WriteString(w, "hello")
		case "/bulk":
			for q.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		case "/ws":
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			sum := sha1.Sum([]byte(q.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
			fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
			_ = rw.Flush()
			gone := make(chan struct{})
			go func() { defer close(gone); _, _ = io.Copy(io.Discard, c) }()
			for {
				select {
				case text := <-say:
					_, _ = rw.Write(append([]byte{0x81, byte(len(text))}, text...))
					if rw.Flush() != nil {
						return
					}
				case <-gone:
					return
				}
			}
		}
	})
	r.serve()
	r.up()
	r.setKey()
	r.begin("agent", connections)
	lines := func(file string) []string {
		text, _ := os.ReadFile(r.memory("agent", file))
		return strings.FieldsFunc(string(text), func(c rune) bool { return c == '\n' })
	}
	within := func(what, file string, n int, bound time.Duration) string {
		t.Helper()
		began := time.Now()
		for deadline := began.Add(max(bound, time.Minute)); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if l := lines(file); len(l) >= n {
				if took := time.Since(began); bound > 0 {
					t.Logf("%s: %q after %v", what, l[n-1], took.Round(time.Millisecond))
					if took > bound {
						t.Errorf("%s took %v, want %v at most", what, took, bound)
					}
				}
				return l[n-1]
			}
		}
		t.Fatalf("%s: %s has %q\n%s\n%s", what, file, lines(file), r.inside("agent", "cat /tmp/start.log").stdout, r.logged())
		return ""
	}
	asked := 0
	port := ""
	ask := func(what string) {
		t.Helper()
		r.must2(os.WriteFile(r.memory("agent", fmt.Sprint("ask-", asked)), nil, 0o600))
		asked++
		got := strings.Fields(within(what, "kept", asked, 0))
		if len(got) != 3 || got[2] != "hello" || port != "" && got[1] != port {
			t.Errorf("%s: %q, want hello on port %s", what, got, port)
		}
		port = got[1]
	}
	ask("before")
	opened := within("the WebSocket", "web", 1, 0)
	within("the bulk", "bulk", 1, 0)
	time.Sleep(500 * time.Millisecond) // its window fills
	heard := 1
	hear := func(text string) {
		t.Helper()
		heard++
		if got := within("a message", "web", heard, busy); got != text {
			t.Fatalf("the WebSocket that began with %q: %q, want %q\n%s", opened, got, text, r.ok("audit", "tail", "-n", "12"))
		}
	}
	say <- "one"
	hear("one")

	for i, lull := range []string{"hibernate", "pause", "hibernate"} {
		r.ok("sandbox", lull, "agent")
		say <- "while it sleeps"
		time.Sleep(time.Second)
		// The disk of one that hibernates is nobody's.
		if got := len(lines("web")); lull == "pause" && got != heard {
			t.Errorf("a sandbox that sleeps has read %q", lines("web"))
		}
		r.ok("sandbox", "wake", "agent")
		hear("while it sleeps")
		say <- "after it"
		hear("after it")
		ask("after " + lull)
		if i == 0 {
			r.must2(os.WriteFile(r.memory("agent", "drain"), nil, 0o600))
			if got := within("what was in the middle", "bulk", 2, busy); !strings.HasPrefix(got, "over") {
				t.Errorf("what was in the middle: %q, want its end", got)
			}
		}
	}

	// The gateway that held them is gone: they are reset, and opened again.
	for name, restart := range map[string]func(){
		"the daemon": func() { r.kill(syscall.SIGKILL); r.up() },
		"the gateway's process": func() {
			pid := r.gatewayPID()
			_ = syscall.Kill(pid, syscall.SIGKILL)
			r.await("the next", func() bool { p := r.gatewayPID(); return p != 0 && p != pid })
		},
	} {
		r.ok("sandbox", "hibernate", "agent")
		restart()
		r.ok("sandbox", "wake", "agent")
		heard++
		if got := within("the WebSocket after a restart of "+name, "web", heard, busy); !strings.HasPrefix(got, "over") {
			t.Errorf("the WebSocket that nobody holds: %q", got)
		}
		heard++
		opened = within("another", "web", heard, 0)
		port = ""
		say <- "again"
		hear("again")
	}
	if strings.Contains(r.logged(), "may hang") {
		t.Errorf("connections were not looked after:\n%s", r.logged())
	}
}

// must2 is for what cannot fail.
func (r *rig) must2(err error) {
	r.t.Helper()
	must.OK(r.t, err)
}
