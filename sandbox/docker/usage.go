package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"sallyport/sandbox"
)

// Usage reads the container's cgroup and the counters of its cable.
func (r *Runtime) Usage(ctx context.Context, id string) (sandbox.Usage, error) {
	st, err := r.Status(ctx, id)
	if err != nil {
		return sandbox.Usage{}, err
	}
	if !st.Running {
		return sandbox.Usage{}, fmt.Errorf("sandbox %s is not running", id)
	}
	cpu, err := cpuTime(st.PID)
	if err != nil {
		return sandbox.Usage{}, fmt.Errorf("reading the processor time of sandbox %s: %w", id, err)
	}
	link, err := netlink.LinkByIndex(st.Link)
	if err != nil {
		return sandbox.Usage{}, fmt.Errorf("reading the traffic of sandbox %s: %w", id, err)
	}
	u := sandbox.Usage{CPU: cpu}
	if s := link.Attrs().Statistics; s != nil {
		u.Sent = s.RxBytes // what comes in at this end
	}
	return u, nil
}

// Resident is what the container's cgroup has of memory that no file backs, and of
// memory that is shared, which gVisor keeps that of the sandbox in: both, with what
// is swapped out of them, are in a checkpoint, but for what gVisor itself takes.
func (r *Runtime) Resident(ctx context.Context, id string) (int64, error) {
	info, err := r.inspect(ctx, id)
	if err != nil {
		return 0, err
	}
	if !info.State.Running {
		return 0, fmt.Errorf("sandbox %s is not running", id)
	}
	n, err := resident(info.State.Pid)
	if err != nil {
		return 0, fmt.Errorf("reading the memory of sandbox %s: %w", id, err)
	}
	return n, nil
}

// resident is Resident of the container of a process.
func resident(pid int) (int64, error) {
	text, second, err := readCgroup(pid, "memory", "memory.stat", "memory.stat")
	if err != nil {
		return 0, err
	}
	keys := []string{"total_rss", "total_shmem", "total_swap"} // cgroup-v1/memory.rst; "total_": with all groups below
	if second {
		keys = []string{"anon", "shmem"} // admin-guide/cgroup-v2.rst
	}
	var n int64
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.Contains(keys, key) {
			bytes, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return 0, err
			}
			n += bytes
		}
	}
	if swapped, _, err := readCgroup(pid, "", "", "memory.swap.current"); err == nil { // not where nothing is swapped
		bytes, err := strconv.ParseInt(string(bytes.TrimSpace(swapped)), 10, 64)
		if err != nil {
			return 0, err
		}
		n += bytes
	}
	if n == 0 {
		return 0, errors.New("its cgroup says that it has none")
	}
	return n, nil
}

// cpuTime is that of the cgroup of a process: gVisor's kernel, and all that it runs,
// are in the container's.
func cpuTime(pid int) (time.Duration, error) {
	text, v2, err := readCgroup(pid, "cpuacct", "cpuacct.usage", "cpu.stat")
	if err != nil {
		return 0, err
	}
	if !v2 {
		n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		return time.Duration(n), err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "usage_usec "); ok {
			n, err := strconv.ParseInt(v, 10, 64)
			return time.Duration(n) * time.Microsecond, err
		}
	}
	return 0, errors.New("its cgroup has no processor time")
}

// readCgroup reads a file of the cgroup of a process, found by cgroupFile.
func readCgroup(pid int, controller, v1, v2 string) (text []byte, second bool, err error) {
	path, second, err := cgroupFile(pid, controller, v1, v2)
	if err != nil {
		return nil, second, err
	}
	text, err = os.ReadFile(path)
	return text, second, err
}

// cgroupFile is a file of the cgroup of a process: one of a controller's in the first
// version of cgroups, or one in the second. Mounts are looked for, since either
// version may be anywhere (cgroups(7)).
func cgroupFile(pid int, controller, v1, v2 string) (path string, second bool, err error) {
	own, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", false, err
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(string(own)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for mount := range strings.Lines(string(mounts)) {
			m := strings.Fields(mount)
			if len(m) < 4 {
				continue
			}
			has := func(options string) bool { return strings.Contains(","+options+",", ","+controller+",") }
			file := ""
			switch {
			case m[2] == "cgroup" && controller != "" && has(f[1]) && has(m[3]):
				file = v1
			case m[2] == "cgroup2" && f[1] == "":
				file = v2
			default:
				continue
			}
			path := filepath.Join(m[1], f[2], file)
			if _, err := os.Stat(path); err == nil {
				return path, m[2] == "cgroup2", nil
			}
		}
	}
	return "", false, fmt.Errorf("its cgroup has neither %s nor %s", v1, v2)
}
