package docker

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Leftovers lists what of a private engine runs or is mounted on this host: names
// of its processes and mount points.
func Leftovers(cfg EngineConfig) ([]string, error) {
	l := layout(cfg)
	var all []string
	for _, part := range []func() (*part, error){l.containerd, l.dockerd} {
		p, err := part()
		if err != nil {
			continue // it is not installed
		}
		if p.Find() != 0 {
			all = append(all, p.Name)
		}
	}
	for _, dir := range []string{l.run(), l.dir()} {
		points, err := MountedBelow(dir)
		if err != nil {
			return nil, err
		}
		all = append(all, points...)
	}
	return all, nil
}

// MountedBelow lists the mount points below a folder, the outermost first.
func MountedBelow(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		// proc_pid_mountinfo(5): blanks and backslashes are octal escapes there.
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], filepath.Clean(dir)+"/") {
			points = append(points, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(f[1]))
		}
	}
	return points, nil
}

// unmountBelow takes away what is left mounted below a folder, the innermost
// first: gVisor keeps an empty network namespace in its root folder
// (runsc/container), and an engine that was killed leaves file systems of
// containers behind. Either would keep the folder from being removed.
func unmountBelow(dir string) error {
	points, err := MountedBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range slices.Backward(points) {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, &os.PathError{Op: "unmount", Path: p, Err: err})
		}
	}
	return errors.Join(errs...)
}
