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
	"time"

	"sallyport/internal/test/must"
	"sallyport/sandbox/docker/process"
)

// TestBelievesOwnProcessesOnly: whoever starts a process under the command line of the
// engine, of a shim or of what writes memory down is not taken for it.
func TestBelievesOwnProcessesOnly(t *testing.T) {
	must.Root(t)
	setuid := setuidShell(t)
	for name, tt := range map[string]struct {
		shell string
		uid   uint32
		flags uintptr
		found bool
	}{
		"ours":                     {"/bin/sh", 0, 0, true},
		"somebody's":               {"/bin/sh", 65534, 0, false},
		"somebody's, set-user-ID":  {setuid, 65534, 0, false},
		"of another PID namespace": {"/bin/sh", 0, syscall.CLONE_NEWPID, false},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.shell == "" {
				must.Lack(t, "no set-user-ID program has an effect here")
			}
			const socket = "/run/of-no-containerd.sock"
			container := fmt.Sprint("of-", os.Getpid()) // that nobody else gives
			cmd := exec.Command(tt.shell, "-p", "-c", "read line", "checkpoint", "-id", container, "-address", socket)
			cmd.Args[0] = "containerd-shim-of-none"
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tt.uid}, Cloneflags: tt.flags, Pdeathsig: syscall.SIGKILL}
			in, err := cmd.StdinPipe()
			must.OK(t, err)
			defer in.Close()
			must.OK(t, cmd.Start())
			pid := cmd.Process.Pid
			over := make(chan error, 1)
			go func() { over <- cmd.Wait() }()
			// Its descriptors are closed, which Start waits for, before it has its
			// command line.
			line := fmt.Sprintf("/proc/%d/cmdline", pid)
			for b, err := os.ReadFile(line); err == nil && len(b) == 0; b, err = os.ReadFile(line) {
				time.Sleep(time.Millisecond)
			}
			want := 0
			if tt.found {
				want = pid
			}
			p := &process.Process{Name: "shim", Path: "/bin/" + cmd.Args[0], Args: cmd.Args[1:]}
			if got := p.Find(); got != want {
				t.Errorf("for the engine: found %d, started %d", got, pid)
			}
			if got := checkpointWriter(container); got != want {
				t.Errorf("for what writes: found %d, started %d", got, pid)
			}
			if killStaleShim(container, socket+".other") || killStaleShim(container+"-other", socket) {
				t.Error("another's was ended")
			}
			if got := killStaleShim(container, socket); got != tt.found {
				t.Errorf("for a shim: %v", got)
			}
			if !tt.found {
				select {
				case err := <-over:
					t.Fatalf("it was ended: %v", err)
				case <-time.After(100 * time.Millisecond):
				}
				_ = cmd.Process.Kill()
			}
			<-over
		})
	}
}

// setuidShell gives whoever calls it our effective rights, as su(1) does, under any
// command line.
func setuidShell(t *testing.T) string {
	t.Helper()
	shell, err := os.ReadFile("/bin/sh")
	must.OK(t, err)
	dir, err := os.MkdirTemp("", "")
	must.OK(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "sh")
	err = errors.Join(os.WriteFile(file, shell, 0o700), os.Chmod(file, os.ModeSetuid|0o755), os.Chmod(dir, 0o711))
	must.OK(t, err)
	out, err := (&exec.Cmd{Path: file, Args: []string{"sh", "-p", "-c", "id -u"}, SysProcAttr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534}}}).Output()
	if err != nil || strings.TrimSpace(string(out)) != "0" {
		return "" // as below a mount without them
	}
	return file
}
