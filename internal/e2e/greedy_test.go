package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/sandbox/disk"
)

// calmWait bounds what a command in a neighbour may take while another sandbox takes
// all that it gets, on processors that are shared with other tests.
const calmWait = time.Minute

// watch uses a sandbox, its network and the daemon again and again until the
// function is called, which checks that each went well.
func (r *rig) watch(t *testing.T, name string) (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	n, slowest := 0, time.Duration(0)
	go func() {
		defer close(done)
		for {
			began := time.Now()
			res, err := r.daemon.Run("", "run", name, "--", "sh", "-c", "echo here > /root/g && curl -sS --max-time 60 https://api.example.test/v1/models")
			if err != nil || res.Code != 0 || !strings.Contains(res.Stdout, `"saw_key":true`) {
				t.Errorf("meanwhile the neighbour fails: %s, %v", res, err)
			}
			if res, err := r.daemon.Run("", "sandbox", "ls"); err != nil || res.Code != 0 {
				t.Errorf("meanwhile the daemon fails: %s, %v", res, err)
			}
			n, slowest = n+1, max(slowest, time.Since(began))
			select {
			case <-over:
				return
			default:
			}
		}
	}()
	return func() {
		close(over)
		<-done
		t.Logf("%d uses of the neighbour meanwhile, the slowest took %v", n, slowest.Round(time.Millisecond))
		if slowest > calmWait {
			t.Errorf("meanwhile a use of the neighbour took %v", slowest)
		}
	}
}

// A sandbox that takes all it can get fills its own disk, memory and table of
// processes: the host and a neighbour go on working meanwhile and afterwards.
func TestGreed(t *testing.T) {
	r := newRig(t, "")
	r.serve()
	r.up()
	r.setKey()
	r.ok("run", "neighbour", "--", "true")
	r.ok("run", "greedy", "--disk", "128MiB", "--memory", "256MiB", "--pids", "100", "--", "true")
	works := func(t *testing.T) {
		t.Helper()
		for _, name := range []string{"neighbour", "greedy"} {
			res := r.inside(name, "echo here > /root/f && echo here > /memory/f && cat /root/f && curl -sS https://api.example.test/v1/models")
			if res.code != 0 || !strings.Contains(res.stdout, `"saw_key":true`) {
				t.Errorf("%s does not work any more: %s", name, res)
			}
		}
	}
	works(t)
	for _, c := range []struct{ name, shell, says string }{
		{"disk", "head -c 1G /dev/zero > /var/full", "No space left on device"},
		{"the engine's own file", "head -c 1G /dev/zero > /etc/hosts", "No space left on device"},
		{"memory folder", "head -c 1G /dev/zero > /memory/full", "No space left on device"},
		{"files without number", "mkdir /var/many; cd /var/many; for i in $(seq 9); do mkdir $i; (cd $i; seq 9999 | xargs touch) || exit 1; done", "No space left on device"},
		{"shared memory", "head -c 1G /dev/zero > /dev/shm/full", ""},
		{"memory", "python3 -c 'b = bytearray(2 << 30)\nfor i in range(0, len(b), 4096): b[i] = 1'", ""},
		// gVisor's own process is the one that gets no more threads, and ends.
		{"processes", "i=0; while [ $i -lt 300 ]; do sleep 60 </dev/null >/dev/null 2>&1 & i=$((i+1)); done", ""},
		{"fork bomb", "b() { b | b & b; }; b", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			calm := r.watch(t, "neighbour")
			res := r.inside("greedy", c.shell)
			calm()
			if res.code == 0 {
				t.Errorf("it got all it asked for")
			}
			if !strings.Contains(strings.ToLower(res.stderr), strings.ToLower(c.says)) {
				t.Errorf("it was told %q, want something of %q", res.stderr, c.says)
			}
			if n, err := disk.Used(filepath.Join(r.dir, "data/sandboxes/greedy")); err != nil || n > 128<<20+1<<20 {
				t.Errorf("it takes %d MB of the host's disk: %v", n>>20, err)
			}
			// Its end is the way out, and keeps its files.
			r.ok("sandbox", "stop", "greedy")
			if res := r.inside("greedy", "rm -rf /var/full /var/many /memory/full"); res.code != 0 {
				t.Fatal(res)
			}
			works(t)
		})
	}

	// The space it freed is given back to the host, and sandboxes that sleep are still there.
	r.ok("sandbox", "stop", "greedy")
	image := filepath.Join(r.dir, "data/sandboxes/greedy/disk.img")
	var st unix.Stat_t
	if err := unix.Stat(image, &st); err != nil || st.Blocks*512 > 64<<20 {
		t.Errorf("the empty disk takes %d MB of the host's: %v", st.Blocks*512>>20, err)
	}
	if list := r.ok("memory", "ls", "greedy"); !strings.Contains(list, "memories.md") {
		t.Errorf("the memory of a sandbox that is stopped shows %s", list)
	}
	r.ok("sandbox", "rm", "greedy")
	if _, err := os.Stat(filepath.Dir(image)); !os.IsNotExist(err) {
		t.Errorf("after its removal: %v", err)
	}
}
