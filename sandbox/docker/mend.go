package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
)

// blockedByFiles tells whether something in a sandbox's files may be why it does not start: the
// engine has no type for what it says of that (moby, SetupWorkingDirectory).
func blockedByFiles(err error) bool {
	said := err.Error()
	return !strings.Contains(said, unguarded) && slices.ContainsFunc(blockedMessages, func(s string) bool { return strings.Contains(said, s) })
}

// blockedMessages is what the engine says of a container that does not start: its runtime
// makes some of the places for mounts when that is created, and some as it starts.
var blockedMessages = []string{"OCI runtime create failed", "OCI runtime start failed", "Cannot mkdir"}

// clearMountPoints makes a container startable whose root has put something in the way of what is
// mounted in it: a file or link in the place of a folder, a folder in that of a file.
// That is renamed (see aside), in what the sandbox has written only. It follows no link
// of that, and returns the paths that it has renamed. The sandbox must not run.
func clearMountPoints(info container.InspectResponse) (moved []string, err error) {
	layer := info.Config.Labels[labelLayer]
	if layer == "" {
		return nil, nil
	}
	root, err := os.OpenRoot(filepath.Join(layer, "diff"))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	points := map[string]bool{info.Config.WorkingDir: true} // and whether it is a folder
	for _, name := range engineFiles {
		points["/etc/"+name] = false
	}
	for _, m := range info.Mounts {
		source, err := os.Stat(m.Source)
		points[m.Destination] = err == nil && source.IsDir()
	}
	for point, folder := range points {
		names := strings.Split(strings.Trim(path.Clean("/"+point), "/"), "/")
		for i := range names {
			p := filepath.Join(names[:i+1]...)
			if p == "" {
				break
			}
			is, err := root.Lstat(p)
			if errors.Is(err, fs.ErrNotExist) {
				break // as the image has it
			}
			if err != nil {
				return moved, fmt.Errorf("looking at /%s: %w", p, err)
			}
			if is.Mode()&os.ModeCharDevice != 0 {
				break // it has been removed, and can be made
			}
			want := folder || i+1 < len(names)
			if want && is.IsDir() || !want && is.Mode().IsRegular() {
				continue
			}
			if _, err := moveAside(root, p); err != nil {
				return moved, fmt.Errorf("moving /%s aside: %w", p, err)
			}
			moved = append(moved, "/"+p)
			break
		}
	}
	slices.Sort(moved)
	return moved, nil
}
