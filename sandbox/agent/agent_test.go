package agent_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// sandbox is an agent that is PID 1 of a namespace.
type sandbox struct {
	cmd  *exec.Cmd
	done chan error
}

func start(t *testing.T) *sandbox {
	t.Helper()
	must.Root(t)
	path := filepath.Join(t.TempDir(), "agent")
	build := exec.Command("go", "build", "-o", path, "sallyport/cmd/sallyport-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the agent: %v: %s", err, out)
	}
	s := &sandbox{
		cmd:  exec.Command("sh", "-c", `mount --make-rprivate / && mount -t proc proc /proc && exec "$0"`, path),
		done: make(chan error, 1),
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	must.OK(t, s.cmd.Start())
	go func() { s.done <- s.cmd.Wait() }()
	t.Cleanup(func() { s.cmd.Process.Kill() })
	for !strings.HasPrefix(s.proc("cmdline"), path) {
		time.Sleep(5 * time.Millisecond)
	}
	// It has its signal handlers before it reaps.
	orphan := strings.TrimSpace(s.sh(t, "sleep 0.01 >/dev/null 2>&1 & echo $!"))
	for path := "root/proc/" + orphan + "/stat"; s.proc(path) != ""; {
		time.Sleep(5 * time.Millisecond)
	}
	return s
}

// proc reads a file of the agent's in /proc, seen from outside.
func (s *sandbox) proc(file string) string {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), file))
	return string(b)
}

// sh runs a script inside, with an environment of its own.
func (s *sandbox) sh(t *testing.T, script string, env ...string) string {
	t.Helper()
	cmd := exec.Command("nsenter", "-t", strconv.Itoa(s.cmd.Process.Pid), "-p", "-m", "sh", "-c", script)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("script %q: %v: %s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (s *sandbox) ends(t *testing.T, limit time.Duration) bool {
	t.Helper()
	select {
	case err := <-s.done:
		if err != nil {
			t.Errorf("the agent ended with %v", err)
		}
		return true
	case <-time.After(limit):
		return false
	}
}

func TestReaps(t *testing.T) {
	s := start(t)
	// Orphans of every order: each one's parent is gone when it ends.
	s.sh(t, "for i in 1 2 3 4 5 6 7 8 9; do (setsid sh -c 'sleep 0.1' & ) ; done >/dev/null 2>&1")
	must.Soon(t, "the end of all of them, and of each one's entry", func() bool {
		return s.sh(t, "cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^sleep$' || :") == "0" &&
			s.sh(t, "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l") == "0"
	})
}

// Signals that mean nothing to the agent do not end it, and are ignored neither
// by it nor, with that, by the commands that it starts.
func TestIgnoresNothing(t *testing.T) {
	s := start(t)
	var ignored uint64
	for line := range strings.Lines(s.proc("status")) {
		if mask, found := strings.CutPrefix(line, "SigIgn:"); found {
			var err error
			if ignored, err = strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2} {
		if ignored&(1<<(sig-1)) != 0 { // others may be by who runs the tests
			t.Errorf("%v is ignored", sig)
		}
		for range 3 {
			must.OK(t, s.cmd.Process.Signal(sig))
		}
	}
	if s.ends(t, 500*time.Millisecond) {
		t.Error("it has ended")
	}
}

func TestTerminates(t *testing.T) {
	for name, tt := range map[string]struct {
		script string
		ends   bool
	}{
		"alone":            {"true", true},
		"willing":          {"setsid sleep 600 >/dev/null 2>&1 &", true},
		"stopped process":  {"setsid sh -c 'kill -STOP $$; sleep 600' >/dev/null 2>&1 &", true},
		"deaf to the wish": {"setsid sh -c 'trap \"\" TERM; : >$READY; while :; do sleep 0.1; done' >/dev/null 2>&1 & until [ -e $READY ]; do sleep 0.01; done", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.sh(t, tt.script, "READY="+filepath.Join(t.TempDir(), "ready"))
			time.Sleep(200 * time.Millisecond)
			s.cmd.Process.Signal(syscall.SIGTERM)
			limit := 2 * time.Second
			if tt.ends {
				limit = time.Minute
			}
			if got := s.ends(t, limit); got != tt.ends {
				t.Errorf("ended: %t, want %t", got, tt.ends)
			}
		})
	}
}

func TestIgnores(t *testing.T) {
	s := start(t)
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2} {
		s.cmd.Process.Signal(sig)
	}
	if s.ends(t, 300*time.Millisecond) {
		t.Error("a stray signal ended the sandbox")
	}
}

func TestSleeps(t *testing.T) {
	s := start(t)
	// utime and stime are fields 14 and 15 of proc_pid_stat(5), in 10 ms.
	ticks := func() string { return strings.Join(strings.Fields(s.proc("stat"))[13:15], " ") }
	for attempt := 1; ; attempt++ { // what it does first may last
		before := ticks()
		time.Sleep(2 * time.Second)
		after := ticks()
		if after == before {
			return
		}
		if attempt == 5 {
			t.Fatalf("idle, it went from %s to %s ticks", before, after)
		}
	}
}
