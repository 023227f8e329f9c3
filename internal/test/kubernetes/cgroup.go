package kubernetes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// groupRoots are the mounted hierarchies of cgroups: one, or one for each controller.
func groupRoots() ([]string, error) {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{"/sys/fs/cgroup"}, nil
	}
	return filepath.Glob("/sys/fs/cgroup/*")
}

// makeGroup makes a cgroup in each hierarchy.
func makeGroup(name string) error {
	roots, err := groupRoots()
	if err != nil {
		return err
	}
	for _, root := range roots {
		dir := root
		for _, part := range strings.Split(name, "/") {
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			// Controllers are given to children by name (cgroup v2); some may not be there.
			for _, controller := range []string{"cpu", "cpuset", "io", "memory", "pids"} {
				_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
			}
			// A cgroup of cpuset has no CPU of its own at first (cgroup v1).
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if value, err := os.ReadFile(filepath.Join(parent, file)); err == nil {
					if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// removeGroup takes a cgroup away with those below it. Their processes have ended.
func removeGroup(name string) error {
	roots, err := groupRoots()
	if err != nil {
		return err
	}
	var all error
	for _, root := range roots {
		all = errors.Join(all, removeTree(filepath.Join(root, name)))
	}
	return all
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return unix.Rmdir(dir)
}
