package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// docs/operate/isolation.md: what a process in a sandbox may not, whichever runtime has it.
// With runc the kernel is the host's, and the engine's seccomp profile and masked
// paths hold what gVisor holds otherwise.
func testInside(t *testing.T, r *rig) {
	// capabilities(7): CHOWN 0, DAC_OVERRIDE 1, FOWNER 3, FSETID 4, KILL 5, SETGID 6,
	// SETUID 7, NET_BIND_SERVICE 10, SYS_CHROOT 18, AUDIT_WRITE 29, SETFCAP 31.
	caps := uint64(0)
	for _, bit := range []int{0, 1, 3, 4, 5, 6, 7, 10, 18, 29, 31} {
		caps |= 1 << bit
	}
	for _, runtime := range []string{"runsc", "runc"} {
		t.Run(runtime, func(t *testing.T) {
			name := "with-" + runtime
			r.ok("sandbox", "create", name, "--runtime", runtime)
			status := map[string]string{}
			for line := range strings.Lines(r.ok("sandbox", "exec", name, "--", "cat", "/proc/self/status")) {
				key, value, _ := strings.Cut(line, ":")
				status[key] = strings.TrimSpace(value)
			}
			want := map[string]string{"CapInh": "0000000000000000", "CapAmb": "0000000000000000"}
			for _, set := range []string{"CapEff", "CapPrm", "CapBnd"} {
				want[set] = fmt.Sprintf("%016x", caps)
			}
			want["NoNewPrivs"] = "1"
			if runtime == "runc" {
				want["Seccomp"] = "2" // filter mode, proc(5)
			}
			for key, value := range want {
				if status[key] != value && !(key == "CapAmb" && runtime == "runsc" && status[key] == "") {
					t.Errorf("%s is %q, want %q", key, status[key], value)
				}
			}
			for what, shell := range map[string]string{
				"a file system of its own":     "mount -t tmpfs none /mnt",
				"a namespace of its own":       "unshare -m true",
				"a device":                     "mknod /root/d b 1 1",
				"packets of its own making":    `python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'`,
				"its agent":                    "echo x > /.sallyport/agent",
				"the key that it believes":     "echo x > /.sallyport/host.pub",
				"where names are asked for":    "echo x > /etc/resolv.conf",
				"those mounts":                 "umount /etc/resolv.conf",
				"a setting of the kernel":      "echo 1 > /proc/sys/kernel/sysrq || echo 1 > /proc/sys/vm/drop_caches",
				"another root by set-user-ID":  `cp /bin/cat /root/cat && chmod 4755 /root/cat && setpriv --reuid 65534 --clear-groups --inh-caps=-all /root/cat /etc/shadow`,
				"what the kernel's memory has": "test $(head -c 100 /proc/kcore | wc -c) -gt 0",
				"keys of the kernel's":         "test $(head -c 100 /proc/keys | wc -c) -gt 0",
				"the firmware":                 "test $(ls /sys/firmware | wc -l) -gt 0",
				"a module":                     "modprobe loop",
			} {
				if res := r.sallyport("sandbox", "exec", name, "--", "sh", "-c", shell); res.code == 0 {
					t.Errorf("it has %s: %s", what, res)
				}
			}
		})
	}
}

// The user of a sandbox is the one of its commands and of its files, where they name
// no other.
func testUser(t *testing.T, r *rig) {
	r.ok("sandbox", "create", "theirs", "--user", "nobody")
	if out := r.ok("run", "theirs", "--", "id", "-un"); out != "nobody\n" {
		t.Errorf("commands are %q's", out)
	}
	id := strings.TrimSpace(r.ok("sandbox", "exec", "theirs", "-d", "--", "sh", "-c", "id -un; sleep 100"))
	r.await("what it says in the background", func() bool { return r.ok("sandbox", "output", "theirs", id) == "nobody\n" })
	r.write("one", "x")
	r.ok("sandbox", "cp", r.dir+"/one", "theirs:/tmp/one")
	if out := r.ok("sandbox", "exec", "theirs", "-u", "root", "--", "stat", "-c", "%U", "/tmp/one"); out != "nobody\n" {
		t.Errorf("a file that was copied is %q's", out)
	}
	r.ok("sandbox", "exec", "theirs", "-u", "root", "--", "sh", "-c", "echo secret > /root/s; chmod 600 /root/s")
	if res := r.sallyport("sandbox", "files", "cat", "theirs", "/root/s"); res.code == 0 {
		t.Errorf("its user reads what is root's: %s", res)
	}
	if out := r.ok("sandbox", "files", "cat", "-u", "root", "theirs", "/root/s"); out != "secret\n" {
		t.Errorf("root reads %q", out)
	}
	// And another from the next session on.
	r.ok("sandbox", "set", "theirs", "--user", "daemon", "--restart")
	if out := r.ok("run", "theirs", "--", "id", "-un"); out != "daemon\n" {
		t.Errorf("commands are %q's", out)
	}
}
