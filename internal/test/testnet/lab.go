// Package testnet makes the network that tests and the demo need: hosts in network
// namespaces of their own with documentation addresses (RFC 5737, RFC 3849),
// and on them listeners, DNS, HTTPS and a counter of the packets that arrive.
// The product never uses it.
//
// Nothing has a name in the system: a host's namespace is held by a file
// descriptor of this process, so that the kernel takes it and its devices away
// even after kill -9.
package testnet

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

// Privileged skips a test that needs root for an ordinary user. Where CI is
// true it fails instead: what CI skips, nobody runs.
func Privileged(t testing.TB) {
	t.Helper()
	must.Root(t)
}

const isolated = "SALLYPORT_LAB_ISOLATED"

// Isolate moves the test process into a network namespace of its own, with lo
// up and nothing else, so that packages tested at the same time may use the
// same addresses. It has mounts of its own too, with a /sys that shows this
// network's devices. Call it first in TestMain. It starts the test binary anew
// in place, since only that takes all of its threads along. For an ordinary
// user it does nothing.
func Isolate() error {
	if os.Geteuid() != 0 {
		return nil
	}
	if os.Getenv(isolated) == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("making namespaces: %w", err)
		}
		if err := freshSys(); err != nil {
			return fmt.Errorf("mounting /sys anew: %w", err)
		}
		// execve(2): the other threads end, this one's namespaces stay.
		return unix.Exec(self, os.Args, append(os.Environ(), isolated+"=1"))
	}
	if err := os.Unsetenv(isolated); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// freshSys mounts a /sys of this network namespace, since sysfs shows the
// devices of the one it was mounted in, and puts the control groups back.
func freshSys() error {
	const groups = "/sys/fs/cgroup"
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	aside, err := os.MkdirTemp("", "sallyport-lab-")
	if err != nil {
		return err
	}
	defer os.Remove(aside)
	if err := unix.Mount(groups, aside, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return err
	}
	if err := unix.Mount(aside, groups, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Unmount(aside, unix.MNT_DETACH)
}
