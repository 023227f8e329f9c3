package jail

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// memoryGroups is what the names of our control groups begin with; the number of the
// process that made one follows.
const memoryGroups = "sallyport-gateway-"

// memoryFiles are the limit's in the two versions of control groups, as the kernel documents
// them (admin-guide/cgroup-v1/memory.rst, admin-guide/cgroup-v2.rst).
var memoryFiles = map[bool]string{false: "memory.limit_in_bytes", true: "memory.max"}

// LimitMemory puts a process into a control group of its own, which may have so many bytes of memory, and
// swaps nothing. Beyond them the kernel ends the process. The group is one of this process's,
// or, where the second version of control groups has processes beside it, of the hierarchy's root.
func LimitMemory(pid int, bytes int64) error {
	parents, second, err := memoryParents()
	if err != nil {
		return err
	}
	var failed error
	for _, parent := range parents {
		err := limitMemory(parent, second, pid, bytes)
		if err == nil {
			return nil
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

func limitMemory(parent string, second bool, pid int, bytes int64) error {
	removeEmptyGroups(parent)
	dir := filepath.Join(parent, memoryGroups+strconv.Itoa(os.Getpid()))
	if second {
		// It fails in a group with processes, but at the root.
		_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0)
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	text := []byte(strconv.FormatInt(bytes, 10))
	err := os.WriteFile(filepath.Join(dir, memoryFiles[second]), text, 0)
	swap := "memory.memsw.limit_in_bytes" // with what is no swap
	if second {
		swap, text = "memory.swap.max", []byte("0")
	}
	if serr := os.WriteFile(filepath.Join(dir, swap), text, 0); err == nil && !errors.Is(serr, os.ErrNotExist) && !errors.Is(serr, unix.EACCES) {
		err = serr // the kernel counts swap
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	}
	if err != nil {
		_ = os.Remove(dir) // unless another process is in it
	}
	return err
}

// removeEmptyGroups removes the groups of processes that have ended. The kernel removes none that has
// a process.
func removeEmptyGroups(parent string) {
	old, _ := filepath.Glob(filepath.Join(parent, memoryGroups+"*"))
	for _, dir := range old {
		if !strings.HasSuffix(dir, "-"+strconv.Itoa(os.Getpid())) {
			_ = unix.Rmdir(dir)
		}
	}
}

// MemoryLimits says why LimitMemory would fail, as far as can be seen without trying.
func MemoryLimits() error {
	parents, _, err := memoryParents()
	if err != nil {
		return err
	}
	for _, p := range parents {
		if err = unix.Access(p, unix.W_OK); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s cannot be written to: %w", parents[0], err)
}

// memoryParents are the folders in which a group for memory can be made, the best first.
func memoryParents() (dirs []string, second bool, err error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, false, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, false, err
	}
	for line := range bytes.Lines(mounts) {
		before, after, ok := strings.Cut(strings.TrimSpace(string(line)), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		root, point := left[3], left[4]
		switch kind := right[0]; {
		case kind == "cgroup" && slices.Contains(strings.Split(right[2], ","), "memory"):
			return below(point, root, groupOf(string(own), "memory")), false, nil
		case kind == "cgroup2":
			controllers, _ := os.ReadFile(filepath.Join(point, "cgroup.controllers"))
			if slices.Contains(strings.Fields(string(controllers)), "memory") {
				dirs, second = below(point, root, groupOf(string(own), "")), true // unless the first version has it
			}
		}
	}
	if dirs == nil {
		return nil, false, errors.New("no control groups for memory are mounted")
	}
	return dirs, second, nil
}

// groupOf is the group of this process by a controller, the second version's for none
// (cgroups(7)).
func groupOf(own, controller string) string {
	for line := range strings.Lines(own) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && slices.Contains(strings.Split(f[1], ","), controller) {
			return f[2]
		}
	}
	return "/"
}

// below is where a group is, of a hierarchy whose root at that point is another's, and that point.
func below(point, root, group string) []string {
	if rest, ok := strings.CutPrefix(group, strings.TrimSuffix(root, "/")); ok && rest != "" && rest != "/" {
		if dir := filepath.Join(point, rest); dir != point {
			return []string{dir, point}
		}
	}
	return []string{point}
}
