package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"sallyport/internal/test/must"
)

// The memory of a crashed process is written down nowhere: not that of the daemon nor the gateway's process,
// which know secrets, nor the engine, nor gVisor, whose memory is the sandbox's, nor what runs in a sandbox
// with runc, which could have the host's own handler of crashes at work.
func testNoCores(t *testing.T, r *rig) {
	r.ok("run", "one", "--", "true")
	r.ok("run", "two", "--runtime", "runc", "--", "true")
	pids := map[string]int{"the engine": r.enginePID(), "gVisor": r.pid("one"), "what runs with runc": r.pid("two"), "the daemon": r.state().PID, "the gateway's process": r.gatewayPID()}
	limit := regexp.MustCompile(`(?m)^Max core file size +(\S+) +(\S+)`)
	for who, pid := range pids {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "limits"))
		must.OK(t, err)
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

// A sandbox that shares the host's kernel is kept from what a container needs none
// of: the engine's filter of system calls, its masked paths, no way to be root
// elsewhere.
func testSharedKernel(t *testing.T, r *rig) {
	r.ok("run", "shared", "--runtime", "runc", "--", "true")
	for what, tt := range map[string]struct{ shell, want string }{
		"system calls":          {`grep -h ^Seccomp: /proc/1/status /proc/self/status | tr -d '\t\n'`, "Seccomp:2Seccomp:2"},
		"kernel's memory":       {`head -c 1 /proc/kcore | wc -c; head -c 1 /proc/keys | wc -c; head -c 1 /proc/timer_list | wc -c`, "0\n0\n0\n"},
		"firmware":              {`ls -A /sys/firmware | wc -l`, "0\n"},
		"settings":              {`for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/sys/vm/drop_caches; do (echo x >$f) 2>/dev/null && echo $f; done; true`, ""},
		"control groups":        {`for f in $(find /sys/fs/cgroup -name release_agent -o -name notify_on_release -o -name cgroup.procs | head -20); do (echo 1 >$f) 2>/dev/null && echo $f; done; true`, ""},
		"a user namespace":      {`unshare -Ur true 2>/dev/null && echo made; true`, ""},
		"a mount":               {`mount -t tmpfs none /mnt 2>/dev/null && echo mounted; true`, ""},
		"a device":              {`mknod /tmp/disk b 8 0 2>/dev/null && echo made; true`, ""},
		"the host's processes":  {`ls -d /proc/[0-9]* | wc -l | awk '{print ($1 < 12)}'`, "1\n"},
		"the agent":             {`(echo x >/.sallyport/agent) 2>/dev/null && echo written; (echo x >/.sallyport/host.pub) 2>/dev/null && echo written; true`, ""},
		"a set-user-ID program": {`cp /bin/sh /tmp/s; chmod 4755 /tmp/s; setpriv --reuid=65534 /tmp/s -pc 'id -u' 2>/dev/null || echo 65534`, "65534\n"},
	} {
		if res := r.inside("shared", tt.shell); res.stdout != tt.want {
			t.Errorf("%s: %s, want %q", what, res, tt.want)
		}
	}
}
