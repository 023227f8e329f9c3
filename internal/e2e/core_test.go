package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// What crashes is written down nowhere: not the daemon, which knows secrets, nor the
// engine, nor gVisor, whose memory is the sandbox's, nor what runs in a sandbox with
// runc, which could have the host's own handler of crashes at work.
func TestNoCores(t *testing.T) {
	r := newRig(t, "")
	r.serve()
	r.up()
	r.ok("run", "one", "--", "true")
	r.ok("run", "two", "--runtime", "runc", "--", "true")
	pids := map[string]int{"the engine": r.enginePID(), "gVisor": r.pid("one"), "what runs with runc": r.pid("two"), "the daemon": r.state().PID}
	limit := regexp.MustCompile(`(?m)^Max core file size +(\S+) +(\S+)`)
	for who, pid := range pids {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "limits"))
		if err != nil {
			t.Fatal(err)
		}
		// 1 byte keeps what is piped to a program too; 0 does not, see core(5).
		if m := limit.FindSubmatch(text); m == nil || string(m[1]) != "1" || string(m[2]) != "1" {
			t.Errorf("%s: %q", who, m)
		}
	}
	for _, name := range []string{"one", "two"} {
		res := r.inside(name, "mkdir -p /tmp/c; cd /tmp/c; ulimit -c unlimited; sh -c 'kill -SEGV $$'; ls")
		if res.stdout != "" {
			t.Errorf("%s has left %q (%s)", name, res.stdout, fmt.Sprint(res))
		}
	}
}
