package process

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// breeds in its environment has this program do no more than to breed.
const breeds = "SALLYPORT_TEST_BREEDS"

func TestMain(m *testing.M) {
	if os.Getenv(breeds) != "" {
		breed()
		return
	}
	os.Exit(m.Run())
}

func breed() {
	for { // until it is killed
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
	must.OK(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	p := &Process{Name: "breeder", Path: os.Args[0], Args: args}
	for p.Find() == 0 {
		time.Sleep(time.Millisecond)
	}
	for range 300 {
		// The next process has a lower number, if we may say so.
		_ = os.WriteFile("/proc/sys/kernel/ns_last_pid", fmt.Append(nil, cmd.Process.Pid-50), 0o644)
		if got := p.Find(); got != cmd.Process.Pid {
			t.Fatalf("found %d, started %d", got, cmd.Process.Pid)
		}
	}
}

func TestTrim(t *testing.T) {
	dir := t.TempDir()
	p := Process{Log: filepath.Join(dir, "log")}
	f, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must.OK(t, err)
	defer f.Close()
	must.OK(t, f.Truncate(logLimit+1))
	for range 3 {
		must.OK(t, p.TrimLog())
	}
	io.WriteString(f, "after")
	if got, err := os.ReadFile(p.Log); err != nil || string(got) != "after" {
		t.Errorf("log: got %d bytes, %v, want what came after", len(got), err)
	}
	if info, err := os.Stat(p.Log + ".1"); err != nil || info.Size() != logLimit {
		t.Errorf("old log: got %v, %v, want %d bytes", info, err, logLimit)
	}
}
