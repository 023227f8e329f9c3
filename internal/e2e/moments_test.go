package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// flood sends to the test host from its first instruction, for two minutes.
const flood = `
import socket, time
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end = time.time() + 120
while time.time() < end:
    for i in range(5):
        try: u.sendto(b"flood", ("198.51.100.10", 9999))
        except OSError: pass
    s = socket.socket(); s.setblocking(False)
    try: s.connect(("198.51.100.10", 443))
    except OSError: pass
    time.sleep(0.02)
    s.close()
`

// There is no moment in which a packet leaves: not before a sandbox has an
// identity, not while the daemon or the engine is away, not after a reboot.
func TestNoMomentWithoutGuard(t *testing.T) {
	r := newRig(t, "")
	r.serve()
	forward(t)
	r.up()
	r.setKey()
	arrived, err := r.host.Capture(func(f testnet.Frame) bool {
		// A packet from outside for a process that has just been killed, as an answer to a
		// question of names, is refused by the host's kernel in its own name. No sandbox has
		// that name: nothing here rewrites addresses.
		return f.Protocol != 1 || f.From.Addr().String() != "198.51.100.1"
	})
	must.OK(t, err)
	silent := func(moment string, during func()) {
		t.Helper()
		t.Run(moment, func(t *testing.T) {
			before := count(t, arrived)
			during()
			time.Sleep(time.Second)
			if n := count(t, arrived) - before; n != 0 {
				t.Errorf("%d packets arrived: %v", n, arrived.Seen()[before:min(before+5, count(t, arrived))])
			}
		})
	}

	if res := r.feed(flood, "run", "agent", "--", "sh", "-c", "cat > /root/flood.py"); res.code != 0 {
		t.Fatal(res)
	}
	silent("an attached sandbox", func() {
		r.ok("run", "agent", "--", "sh", "-c", "setsid python3 /root/flood.py </dev/null >/dev/null 2>&1 &")
	})
	silent("a container that nothing vouches for", func() { r.stranger("stranger", "10.232.0.200") })
	silent("the same, resumed from a memory checkpoint", func() {
		r.resume("stranger")
	})
	silent("while the daemon restarts", func() {
		r.kill(syscall.SIGTERM)
		time.Sleep(time.Second)
		r.up()
	})
	silent("after kill -9 of the daemon", func() { r.kill(syscall.SIGKILL) })
	silent("a container that starts meanwhile", func() { r.stranger("meanwhile", "10.232.0.201") })
	r.up()
	silent("after kill -9 of the engine", func() {
		must.OK(t, syscall.Kill(r.enginePID(), syscall.SIGKILL))
		time.Sleep(2 * time.Second)
	})
	r.await("the engine", func() bool { return r.docker("version").Run() == nil })

	engine := r.reboot()
	silent("after a reboot, the engine first", func() {
		for _, c := range engine {
			must.OK(t, c.Start())
		}
		r.await("the engine", func() bool { return r.docker("version").Run() == nil })
		for _, name := range []string{"stranger", r.container("agent")} {
			if out, err := r.docker("start", name).CombinedOutput(); err == nil {
				t.Errorf("%s starts on a bridge that nothing guards: %s", name, out)
			} else if !strings.Contains(string(out), "sallyport up") {
				t.Errorf("the refusal does not say what to do: %s", out)
			}
		}
	})
	t.Run("after a reboot, sallyport after it", func(t *testing.T) {
		before := count(t, arrived)
		r.up()
		res := r.inside("agent", "curl -sS -m 60 -o /dev/null -w '%{http_code}' https://api.example.test/")
		if res.code != 0 || res.stdout != "200" {
			t.Errorf("the sandbox does not work again: %s", res)
		}
		for _, f := range arrived.Seen()[before:] {
			if f.From.Addr().String() != "198.51.100.1" {
				t.Errorf("a packet that is not the gateway's: %v", f)
			}
		}
	})
	t.Run("control: unguarded, the flood arrives", func(t *testing.T) {
		r.ok("sandbox", "rm", "agent")
		r.stranger("last", "10.232.0.202")
		r.kill(syscall.SIGKILL)
		before := count(t, arrived)
		time.Sleep(500 * time.Millisecond)
		if n := count(t, arrived) - before; n != 0 {
			t.Fatalf("%d packets arrived although the guard stands", n)
		}
		unguard(t)
		r.await("the flood", func() bool { return count(t, arrived) > before+5 })
	})
}

// stranger starts a container on the sandboxes' network past the manager; its
// first process floods.
func (r *rig) stranger(name, address string) {
	r.t.Helper()
	r.must(r.docker("run", "-d", "--name", name, "--runtime", "runsc", "--network", "spe2e0", "--ip", address,
		r.image(), "python3", "-c", flood))
	r.t.Cleanup(func() { _ = r.docker("rm", "-f", name).Run() })
}

// resume writes a container's memory to disk, which ends it, and starts it from
// there. Engine 20.10 puts what containerd had until a moment ago into its store
// anew, and trips over it ("already exists") until containerd has collected that.
func (r *rig) resume(name string) {
	r.t.Helper()
	r.must(r.docker("checkpoint", "create", name, "cp"))
	r.await("the container, resumed", func() bool {
		out, err := r.docker("start", "--checkpoint", "cp", name).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "already exists") {
			r.t.Fatalf("resuming %s: %v: %s", name, err, out)
		}
		return err == nil
	})
}

// image is the base image's name in the engine.
func (r *rig) image() string {
	r.t.Helper()
	out, err := r.docker("images", "--format", "{{.Repository}}:{{.Tag}}").Output()
	if err != nil || len(out) == 0 {
		r.t.Fatalf("no image: %v", err)
	}
	return strings.Fields(string(out))[0]
}

func (r *rig) must(c *exec.Cmd) {
	r.t.Helper()
	if out, err := c.CombinedOutput(); err != nil {
		r.t.Fatalf("%q: %v\n%s", c.Args, err, out)
	}
}

// await waits until a condition holds. Only failures take it all: a sandbox that starts
// in a third of a second takes twenty where many others start.
func (r *rig) await(what string, ready func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if ready() {
			return
		}
	}
	r.t.Fatalf("%s: not within three minutes\n%s", what, r.logged())
}

// reboot ends everything that belongs to the rig and takes away what a reboot
// does: processes, pins, links, rules and run-time files. It returns the
// engine's processes, to be started first.
func (r *rig) reboot() (engine []*exec.Cmd) {
	r.t.Helper()
	r.kill(syscall.SIGKILL)
	var all []int
	for _, p := range processes() {
		if !strings.Contains(p.cmdline, r.dir) {
			continue
		}
		all = append(all, p.pid)
		words := strings.Split(strings.TrimRight(p.cmdline, "\x00"), "\x00")
		if base := filepath.Base(words[0]); base == "dockerd" || base == "containerd" {
			c := exec.Command(words[0], words[1:]...)
			c.Env = p.environ
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if base == "containerd" {
				engine = append([]*exec.Cmd{c}, engine...)
			} else {
				engine = append(engine, c)
			}
		}
	}
	if len(engine) != 2 {
		r.t.Fatalf("found %d processes of the engine, want 2", len(engine))
	}
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	r.await("the end of all processes", func() bool {
		for _, pid := range all {
			if state(pid) != "Z" && state(pid) != "" {
				return false
			}
		}
		return true
	})
	unguard(r.t.(*testing.T))
	for _, args := range [][]string{{"link", "del", "spe2e0"}, {"rule", "flush"}, {"rule", "add", "from", "all", "lookup", "main", "pref", "32766"}} {
		r.must(exec.Command("ip", args...))
	}
	// A flush leaves this one, but where it was moved.
	if out, err := exec.Command("ip", "rule", "add", "from", "all", "lookup", "local", "pref", "0").CombinedOutput(); err != nil && !bytes.Contains(out, []byte("File exists")) {
		r.t.Fatalf("%v: %s", err, out)
	}
	for _, m := range mountsBelow(r.dir) {
		_ = syscall.Unmount(m, syscall.MNT_DETACH)
	}
	must.OK(r.t, os.RemoveAll(filepath.Join(r.dir, "run")))
	must.OK(r.t, os.MkdirAll(filepath.Join(r.dir, "run/engine"), 0o700))
	return engine
}

type process struct {
	pid     int
	cmdline string
	environ []string
}

// processes lists those of this mount and network namespace's rig and others;
// the caller picks by command line.
func processes() (list []process) {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range paths {
		pid, err := strconv.Atoi(strings.Split(p, "/")[2])
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		list = append(list, process{pid, string(line), strings.Split(strings.TrimRight(string(env), "\x00"), "\x00")})
	}
	return list
}

// state is a process's, from proc(5); empty when it is gone.
func state(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := bytes.Cut(data, []byte(") "))
	return string(rest[:1])
}

func mountsBelow(dir string) (list []string) {
	data, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir) {
			list = append([]string{f[1]}, list...) // the innermost first
		}
	}
	return list
}
