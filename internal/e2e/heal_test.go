package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/model"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// ward is a rig with sandboxes in all states, each with files and with a number in
// its memory, and with one in the pool.
type ward struct {
	*rig
	*player
	n map[string]int64 // the number that each has
}

const wardPool = 1

func newWard(t *testing.T) *ward {
	t.Helper()
	w := &ward{rig: newRig(t, ""), n: map[string]int64{}}
	w.small()
	text, err := os.ReadFile(w.config)
	must.OK(t, err)
	w.write("sallyport.yaml", strings.Replace(string(text), "sandbox: {", fmt.Sprintf("sandbox: {pool: {size: %d}, ", wardPool), 1))
	w.up()
	w.player = &player{c: client.Unix(filepath.Join(w.dir, "run/sallyport.sock")), odd: map[string]int{}}
	w.filled(0)
	return w
}

// filled waits until so many containers run besides those of the pool, which is full.
func (w *ward) filled(live int) {
	w.t.Helper()
	w.settled(live + wardPool)
}

// bump adds one to a sandbox's number, which has to be what it was.
func (w *ward) bump(name string) {
	w.t.Helper()
	r := w.do(w.t.Context(), model.Op{Verb: model.Bump, Name: name})
	if w.n[name]++; r.Outcome != model.Done || r.Count != w.n[name] {
		w.t.Fatalf("%s: %d, %v, want %d: %+v\n%s", name, r.Count, r.Err, w.n[name], w.info(name), w.logged())
	}
}

// make makes a sandbox that has been used.
func (w *ward) make(names ...string) {
	w.t.Helper()
	for _, name := range names {
		if _, err := w.c.Create(w.t.Context(), name, sandbox.Spec{}); err != nil {
			w.t.Fatal(err)
		}
		w.bump(name)
		w.bump(name)
		if r := w.do(w.t.Context(), model.Op{Verb: model.WriteFile, Name: name, Arg: "of " + name}); r.Outcome != model.Done {
			w.t.Fatal(r.Err)
		}
	}
}

// whole checks that a sandbox has its files, and the number in its memory.
func (w *ward) whole(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.bump(name)
		if r := w.do(w.t.Context(), model.Op{Verb: model.ReadFile, Name: name}); r.Text != "of "+name {
			w.t.Errorf("%s has %q in its file: %v", name, r.Text, r.Err)
		}
	}
}

// engine is the processes of the private engine.
func (w *ward) engine() (pids []int) {
	w.t.Helper()
	for _, p := range processes() {
		words := strings.Split(p.cmdline, "\x00")
		if base := filepath.Base(words[0]); (base == "dockerd" || base == "containerd") && strings.Contains(p.cmdline, w.dir) {
			pids = append(pids, p.pid)
		}
	}
	if len(pids) != 2 {
		w.t.Fatalf("the engine has processes %v, want dockerd's and containerd's", pids)
	}
	return pids
}

// sentry is gVisor's process of a sandbox, or of any container.
func (w *ward) sentry(id string) int {
	w.t.Helper()
	out, err := w.docker("inspect", "-f", "{{.State.Pid}}", "sallyport-"+id).Output()
	pid, nerr := strconv.Atoi(strings.TrimSpace(string(out)))
	if err = errors.Join(err, nerr); err != nil || pid < 2 {
		w.t.Fatalf("the process of %s is %d: %v", id, pid, err)
	}
	return pid
}

// TestHealed ends what sandboxes stand on.
func TestHealed(t *testing.T) {
	all := newWard(t)
	for _, p := range []struct {
		name string
		test func(*testing.T, *ward)
	}{{"a sandbox killed", testSentryKilled}, {"the engine killed", testEngineKilled}, {"rebooted", testRebooted}} {
		t.Run(p.name, func(t *testing.T) {
			w := &ward{rig: all.in(t), player: all.player, n: map[string]int64{}}
			p.test(t, w)
			for _, name := range w.list() {
				w.ok("sandbox", "rm", name)
			}
			w.filled(0)
		})
	}
}

// testEngineKilled: dockerd and containerd are killed at once, while sandboxes run,
// are paused, hibernated, about to hibernate, and wait in the pool.
func testEngineKilled(t *testing.T, w *ward) {
	w.make("runs", "paused", "deep", "going")
	sessions := map[string]string{}
	for _, name := range []string{"runs", "paused", "deep", "going"} {
		sessions[name] = w.info(name).Session
	}
	if _, err := w.c.Snapshot(t.Context(), "runs", sandbox.SnapshotSpec{Name: "then", Memory: true}); err != nil {
		t.Fatal(err)
	}
	then := w.n["runs"]
	w.bump("runs")
	for name, sleep := range map[string]func() error{
		"paused": func() error { _, err := w.c.Pause(t.Context(), "paused"); return err },
		"deep":   func() error { _, err := w.c.Hibernate(t.Context(), "deep"); return err },
	} {
		if err := sleep(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	w.filled(3)
	for _, pause := range []time.Duration{20 * time.Millisecond, 120 * time.Millisecond} {
		pids := w.engine()
		var going sync.WaitGroup
		going.Go(func() {
			_, err := w.c.Hibernate(t.Context(), "going")
			t.Logf("the hibernate that was under way after %v: %v", pause, err)
		})
		time.Sleep(pause)
		for _, pid := range pids {
			must.OK(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		going.Wait()
		w.await("the engine", func() bool { return w.docker("ps").Run() == nil })
		w.await("what was about to hibernate", func() bool {
			r := w.do(t.Context(), model.Op{Verb: model.Get, Name: "going"})
			return r.State == "running" || r.State == "hibernated"
		})
		// Sandboxes that ran go on running, and those that slept can still go deeper: their
		// containers are older than the engine.
		w.whole("runs", "paused", "deep", "going")
		for _, name := range []string{"paused", "deep"} {
			if _, err := w.c.Hibernate(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		w.whole("paused")
		if _, err := w.c.Pause(t.Context(), "paused"); err != nil {
			t.Fatal(err)
		}
		for name, session := range sessions {
			if i := w.info(name); i.Session != session || i.Lost != "" {
				t.Errorf("%s has session %s and lost %q; its session was %s", name, i.Session, i.Lost, session)
			}
		}
	}
	// The pool's is taken as ever, and what was kept can be had.
	w.make("fresh")
	if _, err := w.c.Restore(t.Context(), "runs", sandbox.RestoreSpec{Snapshot: "then"}); err != nil {
		t.Fatal(err)
	}
	w.n["runs"] = then
	w.whole("runs", "going")
	w.filled(4)
	w.agrees(wardPool)
}

// testSentryKilled: gVisor's process of a sandbox is killed, whatever it is doing.
func testSentryKilled(t *testing.T, w *ward) {
	w.make("runs", "paused")
	if _, err := w.c.Pause(t.Context(), "paused"); err != nil {
		t.Fatal(err)
	}
	w.filled(2)
	for name, want := range map[string]string{"runs": "ended by itself", "paused": "ended while it was paused"} {
		before := w.info(name)
		must.OK(t, syscall.Kill(w.sentry(before.ID), syscall.SIGKILL))
		w.await(name+" to be known to have ended", func() bool { return w.info(name).State == sandbox.Stopped })
		if i := w.info(name); (i.Lost != "") != (name == "paused") {
			t.Errorf("%s has lost %q", name, i.Lost)
		}
		ends := 0
		for _, e := range w.history() {
			if e.Session == before.Session && e.State == "stopped" {
				ends++
			}
		}
		if out := w.ok("audit", "query", "--kind", "lifecycle", "-o", "json", "--sandbox", name); ends != 1 || !strings.Contains(out, want) {
			t.Errorf("the session of %s ended %d times on record, want once and %q: %s", name, ends, want, out)
		}
		w.n[name] = 0 // it has no processes any more, and all its files
		w.whole(name)
		if i := w.info(name); i.Session == before.Session {
			t.Errorf("%s goes on in the session that ended", name)
		}
	}
	// One of the pool that has died is given to nobody.
	out, err := w.docker("ps", "--format", "{{.Names}}").Output()
	must.OK(t, err)
	for _, name := range strings.Fields(string(out)) {
		if id := strings.TrimPrefix(name, "sallyport-"); id != w.info("runs").ID && id != w.info("paused").ID {
			must.OK(t, syscall.Kill(w.sentry(id), syscall.SIGKILL))
			w.await("the engine to know that "+name+" has ended", func() bool {
				out, err := w.docker("inspect", "-f", "{{.State.Running}}", name).Output()
				return err != nil || strings.TrimSpace(string(out)) == "false"
			})
		}
	}
	w.make("fresh")
	w.filled(3)
	w.agrees(wardPool)
}

// testRebooted: nothing is left of the host but its disk.
func testRebooted(t *testing.T, w *ward) {
	w.make("runs", "paused", "deep", "kept")
	if _, err := w.c.Snapshot(t.Context(), "kept", sandbox.SnapshotSpec{Name: "then", Memory: true}); err != nil {
		t.Fatal(err)
	}
	then := w.n["kept"]
	w.bump("kept")
	if _, err := w.c.Stop(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.Pause(t.Context(), "paused"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.Hibernate(t.Context(), "deep"); err != nil {
		t.Fatal(err)
	}
	w.filled(2)
	deep := w.info("deep").Session
	w.reboot()
	for _, loop := range w.loops() {
		t.Errorf("left by the reboot that was played: %s", loop)
	}
	w.up()
	w.filled(0)
	for name, want := range map[string]sandbox.State{"runs": sandbox.Stopped, "paused": sandbox.Stopped, "deep": sandbox.Hibernated, "kept": sandbox.Stopped} {
		if i := w.info(name); i.State != want || (i.Lost != "") != (name == "paused") {
			t.Errorf("%s is %s (%s), and lost %q", name, i.State, i.Reason, i.Lost)
		}
	}
	w.agrees(wardPool)
	w.n["runs"], w.n["paused"] = 0, 0
	w.whole("runs", "paused", "deep")
	if i := w.info("deep"); i.Session != deep || i.Lost != "" {
		t.Errorf("what hibernated is %+v", i)
	}
	if _, err := w.c.Restore(t.Context(), "kept", sandbox.RestoreSpec{Snapshot: "then"}); err != nil {
		t.Fatal(err)
	}
	w.n["kept"] = then
	w.whole("kept")
	w.make("fresh")
	w.filled(5)
	w.agrees(wardPool)
}

// TestRecover: what a sandbox is in error for, and that all of it that is on its disk
// is there when it is out of it.
func TestRecover(t *testing.T) {
	r := newRig(t, "")
	r.small()
	r.up()
	disk := func(name string) string { return filepath.Join(r.dir, "data/sandboxes", name, "disk.img") }
	cases := []struct {
		name, says string
		harm, mend func()
	}{
		{"gone", "its container is gone", func() {
			r.must(r.docker("rm", "-f", "sallyport-"+r.info("gone").ID))
		}, func() {}},
		{"spoilt", "cannot be mended by itself", func() {
			r.ok("sandbox", "stop", "spoilt")
			r.must2(os.Rename(disk("spoilt"), disk("spoilt")+".aside"))
			r.must2(os.WriteFile(disk("spoilt"), make([]byte, 1<<20), 0o600))
			if res := r.sallyport("sandbox", "start", "spoilt"); res.code == 0 || !strings.Contains(res.stderr, "e2fsck") {
				t.Errorf("it starts from a disk that is none: %s", res)
			}
		}, func() { r.must2(os.Rename(disk("spoilt")+".aside", disk("spoilt"))) }},
	}
	// Sandboxes that have ended are noticed each half minute: all of these at once.
	r.ok("sandbox", "create", "left")
	r.ok("sandbox", "create", "made")
	r.ok("sandbox", "fork", "made", "forked")
	r.ok("sandbox", "create", "again")
	r.must(r.docker("rm", "sallyport-"+r.info("again").ID))
	failed := []string{"again"}
	for _, c := range cases {
		r.ok("run", c.name, "--", "sh", "-c", "echo kept >/root/f; echo kept >/memory/f; ln -sf /etc/hostname /root/l; rm /etc/motd")
		c.harm()
		failed = append(failed, c.name)
	}
	for _, name := range failed {
		r.await("the error of "+name, func() bool { return r.info(name).State == sandbox.Failed })
	}
	for _, name := range []string{"left", "made", "forked"} {
		r.await("a disk that is left to nobody", func() bool { return !slices.Contains(r.loops(), "data/sandboxes/"+name+"/disk.img") })
	}
	r.ok("sandbox", "recover", "again")
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			id := r.info(c.name).ID
			i := r.info(c.name)
			if !strings.Contains(i.Reason, c.says) || !strings.Contains(i.Reason, "sandbox recover "+c.name) {
				t.Errorf("the reason: %s", i.Reason)
			}
			if res := r.sallyport("run", c.name, "--", "true"); res.code == 0 || !strings.Contains(res.stderr, c.says) {
				t.Errorf("it can be used: %s", res)
			}
			if list := r.ok("sandbox", "ls"); !strings.Contains(list, "error: ") {
				t.Errorf("the listing: %s", list)
			}
			c.mend()
			r.ok("sandbox", "recover", c.name)
			out := r.ok("run", c.name, "--", "sh", "-c", "cat /root/f /memory/f /root/l; test -e /etc/motd || echo gone")
			if want := "kept\nkept\n" + c.name + "\ngone\n"; out != want {
				t.Errorf("recovered it has %q, want %q", out, want)
			}
			if i := r.info(c.name); i.ID != id || i.Reason != "" || i.Lost != "" {
				t.Errorf("recovered it is %+v", i)
			}
			r.ok("sandbox", "rm", c.name)
		})
	}
	r.agrees(0)
	t.Run("never started", func(t *testing.T) { testNeverStarted(t, r.in(t)) })
}

// loops are the loop devices of the rig's files.
func (r *rig) loops() (list []string) {
	devices, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range devices {
		if file, _ := os.ReadFile(l); strings.HasPrefix(string(file), r.dir+"/") {
			list = append(list, strings.TrimSpace(strings.TrimPrefix(string(file), r.dir+"/")))
		}
	}
	return list
}

// testNeverStarted: what was made and has not run takes no more of the host than what
// has been stopped, and can be used: left since long, recovered, forked and restored.
func testNeverStarted(t *testing.T, r *rig) {
	r.agrees(0)
	r.ok("sandbox", "snapshot", "made", "empty")
	r.agrees(0)
	r.ok("sandbox", "restore", "made", "empty")
	r.agrees(0)
	for _, name := range []string{"left", "made", "forked", "again"} {
		if out := r.ok("run", name, "--", "echo", "hi"); out != "hi\n" {
			t.Errorf("%s: %q", name, out)
		}
	}
	r.agrees(0)
	r.ok("sandbox", "create", "last")
	r.ok("down")
	if left := append(mountsBelow(filepath.Join(r.dir, "data")), r.loops()...); len(left) > 0 {
		t.Errorf("left by down: %v", left)
	}
}
