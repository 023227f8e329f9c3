package docker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// plenty is room for whatever is written, in bytes.
const plenty = 1 << 40

// TestHeadroom: a sandbox with more than half of the memory that it may have is
// written down all the same, and may have no more than before once that is gone.
func TestHeadroom(t *testing.T) {
	l := need(t)
	const limit = 320 << 20
	r, start := l.sleepers(t)
	c := l.container(t, testImage)
	c.Spec.Memory = limit
	id := start(c)
	hold := func(megabytes int) {
		t.Helper()
		l.sh(t, id, fmt.Sprintf(`rm -f /full; perl -e '$x = "a" x (%d << 20); open F, ">/full"; close F; sleep 1000' >/dev/null 2>&1 </dev/null & until [ -e /full ]; do sleep 0.1; done`, megabytes/2))
	}
	bound := func() int64 {
		t.Helper()
		info, err := r.inspect(t.Context(), id)
		must.OK(t, err)
		g, err := findMemoryCgroup(info.State.Pid, info.ID)
		must.OK(t, err)
		n, err := g.limited()
		must.OK(t, err)
		return n
	}
	hold(200) // perl takes twice what it is told
	n, err := r.Resident(t.Context(), id)
	if err != nil || n < limit/2 {
		t.Fatalf("%d bytes are resident, %v: too few to tell", n, err)
	}
	if have := bound(); have != limit {
		t.Fatalf("it may have %d bytes", have)
	}
	if g, err := findMemoryCgroup(os.Getpid(), id); err == nil {
		t.Errorf("a process that is not the container's is in %s", g.dir)
	}
	dir := filepath.Join(vault(t), "image")
	if err := r.Checkpoint(t.Context(), id, dir, n/2, true, nil); !errors.Is(err, sandbox.ErrMemoryBusy) {
		t.Errorf("with room for less than it takes: %v", err)
	}
	if left, _ := filepath.Glob(dir + "*"); len(left) > 0 || bound() != limit {
		t.Errorf("with room for less than it takes something was begun: %v, and it may have %d bytes", left, bound())
	}
	must.OK(t, r.Checkpoint(t.Context(), id, dir, plenty, true, nil))
	if have := bound(); have <= limit {
		t.Errorf("it may have %d bytes while %d of it are written down", have, n)
	}
	must.OK(t, os.RemoveAll(dir))
	for range 2 {
		must.OK(t, r.RestoreMemoryLimit(t.Context(), id))
		if have := bound(); have != limit {
			t.Errorf("it may have %d bytes afterwards", have)
		}
	}
	l.await(t, id, l.lines(t, id)+3)

	n0 := l.lines(t, id)
	must.OK(t, r.Checkpoint(t.Context(), id, dir, plenty, false, nil))
	if _, err := r.Restore(t.Context(), id, dir, nil); err != nil {
		t.Fatal(err)
	}
	must.OK(t, os.RemoveAll(dir))
	l.await(t, id, n0+3)
	if have := bound(); have != limit {
		t.Errorf("it may have %d bytes after a wake", have)
	}

	// Data of an earlier process that is still being written is not held against it: not its
	// files, which nobody finds any more.
	must.OK(t, r.Checkpoint(t.Context(), id, dir, plenty, true, nil))
	written, err := os.Open(filepath.Join(dir, "checkpoint.img"))
	must.OK(t, err)
	defer written.Close()
	must.OK(t, os.RemoveAll(dir))
	info, err := r.inspect(t.Context(), id)
	must.OK(t, err)
	writer := exec.Command("sh", "-c", "read end", "runsc", "checkpoint", info.ID)
	end, err := writer.StdinPipe()
	must.OK(t, err)
	must.OK(t, writer.Start())
	if err := r.RestoreMemoryLimit(t.Context(), id); err == nil {
		t.Error("its memory was limited while it was being written down")
	}
	l.await(t, id, l.lines(t, id)+3)
	_ = end.Close()
	_ = writer.Wait()
	must.OK(t, errors.Join(written.Close(), r.RestoreMemoryLimit(t.Context(), id)))
	if have := bound(); have != limit {
		t.Errorf("it may have %d bytes when it has been written", have)
	}

	// A process that takes what was meant for the checkpoint ends, as without one.
	must.OK(t, r.Checkpoint(t.Context(), id, dir, plenty, true, nil))
	hold(160)
	must.OK(t, os.RemoveAll(dir))
	must.OK(t, r.RestoreMemoryLimit(t.Context(), id))
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		st, err := r.Status(t.Context(), id)
		if err == nil && !st.Running {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it goes on with more than it may have: %+v, %v", st, err)
		}
	}
	if err := r.RestoreMemoryLimit(t.Context(), id); err != nil && !strings.Contains(err.Error(), "not running") {
		t.Errorf("of one that has ended: %v", err)
	}
}
