package docker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// guarded is a guard before a runtime of the test's, which does as the script does.
type guarded struct{ script, notes, log, image string }

func newGuarded(t *testing.T, does string) guarded {
	t.Helper()
	dir := t.TempDir()
	g := guarded{filepath.Join(dir, "guard"), filepath.Join(dir, "notes"), filepath.Join(dir, "log"), filepath.Join(dir, "image")}
	index, err := os.ReadFile("/sys/class/net/lo/ifindex")
	if err != nil {
		must.Lack(t, "no device to guard: %v", err)
	}
	for _, d := range []string{g.notes, g.image} {
		must.OK(t, os.Mkdir(d, 0o700))
	}
	real := filepath.Join(dir, "real")
	// A process that another test forks meanwhile would have the scripts open for writing, and
	// they could not be run (ETXTBSY).
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	for path, text := range map[string]string{
		real: "#!/bin/sh\nfor last do [ \"$verb\" ] || case $last in restore | kill | start) verb=$last ;; esac; done\n" +
			"echo \"$verb\" >>" + quote(filepath.Join(dir, "verbs")) + "\nlog=" + quote(g.log) + "\n" + does + "\n",
		filepath.Join(dir, "bridge-"+strings.TrimSpace(string(index))): "",
		filepath.Join(g.image, "checkpoint.img"):                       "memory",
	} {
		must.OK(t, os.WriteFile(path, []byte(text), 0o700))
	}
	must.OK(t, writeStartShim(dir, "guard", "lo", dir, g.notes, real))
	return g
}

func (g guarded) note() string { return filepath.Join(g.notes, "c0") }

func (g guarded) start() *exec.Cmd {
	return exec.Command(g.script, "--log", g.log, "start", "c0")
}

// verbs are what the runtime was asked for.
func (g guarded) verbs() string {
	text, _ := os.ReadFile(filepath.Join(filepath.Dir(g.script), "verbs"))
	return strings.Join(strings.Fields(string(text)), " ")
}

// TestGuardSaysWhatRan: of a restore that fails it is only known that nothing ran where
// gVisor says so.
func TestGuardSaysWhatRan(t *testing.T) {
	say := func(msg string) string {
		return "[ $verb != restore ] || { printf '%s' '{\"msg\":\"" + msg + "\",\"level\":\"error\"}' >>\"$log\"; exit 128; }"
	}
	for name, tt := range map[string]struct {
		does string
		ran  bool
	}{
		"refused by the sandbox":          {say(`starting container: restoring container \\"c0\\": failed to load kernel: EOF`), false},
		"refused, with stacks":            {say(`starting container: restoring container \\"c0\\": failed to load kernel: EOF` + strings.Repeat(`:\\ngoroutine 22 [running]`, 4000)), false},
		"refused, after other words":      {`[ $verb != restore ] || printf '{"msg":"other","level":"warning"}' >>"$log"` + "\n" + say(`starting container: restoring container \\"c0\\": failed to load kernel: EOF`), false},
		"before the sandbox was asked":    {say(`starting container: setting up network: no such device`), false},
		"whose sandbox is gone":           {say(`starting container: connecting to control server at PID 7: connection refused`), false},
		"which has ended":                 {say(`starting container: cannot restore container \\"c0\\" in state stopped`), false},
		"no answer":                       {say(`starting container: restoring container \\"c0\\": urpc method \\"containerManager.Restore\\" failed: EOF`), true},
		"after it was restored":           {say(`starting container: saving container metadata: no space left on device`), true},
		"without a word":                  {"[ $verb != restore ] || exit 1", true},
		"killed":                          {"[ $verb != restore ] || kill -9 $$", true},
		"killed, an older refusal logged": {"[ $verb != restore ] || { printf '{\"msg\":\"starting container: restoring container x\"}' >>\"$log\"; kill -9 $$; }", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t, tt.does)
			n, err := newHandshake(g.note())
			must.OK(t, err)
			defer n.close()
			must.OK(t, n.publish(g.image))
			n.unlock()
			if err := g.start().Run(); err == nil {
				t.Error("the guard has not failed")
			}
			for range 2 { // nor does it forget
				if err := n.revoke(); errors.Is(err, sandbox.ErrRan) != tt.ran {
					t.Errorf("ran: %v, want %v", err, tt.ran)
				}
				if err := g.start().Run(); err == nil { // nor begin again
					t.Error("another has begun")
				}
			}
			if got := g.verbs(); got != "restore kill kill kill" {
				t.Errorf("the runtime was asked for %q", got)
			}
		})
	}
}

// TestGuardFolder: gVisor restores where the folder that the guard is called in may be
// gone.
func TestGuardFolder(t *testing.T) {
	g := newGuarded(t, `[ "$verb" = kill ] || [ "$(pwd)" = / ]`)
	n, err := newHandshake(g.note())
	must.OK(t, err)
	defer n.close()
	must.OK(t, n.publish(g.image))
	begins := g.start()
	begins.Dir = t.TempDir()
	if err := begins.Run(); err != nil {
		t.Error(err)
	}
}

// TestGuardRefusedOnce: that one of two has begun nothing says nothing of the other.
func TestGuardRefusedOnce(t *testing.T) {
	refusal := `{"msg":"starting container: restoring container \\"c0\\": no such state","level":"error"}`
	g := newGuarded(t, "[ $verb = restore ] || exit 0\nmkdir \"$log.one\" && exit 1\nprintf '%s' "+quote(refusal)+" >>\"$log\"\nexit 128")
	n, err := newHandshake(g.note())
	must.OK(t, err)
	defer n.close()
	must.OK(t, n.publish(g.image))
	for range 2 {
		if err := g.start().Run(); err == nil {
			t.Error("the guard has not failed")
		}
	}
	if err := n.revoke(); !errors.Is(err, sandbox.ErrRan) {
		t.Errorf("got %v", err)
	}
}

// waits tells whether a process waits for the lock of a file: proc_locks(5) marks those that do.
func waits(t *testing.T, f *os.File) bool {
	t.Helper()
	i, err := f.Stat()
	must.OK(t, err)
	inode := fmt.Sprintf(":%d ", i.Sys().(*syscall.Stat_t).Ino)
	locks, err := os.ReadFile("/proc/locks")
	must.OK(t, err)
	for line := range strings.Lines(string(locks)) {
		if strings.Contains(line, " -> ") && strings.Contains(line, inode) {
			return true
		}
	}
	return false
}

// TestGuardComesLate: one that waited for a note that nobody stands by any more begins
// nothing, and takes nothing back of what the next has begun.
func TestGuardComesLate(t *testing.T) {
	g := newGuarded(t, "[ $verb = kill ] || sleep 1")
	old, err := newHandshake(g.note())
	must.OK(t, err)
	defer old.close()
	late := g.start()
	must.OK(t, late.Start())
	must.Soon(t, "the late one to wait", func() bool { return waits(t, old.f) })
	next, err := newHandshake(g.note())
	must.OK(t, err)
	defer next.close()
	must.OK(t, next.publish(g.image))
	begins := g.start()
	must.OK(t, begins.Start())
	must.Soon(t, "the other one to begin", func() bool { return g.verbs() == "restore" })
	old.unlock()
	if err := late.Wait(); err == nil {
		t.Error("the late one has begun")
	}
	if err := next.revoke(); !errors.Is(err, sandbox.ErrRan) {
		t.Errorf("got %v", err)
	}
	if err := begins.Wait(); err != nil {
		t.Error(err)
	}
	if got := g.verbs(); got != "restore kill" {
		t.Errorf("the runtime was asked for %q", got)
	}
}
