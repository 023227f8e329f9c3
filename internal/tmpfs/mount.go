// Package tmpfs keeps files in memory that must never be on a disk, and shares that
// memory out among owners.
package tmpfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount makes dir a file system of its own in memory that is never swapped out
// (tmpfs with noswap, Linux 6.4: Documentation/filesystems/tmpfs.rst), which only
// its owner can enter. One that Mount made before is left as it is, with what is
// in it. It holds up to half of the machine's memory, which is what a tmpfs does
// unless told otherwise; see Budget.
func Mount(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ours, err := mounted(dir)
	if err != nil || ours {
		return err
	}
	err = unix.Mount("sallyport", dir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOEXEC|unix.MS_NOATIME, "mode=0700,noswap")
	if err != nil {
		return fmt.Errorf("making a folder in memory at %s: %w: Linux 6.4 or newer is needed", dir, err)
	}
	return nil
}

// Unmount gives the memory back, with what is in it. A dir that is not mounted is
// left as it is.
func Unmount(dir string) error {
	ours, err := mounted(dir)
	if err != nil || !ours {
		return err
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return &os.PathError{Op: "unmount", Path: dir, Err: err}
	}
	return nil
}

// mounted reports whether dir is a file system that Mount has made.
func mounted(dir string) (bool, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return false, err
	}
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != "sallyport" || f[2] != "tmpfs" {
			continue
		}
		// proc_pid_mountinfo(5): blanks and backslashes are octal escapes there.
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(f[1])
		if at == dir && strings.Contains(","+f[3]+",", ",noswap,") {
			return true, nil
		}
	}
	return false, nil
}
