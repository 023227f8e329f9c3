package docker

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

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
