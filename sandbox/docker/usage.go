package docker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"sallyport/sandbox"
)

var _ sandbox.Meter = (*Runtime)(nil)

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

// cpuTime is that of the cgroup of a process: gVisor's kernel, and all that it runs,
// are in the container's. Mounts are looked for, since either version of cgroups
// may be anywhere (cgroups(7)).
func cpuTime(pid int) (time.Duration, error) {
	own, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return 0, err
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return 0, err
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
			switch {
			case m[2] == "cgroup" && strings.Contains(","+f[1]+",", ",cpuacct,") && strings.Contains(","+m[3]+",", ",cpuacct,"):
				text, err := os.ReadFile(filepath.Join(m[1], f[2], "cpuacct.usage"))
				if err != nil {
					continue
				}
				n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
				return time.Duration(n), err
			case m[2] == "cgroup2" && f[1] == "":
				text, err := os.ReadFile(filepath.Join(m[1], f[2], "cpu.stat"))
				if err != nil {
					continue
				}
				for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
					if v, ok := strings.CutPrefix(s.Text(), "usage_usec "); ok {
						n, err := strconv.ParseInt(v, 10, 64)
						return time.Duration(n) * time.Microsecond, err
					}
				}
			}
		}
	}
	return 0, errors.New("its cgroup has no processor time")
}
