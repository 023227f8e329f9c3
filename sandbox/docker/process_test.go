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
