package docker

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/sandbox"
)

// TestFork: a container that is like another, with its files and its memory, goes
// on where that one was; and that one goes on too.
func TestFork(t *testing.T) {
	l := need(t)
	r, start := l.sleepers(t)
	parent := l.container(t, testImage)
	id := start(parent)
	l.sh(t, id, "rm /etc/issue; mkdir -p /opt/x; echo one >/opt/x/file; ln /opt/x/file /opt/x/twin")

	child := l.container(t, testImage)
	child.Like, child.Spec.Image = id, "no-such-image" // it is the parent's that counts
	mem := t.TempDir()
	child.Mounts = append(child.Mounts, sandbox.Mount{Source: mem, Target: "/memory"})
	if err := r.Create(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Remove(t.Context(), child.ID) })

	dir := filepath.Join(vault(t), "memory")
	began := time.Now()
	if err := r.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	paused := time.Now()
	if err := r.Checkpoint(t.Context(), id, dir, true); err != nil {
		t.Fatal(err)
	}
	checkpointed := time.Now()
	st, err := r.Status(t.Context(), id)
	if err != nil || !st.Paused {
		t.Errorf("after its checkpoint: %+v, %v", st, err)
	}
	before := ticks(t, st.PID)
	time.Sleep(200 * time.Millisecond)
	t.Logf("ticks while paused after checkpoint: %d", ticks(t, st.PID)-before)
	from, err := r.Layer(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	to, err := r.Layer(t.Context(), child.ID)
	if err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(filepath.Join(from, "lines"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", "-c", "cp -a -- "+from+"/. "+to+"/.").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	copied := time.Now()
	// What is open is looked for by its name.
	if err := os.WriteFile(filepath.Join(mem, "start"), []byte(writer20ms), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	t.Logf("pause %v, checkpoint %v, copy %v, resume %v", paused.Sub(began), checkpointed.Sub(paused), copied.Sub(checkpointed), time.Since(copied))
	began = time.Now()
	if _, err := r.Restore(t.Context(), child.ID, dir); err != nil {
		t.Fatal(err)
	}
	t.Logf("restore %v", time.Since(began))
	n := strings.Count(string(written), "\n")
	l.await(t, id, n+3)
	l.await(t, child.ID, n+3)
	if got := l.sh(t, child.ID, "cat /opt/x/twin; stat -c %h /opt/x/file; ls /etc/issue 2>&1 | tail -c 10; cat /etc/hostname"); !strings.HasPrefix(got, "one\n2\n") || strings.Contains(got, "/etc/issue\n") {
		t.Errorf("the child's files: %q", got)
	} else {
		t.Logf("%q", got)
	}
}
