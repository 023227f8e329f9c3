package docker

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// TestFork: a container that is like another, with its files and its memory, goes
// on where that one was; and that one goes on too.
func TestFork(t *testing.T) {
	l := need(t)
	r, start := l.sleepers(t)
	id := start(l.container(t, testImage))
	l.sh(t, id, "rm /etc/issue; rm -r /etc/default; mkdir /etc/default; mkdir -p /opt/x; echo one >/opt/x/file; ln /opt/x/file /opt/x/twin")

	child := l.container(t, testImage)
	child.Like, child.Spec.Image = id, "no-such-image" // it is the parent's that counts
	mem := t.TempDir()
	child.Mounts = append(child.Mounts, sandbox.Mount{Source: mem, Target: "/memory"})
	if _, err := r.Create(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Remove(t.Context(), child.ID) })

	dir := filepath.Join(vault(t), "memory")
	must.OK(t, r.Pause(t.Context(), id))
	must.OK(t, r.Checkpoint(t.Context(), id, dir, plenty, true, nil))
	if st, err := r.Status(t.Context(), id); err != nil || !st.Paused {
		t.Errorf("after its checkpoint: %+v, %v", st, err)
	}
	from, err := r.Layer(t.Context(), id)
	must.OK(t, err)
	to, err := r.Layer(t.Context(), child.ID)
	must.OK(t, err)
	written, err := os.ReadFile(filepath.Join(from, "lines"))
	must.OK(t, err)
	if out, err := exec.Command("cp", "-a", "--", from+"/.", to+"/.").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// An open file is looked for by its name.
	must.OK(t, os.WriteFile(filepath.Join(mem, "start"), []byte(writer20ms), 0o600))
	must.OK(t, r.Resume(t.Context(), id))
	if _, err := r.Restore(t.Context(), child.ID, dir, nil); err != nil {
		t.Fatal(err)
	}
	n := strings.Count(string(written), "\n")
	l.await(t, id, n+3)
	l.await(t, child.ID, n+3)
	want := "one\n2\n0"
	if got := l.sh(t, child.ID, "cat /opt/x/twin; stat -c %h /opt/x/file; ls /etc/issue /etc/default 2>/dev/null | grep -vc : || :"); got != want {
		t.Errorf("the child's files: %q, want %q", got, want)
	}
	if got := strings.TrimSpace(l.sh(t, child.ID, "cat /etc/hostname")); got != child.Name {
		t.Errorf("the child is called %q", got)
	}
	if _, err := r.Layer(t.Context(), "nobody"); err == nil {
		t.Error("nobody has files")
	}
}
