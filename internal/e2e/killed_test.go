package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// moments are those of a change at which the daemon is killed, as fractions of it:
// spread evenly where there is time, else one at random in each part of it.
func moments(t *testing.T) (at []float64) {
	n := soak(3, 10)
	dice := rand.New(rand.NewPCG(seed(t), 0))
	for i := range n {
		in := 0.5
		if n < 10 {
			in = dice.Float64()
		}
		at = append(at, (float64(i)+in)/float64(n))
	}
	return at
}

// TestKilled kills the daemon in the middle of what it does to a sandbox, in which a
// process writes.
func TestKilled(t *testing.T) {
	r := newRig(t, "")
	r.up()
	r.begin("agent", writer)
	r.more("agent")
	for _, p := range []part{{"meanwhile", testKilledMeanwhile}, {"as it wakes", testKilledAsItWakes}, {"power cut as it wakes", testPowerCutAsItWakes}} {
		t.Run(p.name, func(t *testing.T) { p.test(t, r.in(t)) })
	}
}

// testKilledMeanwhile kills the daemon at moments that are spread over a snapshot and
// a fork. The next one has the sandbox, whose process has seen nothing of it, and what
// was begun whole or not at all; the host has nothing besides, and the log one
// beginning and one end of each.
func testKilledMeanwhile(t *testing.T, r *rig) {
	for what, change := range map[string]struct {
		do   func(*client.Client, context.Context) error
		look func(i int)
	}{
		"snapshot": {
			func(c *client.Client, ctx context.Context) error {
				_, err := c.Snapshot(ctx, "agent", sandbox.SnapshotSpec{Name: "s", Memory: true})
				return err
			},
			func(i int) { r.lookAtSnapshot(i) },
		},
		"fork": {
			func(c *client.Client, ctx context.Context) error {
				_, err := c.Fork(ctx, "agent", sandbox.ForkSpec{Names: []string{"one", "two"}})
				return err
			},
			func(int) { r.lookAtForks() },
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := r.in(t)
			before := r.belongings()
			began := time.Now()
			must.OK(t, change.do(r.control(), t.Context()))
			takes := time.Since(began)
			change.look(0)
			r.clear(what + " undisturbed")
			for i, at := range moments(t) {
				after := time.Duration(at * float64(takes))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				done := make(chan error, 1)
				go func() { done <- change.do(r.control(), ctx) }()
				time.Sleep(after)
				r.kill(syscall.SIGKILL)
				err := <-done
				cancel()
				r.up()
				made := len(r.list()) > 1 || len(r.snapshots()) > 0
				t.Logf("killed %v after it began (%v undisturbed): made %v, the caller saw %v", after.Round(time.Millisecond), takes.Round(time.Millisecond), made, err)
				if err == nil && !made {
					t.Errorf("what was said to be made is gone")
				}
				change.look(i)
				r.more("agent") // in order, by one process
				if got := r.info("agent"); got.State != sandbox.Running {
					t.Errorf("the sandbox is %s: %s", got.State, got.Reason)
				}
				r.clear(fmt.Sprintf("%s killed after %v", what, after))
				r.pairs()
				diff := ""
				for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
					if diff = cmp.Diff(before, r.belongings()); diff == "" || time.Now().After(deadline) {
						break
					}
				}
				if diff != "" {
					t.Fatalf("killed after %v, the host has: -before +after\n%s\n%s", after, diff, r.logged())
				}
			}
		})
	}
}

// testKilledAsItWakes kills the daemon at moments that are spread over a wake. The engine
// lives, and says what came of it: whatever the moment, the process goes on.
func testKilledAsItWakes(t *testing.T, r *rig) {
	session := r.info("agent").Session
	r.ok("sandbox", "hibernate", "agent")
	began := time.Now()
	r.ok("sandbox", "wake", "agent")
	takes := time.Since(began)
	for _, at := range moments(t) {
		r.more("agent")
		r.ok("sandbox", "hibernate", "agent")
		after := time.Duration(at * float64(takes))
		done := make(chan result, 1)
		go func() { done <- r.sallyport("sandbox", "wake", "agent") }()
		time.Sleep(after)
		r.kill(syscall.SIGKILL)
		<-done
		r.up()
		found := r.info("agent")
		r.ok("run", "agent", "--", "true") // which wakes it
		t.Logf("killed %v after it began (%v undisturbed): it is found %s", after.Round(time.Millisecond), takes.Round(time.Millisecond), found.State)
		if got := r.info("agent"); got.State != sandbox.Running || got.Session != session || got.Lost != "" {
			t.Fatalf("killed %v after it began, it is %s, in session %s, was %s; lost: %q\n%s", after, got.State, got.Session, session, got.Lost, r.logged())
		}
	}
	r.more("agent")
}

// testPowerCutAsItWakes ends daemon, engine and sandbox once its process has gone on, before
// the engine has noted that, and takes away what was in RAM. The process's writes are ahead of
// the memory that it was woken with: that is given up, and said.
func testPowerCutAsItWakes(t *testing.T, r *rig) {
	for !r.powerCutAsItWakes() { // the engine was too quick for the test: once more, with another process
		r.ok("run", "agent", "--", "rm", "-f", "/memory/lines", "/root/lines")
		r.ok("sandbox", "exec", "-d", "agent", "--", "sh", "-c", writer)
		r.more("agent")
	}
}

// powerCutAsItWakes says whether the power was cut before the wake was done.
func (r *rig) powerCutAsItWakes() bool {
	t := r.t
	r.ok("sandbox", "hibernate", "agent")
	session := r.info("agent").Session
	size := func() int64 {
		info, err := os.Stat(r.memory("agent", "lines"))
		if err != nil {
			return 0 // its disk is not attached
		}
		return info.Size()
	}
	begun := func() bool {
		notes, _ := filepath.Glob(filepath.Join(r.dir, "run/restore/*"))
		return slices.ContainsFunc(notes, func(path string) bool {
			text, err := os.ReadFile(path)
			return err == nil && strings.Contains(string(text), "begun")
		})
	}
	engine := r.enginePID()
	done := make(chan result, 1)
	go func() { done <- r.sallyport("sandbox", "wake", "agent") }()
	for deadline := time.Now().Add(time.Minute); !begun() && len(done) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not wake")
		}
	}
	was := size()
	if err := syscall.Kill(engine, syscall.SIGSTOP); err != nil { // it hears nothing of it
		t.Fatal(err)
	}
	r.await("what it writes", func() bool { return size() > was })
	time.Sleep(100 * time.Millisecond)
	r.reboot()
	woken := (<-done).code == 0
	r.up()
	r.ok("run", "agent", "--", "true") // which wakes it
	if woken {
		return false
	}
	if i := r.info("agent"); i.Session == session || i.Lost == "" {
		t.Errorf("it goes on with memory that is behind its files: %+v", i)
		r.more("agent")
	}
	return true
}

func (r *rig) list() (names []string) {
	r.t.Helper()
	list, err := r.control().Sandboxes(context.Background())
	must.OK(r.t, err)
	for _, i := range list {
		names = append(names, i.Name)
	}
	return names
}

func (r *rig) snapshots() (names []string) {
	r.t.Helper()
	list, err := r.control().Snapshots(context.Background(), "agent")
	must.OK(r.t, err)
	for _, s := range list {
		names = append(names, s.Name)
	}
	return names
}

// lookAtSnapshot: there is a snapshot that its processes can be had from, or none.
func (r *rig) lookAtSnapshot(i int) {
	r.t.Helper()
	if len(r.snapshots()) == 0 {
		return
	}
	r.ok("sandbox", "changes", "agent", "s")
	if i%3 == 0 {
		r.ok("sandbox", "fork", "agent", "--snapshot", "s", "again")
		r.lookAt("again")
	}
}

// lookAtForks: what is there of the children goes on.
func (r *rig) lookAtForks() {
	r.t.Helper()
	for _, name := range r.list() {
		if name != "agent" {
			r.lookAt(name)
		}
	}
}

func (r *rig) lookAt(child string) {
	r.t.Helper()
	r.more(child)
	if i := r.info(child); i.State != sandbox.Running || i.Lost != "" {
		r.t.Errorf("%s is %s, lost %q", child, i.State, i.Lost)
	}
}

// clear removes all but the sandbox itself.
func (r *rig) clear(when string) {
	r.t.Helper()
	for _, name := range r.list() {
		if name != "agent" {
			r.ok("sandbox", "rm", name)
		}
	}
	for _, name := range r.snapshots() {
		r.ok("sandbox", "snapshot", "agent", name, "--remove")
	}
	if left, _ := os.ReadDir(filepath.Join(r.dir, "data/sandboxes/agent/snapshots")); len(left) > 0 {
		r.t.Errorf("%s: left of snapshots: %v", when, left)
	}
}

// belongings is what the host has of a rig's, by kind.
func (r *rig) belongings() map[string][]string {
	r.t.Helper()
	has := map[string][]string{}
	lines := func(what string, c *exec.Cmd, only string) {
		out, err := c.Output()
		if err != nil {
			r.t.Fatalf("%q: %v", c.Args, err)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, only) {
				has[what] = append(has[what], strings.TrimSpace(line))
			}
		}
		slices.Sort(has[what])
	}
	lines("containers", r.docker("ps", "-a", "--no-trunc", "--format", "{{.ID}} {{.Names}}"), "")
	lines("images", r.docker("images", "-a", "-q", "--no-trunc"), "")
	lines("volumes", r.docker("volume", "ls", "-q"), "")
	lines("links", exec.Command("ip", "-o", "link", "show", "type", "veth"), "")
	for i, l := range has["links"] {
		f := strings.Fields(l)
		has["links"][i] = f[1] // the number and the name
	}
	lines("loops", exec.Command("losetup", "--noheadings", "--list", "--output", "BACK-FILE"), r.dir)
	for kind, pattern := range map[string]string{
		"sandboxes": "data/sandboxes/*", "files": "data/sandboxes/*/*", "authorities": "data/ca/*", "names": "data/names/*", "memory": "run/sleep/*", "restores": "run/restore/*",
		"layers": "data/engine/docker/overlay2/*", "containers' folders": "data/engine/docker/containers/*",
	} {
		has[kind], _ = filepath.Glob(filepath.Join(r.dir, pattern))
	}
	// It is made with the first, and clear looks into it.
	// The versions of a memory are the sandbox's own from the first use on.
	has["files"] = slices.DeleteFunc(has["files"], func(path string) bool {
		return filepath.Base(path) == "snapshots" || slices.Contains(memory.HostFiles(), filepath.Base(path))
	})
	has["pins"], _ = filepath.Glob("/sys/fs/bpf/sallyport/*/*")
	has["mounts"] = mountsBelow(r.dir)
	slices.Sort(has["mounts"])
	for _, p := range processes() {
		if words := strings.Split(p.cmdline, "\x00"); strings.Contains(p.cmdline, r.dir) && !strings.HasSuffix(words[0], "sallyport") {
			has["processes"] = append(has["processes"], filepath.Base(words[0]))
		}
	}
	slices.Sort(has["processes"])
	return has
}

// pairs checks that the log has one beginning of all that there is, and one end
// besides of all that was.
func (r *rig) pairs() {
	r.t.Helper()
	begins, ends, there := map[string]int{}, map[string]int{}, map[string]int{}
	for line := range strings.Lines(r.ok("audit", "query", "--kind", "lifecycle", "-o", "json")) {
		var rec auditlog.Record
		must.OK(r.t, json.Unmarshal([]byte(line), &rec))
		e := rec.Decision
		x := e.Unmapped.Sallyport
		if x.SandboxID == "" {
			continue
		}
		switch x.State {
		case "created":
			begins["sandbox "+x.SandboxID]++
		case "removed":
			ends["sandbox "+x.SandboxID]++
		case "started":
			begins["session "+x.Session]++
		case "stopped":
			ends["session "+x.Session]++
		case "snapshot":
			begins["snapshots"]++
		case "snapshot removed":
			ends["snapshots"]++
		}
	}
	for _, name := range r.list() {
		i := r.info(name)
		there["sandbox "+i.ID]++
		there["session "+i.Session]++
	}
	there["snapshots"] = len(r.snapshots())
	all := maps.Clone(begins)
	maps.Copy(all, ends)
	maps.Copy(all, there)
	for of := range all {
		if begins[of]-ends[of] != there[of] || begins[of] > 1 && of != "snapshots" {
			r.t.Errorf("%s began %d times, ended %d times, and there are %d", of, begins[of], ends[of], there[of])
		}
	}
}
