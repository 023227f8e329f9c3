package docker

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// unmountBelow takes away what is left mounted below a folder, the innermost
// first: gVisor keeps an empty network namespace in its root folder
// (runsc/container), and an engine that was killed leaves file systems of
// containers behind. Either would keep the folder from being removed.
func unmountBelow(dir string) error {
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		// proc_pid_mountinfo(5): blanks and backslashes are octal escapes there.
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], filepath.Clean(dir)+"/") {
			points = append(points, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(f[1]))
		}
	}
	var errs []error
	for _, p := range slices.Backward(points) {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, &os.PathError{Op: "unmount", Path: p, Err: err})
		}
	}
	return errors.Join(errs...)
}
