package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// pooled makes the rig's daemon keep a pool.
func (r *rig) pooled(size int) {
	r.configure(strings.Replace(baseConfig, "sandbox: {", fmt.Sprintf("sandbox: {pool: {size: %d}, ", size), 1), ruleConfig)
}

// containers counts those of the private engine that run.
func (r *rig) containers() int {
	r.t.Helper()
	out, err := exec.Command("docker", "-H", "unix://"+filepath.Join(r.dir, "run/engine/docker.sock"), "ps", "-q").Output()
	must.OK(r.t, err)
	return len(strings.Fields(string(out)))
}

// settled waits until so many containers run, those of the pool included.
func (r *rig) settled(n int) {
	r.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); r.containers() != n; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			all, _ := exec.Command("docker", "-H", "unix://"+filepath.Join(r.dir, "run/engine/docker.sock"), "ps", "-a").CombinedOutput()
			r.t.Fatalf("%d containers: not within three minutes, but\n%s\nof\n%s\n%s", n, all, r.sallyport("sandbox", "ls").stdout, r.logged())
		}
	}
	time.Sleep(300 * time.Millisecond) // until the manager has noted it
}

// taken makes a sandbox from the pool, which alone runs at once. The manager may note
// one that runs later than the engine says so: then another is made.
func (r *rig) taken(name string, args ...string) {
	r.t.Helper()
	r.await("a sandbox from the pool", func() bool {
		r.ok(append([]string{"sandbox", "create", name}, args...)...)
		if r.sandbox(name).State == sandbox.Running {
			return true
		}
		r.ok("sandbox", "rm", name)
		return false
	})
}

// waiting are the IDs of those in the pool, and of those that are removed from it.
func (r *rig) waiting() (ids []string) {
	folders, _ := os.ReadDir(filepath.Join(r.dir, "data/sandboxes/.pool"))
	for _, f := range folders {
		ids = append(ids, f.Name())
	}
	return ids
}

func (r *rig) sandbox(name string) (i sandbox.Info) {
	r.t.Helper()
	must.OK(r.t, json.Unmarshal([]byte(r.ok("sandbox", "get", name, "-o", "json")), &i))
	return i
}

// A sandbox from the pool is a sandbox as any other, through a stop, a change of
// its limits, a kill of the daemon and its end.
func TestPool(t *testing.T) {
	r := newRig(t, "")
	r.pooled(1)
	r.serve()
	r.up()
	r.setKey()
	r.settled(1)
	if list := r.ok("sandbox", "ls", "-o", "json"); strings.TrimSpace(list) != "[]" {
		t.Errorf("listed: %s", list)
	}
	r.taken("quick", "-e", "COLOUR=blue", "--user", "nobody", "--label", "a=b")
	works := func() {
		t.Helper()
		res := r.sallyport("sandbox", "exec", "quick", "--", "sh", "-c", "echo $COLOUR; id -un; hostname; curl -sS https://api.example.test/v1/models")
		if res.code != 0 || !strings.HasPrefix(res.stdout, "blue\nnobody\nsandbox\n") || !strings.Contains(res.stdout, `"saw_key":true`) {
			t.Fatalf("%s\n%s", res, r.logged())
		}
	}
	works()
	r.ok("sandbox", "exec", "quick", "-u", "root", "--", "sh", "-c", "echo kept > /root/f && echo kept > /memory/f")
	kept := func() {
		t.Helper()
		if out := r.ok("sandbox", "exec", "quick", "-u", "root", "--", "sh", "-c", "cat /root/f /memory/f; nproc"); !strings.HasPrefix(out, "kept\nkept\n") {
			t.Fatalf("got %q", out)
		}
		if b, err := os.ReadFile(filepath.Join(r.dir, "data/sandboxes/quick/memory/f")); err != nil || string(b) != "kept\n" {
			t.Fatalf("its memory on the host: %q, %v", b, err)
		}
	}
	kept()
	r.ok("sandbox", "hibernate", "quick")
	works()
	r.ok("sandbox", "snapshot", "quick", "then", "--memory")
	r.ok("sandbox", "exec", "quick", "-u", "root", "--", "sh", "-c", "rm /root/f; echo other > /memory/f")
	if out := r.ok("sandbox", "changes", "quick", "then"); !strings.Contains(out, "/root/f") || !strings.Contains(out, "/memory/f") {
		t.Errorf("its changes: %s", out)
	}
	r.ok("sandbox", "restore", "quick", "then")
	works()
	kept()
	r.ok("sandbox", "fork", "quick", "child")
	if out := r.ok("sandbox", "exec", "child", "-u", "root", "--", "cat", "/root/f", "/memory/f"); out != "kept\nkept\n" {
		t.Errorf("in its fork: %q", out)
	}
	r.ok("sandbox", "rm", "child")
	r.ok("sandbox", "stop", "quick")
	works()
	kept()

	if out := r.ok("sandbox", "set", "quick", "--memory", "1GiB", "--pids", "500", "--tag", "team=x"); !strings.Contains(out, "--restart") {
		t.Errorf("set says %q", out)
	}
	if i := r.sandbox("quick"); i.Next == nil || i.Next.Memory != 1<<30 || i.Spec.Tags["team"] != "x" {
		t.Errorf("got %+v", i)
	}
	r.ok("sandbox", "set", "quick", "--restart")
	works()
	kept()
	limits, err := exec.Command("docker", "-H", "unix://"+filepath.Join(r.dir, "run/engine/docker.sock"), "inspect", "-f", "{{.State.Running}} {{.HostConfig.Memory}} {{.HostConfig.PidsLimit}}", "sallyport-"+r.sandbox("quick").ID).CombinedOutput()
	if got := strings.TrimSpace(string(limits)); err != nil || got != "true 1073741824 500" {
		t.Errorf("its container: %s, %v", got, err)
	}
	if m, err := os.ReadFile(filepath.Join(r.dir, "data/sandboxes/quick/record.json")); err != nil || strings.Contains(string(m), `"next"`) {
		t.Errorf("something waits: %s, %v", m, err)
	}

	// Without a network nothing answers, and commands work as ever.
	r.ok("sandbox", "set", "quick", "--offline", "--restart")
	if res := r.sallyport("sandbox", "exec", "quick", "--", "curl", "-sS", "-m", "3", "https://api.example.test/v1/models"); res.code == 0 {
		t.Errorf("offline: %s", res)
	}
	if res := r.sallyport("sandbox", "exec", "quick", "--", "curl", "-sS", "-m", "3", "http://198.51.100.10/"); res.code == 0 {
		t.Errorf("offline: %s", res)
	}
	kept()
	r.ok("sandbox", "set", "quick", "--offline=false", "--restart")
	works()

	// A killed daemon's pool is gone with the next one's, and that one's is full.
	r.settled(2)
	before := r.waiting()
	r.kill(syscall.SIGKILL)
	r.up()
	works()
	kept()
	r.await("the pool is the new daemon's", func() bool {
		return !slices.ContainsFunc(before, func(id string) bool { return slices.Contains(r.waiting(), id) })
	})
	r.settled(2)
	r.taken("brief", "--ephemeral")
	r.settled(3)
	r.ok("sandbox", "stop", "brief")
	if res := r.sallyport("sandbox", "get", "brief"); res.code == 0 {
		t.Errorf("an ephemeral sandbox that was stopped: %s", res)
	}
	// The host's own way into a sandbox ends before the sandbox's cable is cut.
	if out := r.ok("audit", "query", "--kind", "drop"); strings.Contains(out, "> "+r.sandbox("quick").Address.String()+":1023") {
		t.Errorf("packets of the host's own were dropped:\n%s", out)
	}
	r.ok("sandbox", "rm", "quick")
	r.settled(1)
	must.OK(t, r.daemon.Down())
	for _, glob := range []string{"data/sandboxes/.pool/*", "data/sandboxes/.by-id/*", "data/sandboxes/quick"} {
		if left, _ := filepath.Glob(filepath.Join(r.dir, glob)); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}
