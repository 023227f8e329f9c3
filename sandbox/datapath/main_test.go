package datapath

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

// The tests make bridges, routes and rules. They run in a network and a mount
// namespace of their own, which plays the host: the machine's stay untouched.
const (
	envInside = "SALLYPORT_DATAPATH_INSIDE"
	envDaemon = "SALLYPORT_DATAPATH_DAEMON"
	envKnock  = "SALLYPORT_DATAPATH_KNOCK"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envDaemon) != "":
		if err := daemon(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case os.Getenv(envKnock) != "":
		if err := knock(os.Getenv(envKnock)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case os.Getenv(envInside) != "":
		if err := furnish(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		goleak.VerifyTestMain(m)
	case os.Geteuid() == 0:
		c := inside(os.Args[1:]...)
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := c.Run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		goleak.VerifyTestMain(m)
	}
}

// inside is this program again, in namespaces of its own.
func inside(args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Env = append(os.Environ(), envInside+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	return c
}

// furnish hides the machine's bpffs, so that Open has to mount one.
func furnish() error {
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", bpffs, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("hiding %s: %w", bpffs, err)
	}
	return nil
}

// needRoot skips for an ordinary user; where CI promises root it fails.
func needRoot(t testing.TB) {
	t.Helper()
	must.Root(t)
}
