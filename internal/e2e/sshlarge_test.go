package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// testSSHLarge carries a large file with scp, both ways: whoever has a part in it
// holds little of it. That is some 10 MiB, and more where a machine is so busy that
// a collection of garbage begins late. SALLYPORT_SSH_BYTES is another size.
func testSSHLarge(t *testing.T, r *rig, alice *operator) {
	size := int64(128 << 20)
	if s := os.Getenv("SALLYPORT_SSH_BYTES"); s != "" {
		var err error
		if size, err = strconv.ParseInt(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	patient := *alice
	patient.t, patient.patience = t, 10*time.Minute
	r.ok("run", "large", "--disk", "4GiB", "--", "true")
	at := filepath.Join(r.dir, "zeros") // sparse
	must.OK(t, os.WriteFile(at, nil, 0o600))
	must.OK(t, os.Truncate(at, size))
	r.write("small", strings.Repeat("x", 1<<20))
	pid, _ := r.sshProcess()
	pids := map[string]int{"the daemon": r.daemon.PID(), "the process that speaks SSH": pid}
	carry := func(what, from, to string) {
		t.Helper()
		before := map[string]int64{}
		for who, pid := range pids {
			// The most that it has had is counted anew from here (proc(5), clear_refs).
			must.OK(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0))
			before[who] = memoryPeak(t, pid)
		}
		began := time.Now()
		if res := patient.run("", "scp", from, to); res.code != 0 {
			t.Fatalf("%s: %s", what, res)
		}
		took := time.Since(began)
		for who, pid := range pids {
			grew := memoryPeak(t, pid) - before[who]
			t.Logf("%s: %.1f s, %s grew from %d to %d KiB at most", what, took.Seconds(), who, before[who]>>10, (before[who]+grew)>>10)
			if grew > size/4 {
				t.Errorf("%s: %s grew by %d MiB", what, who, grew>>20)
			}
		}
	}
	carry("a megabyte up", filepath.Join(r.dir, "small"), "large@127.0.0.1:small")
	carry("up", at, "large@127.0.0.1:zeros")
	if got := r.inside("large", "stat -c %s /root/zeros; cmp -n $(stat -c %s /root/zeros) /root/zeros /dev/zero && echo same"); got.stdout != fmt.Sprintf("%d\nsame\n", size) {
		t.Errorf("what has come: %s", got)
	}
	carry("down", "large@127.0.0.1:zeros", at+".back")
	if i, err := os.Stat(at + ".back"); err != nil || i.Size() != size {
		t.Errorf("what has come back: %v, %v", i, err)
	}
}
