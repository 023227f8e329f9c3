package docker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"
)

// accountFiles are what the engine itself reads of a container's files, as the host's
// root, each time that it starts it: it looks the user up that the container runs as
// (moby, oci_linux.go: getUser). A folder there, a pipe, or a line without an end keeps
// the container from starting, a pipe the engine from doing anything with it, and a user
// called "0" makes another of root.
var accountFiles = []string{"etc/passwd", "etc/group"}

// mostAccounts is the size of the largest of them that is read, in bytes.
const mostAccounts = 1 << 20

// checkAccounts renames what is none of these in what a sandbox has written (see aside):
// the image's shows again. It follows no link. The sandbox must not run.
func (r *Runtime) checkAccounts(info container.InspectResponse) error {
	layer := info.Config.Labels[labelLayer]
	if layer == "" {
		of, err := engineLayerDir(info)
		if err != nil {
			return nil // nobody knows where its files lie
		}
		layer = of
	}
	root, err := os.OpenRoot(filepath.Join(layer, "diff"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has not begun
	}
	if err != nil {
		return err
	}
	defer root.Close()
	for _, p := range append([]string{"etc"}, accountFiles...) {
		is, err := root.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || err == nil && is.Mode()&fs.ModeCharDevice != 0 { // removed, see Layer
			continue
		}
		if err != nil {
			return fmt.Errorf("looking at /%s: %w", p, err)
		}
		if p == "etc" && is.IsDir() || p != "etc" && is.Mode().IsRegular() && is.Size() <= mostAccounts && wellFormed(root, p) {
			continue
		}
		to, err := moveAside(root, p)
		if err != nil {
			return fmt.Errorf("moving /%s aside: %w", p, err)
		}
		r.cfg.Log.Warn("a file of accounts that the engine cannot read was moved aside", "sandbox", info.Config.Labels[labelName], "path", "/"+p, "to", "/"+to)
	}
	return nil
}

// wellFormed says whether the engine finds root in a file of accounts, or nobody.
func wellFormed(root *os.Root, p string) bool {
	f, err := root.Open(p)
	if err != nil {
		return false
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, mostAccounts+1))
	if err != nil || len(content) > mostAccounts {
		return false
	}
	for line := range bytes.Lines(content) {
		name, _, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		if len(line) > 32<<10 || string(name) == "0" {
			return false
		}
	}
	return true
}

// moveAside renames a file, to a name that ends in ".aside-1", or in another number: the
// sandbox may have taken millions of them. Of a name that is too long the beginning is
// kept.
func moveAside(root *os.Root, p string) (to string, err error) {
	const longest = 255 - len(".aside-18446744073709551615")
	dir, name := filepath.Split(p)
	for n := uint64(1); ; n = rand.Uint64() {
		to := dir + fmt.Sprintf("%s.aside-%d", name[:min(len(name), longest)], n)
		if _, err := root.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			return to, root.Rename(p, to)
		} else if err != nil {
			return "", err
		}
	}
}

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
