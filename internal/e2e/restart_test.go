package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// fetcher fetches every second and writes PID, time and outcome, so that each
// fetch after a restart can be told from those before it.
const fetcher = `import os, time, urllib.request
while True:
    began = time.time()
    try:
        body = urllib.request.urlopen("https://api.example.test/tick", timeout=20).read()
        outcome = "ok" if b'"saw_key":true' in body else "no key"
    except Exception as e:
        outcome = "failed: %s" % e
    with open("/memory/ticks", "a") as f:
        f.write("%d %.3f %s\n" % (os.getpid(), began, outcome))
    time.sleep(max(0, began + 1 - time.time()))
`

// One process fetches every second through restarts of the daemon and the end
// of the engine; it keeps its PID, and every fetch that began after a restart
// succeeds.
func TestRestarts(t *testing.T) {
	r := newRig(t, "")
	r.serve()
	r.up()
	r.setKey()
	t.Run("lookups", func(t *testing.T) { testLookupsWhileKilled(t, r.in(t)) })
	r.ok("sandbox", "rm", "agent")
	if res := r.feed(fetcher, "run", "agent", "--", "sh", "-c", "cat > /root/fetch.py"); res.code != 0 {
		t.Fatal(res)
	}
	r.ok("run", "agent", "--", "sh", "-c", "setsid python3 /root/fetch.py </dev/null >/dev/null 2>&1 &")
	r.awaitTick(time.Now())

	for i := range soak(4, 20) {
		sig := syscall.SIGTERM
		if i%2 == 1 {
			sig = syscall.SIGKILL
		}
		r.kill(sig)
		r.up()
		r.awaitTick(time.Now())
	}
	engine := r.enginePID()
	must.OK(t, syscall.Kill(engine, syscall.SIGKILL))
	// Commands go on without an engine; a sandbox cannot be made.
	r.ok("run", "agent", "--", "true")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		res := r.sallyport("run", "another", "--", "true")
		if res.code == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the engine does not come back: %s", res)
		}
	}
	if r.enginePID() == engine {
		t.Fatal("the engine was not killed")
	}
	r.awaitTick(time.Now())
	pids := map[string]bool{}
	for _, tick := range r.ticks() {
		pids[tick.pid] = true
	}
	if len(pids) != 1 {
		t.Errorf("the process had PIDs %v, want one", pids)
	}
}

type tick struct {
	pid     string
	began   time.Time
	outcome string
}

func (r *rig) ticks() (list []tick) {
	data, _ := os.ReadFile(filepath.Join(r.dir, "data/sandboxes/agent/memory/ticks"))
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if len(f) != 3 {
			continue
		}
		s, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			continue
		}
		list = append(list, tick{f[0], time.UnixMilli(int64(s * 1000)), f[2]})
	}
	return list
}

// awaitTick waits for two fetches that began after a moment and fails the test
// when one of those after it was not a success.
func (r *rig) awaitTick(after time.Time) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		n := 0
		for _, k := range r.ticks() {
			if !k.began.After(after) {
				continue
			}
			if k.outcome != "ok" {
				r.t.Fatalf("a fetch after the restart: %s\n%s", k.outcome, r.logged())
			}
			n++
		}
		if n >= 2 {
			return
		}
	}
	r.t.Fatalf("no fetch after %v\n%s", after, r.logged())
}

// enginePID is the rig's own dockerd's.
func (r *rig) enginePID() int {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, "run/engine/docker.pid"))
	must.OK(r.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	must.OK(r.t, err)
	return pid
}
