package docker

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

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
