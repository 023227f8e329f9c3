package docker

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Whoever starts a process under the engine's command line is not taken for it.
func TestFindBelievesOwnProcessesOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root to start a process of another user")
	}
	for name, tt := range map[string]struct {
		uid   uint32
		found bool
	}{"root's": {0, true}, "somebody's": {65534, false}} {
		t.Run(name, func(t *testing.T) {
			args := []string{fmt.Sprintf("600.%d", os.Getpid())} // that nobody else gives
			cmd := exec.Command("/bin/sleep", args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tt.uid}, Pdeathsig: syscall.SIGKILL}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
			defer cmd.Process.Kill()
			// Its descriptors are closed, which Start waits for, before it has its
			// command line.
			line := fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid)
			for b, err := os.ReadFile(line); err == nil && len(b) == 0; b, err = os.ReadFile(line) {
				time.Sleep(time.Millisecond)
			}
			p := &process{name: "sleep", path: "/bin/sleep", args: args}
			if got := p.find(); (got == cmd.Process.Pid) != tt.found || !tt.found && got != 0 {
				t.Errorf("found %d, started %d", got, cmd.Process.Pid)
			}
		})
	}
}

// breeds in its environment has this program do no more than to breed.
const breeds = "SALLYPORT_TEST_BREEDS"

func breed() {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		_ = exec.Command("/bin/true").Run()
	}
}

// A process that starts others is found, and not one of those before it is another
// program, though their numbers may be lower.
func TestFindsNoChild(t *testing.T) {
	args := []string{fmt.Sprint("of-", os.Getpid())}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), breeds+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	p := &process{name: "breeder", path: os.Args[0], args: args}
	for p.find() == 0 {
		time.Sleep(time.Millisecond)
	}
	for range 300 {
		// The next process has a lower number, if we may say so.
		_ = os.WriteFile("/proc/sys/kernel/ns_last_pid", fmt.Append(nil, cmd.Process.Pid-50), 0o644)
		if got := p.find(); got != cmd.Process.Pid {
			t.Fatalf("found %d, started %d", got, cmd.Process.Pid)
		}
	}
}
