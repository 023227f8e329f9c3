package env

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// tick is the unit of times in proc_pid_stat(5) on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// Family is a process and its descendants. One that has ended meanwhile is left out.
func Family(pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	children := map[string][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// The second field after the name is the parent's.
		if fields, err := statFields(pid); err == nil {
			children[string(fields[1])] = append(children[string(fields[1])], pid)
		}
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[strconv.Itoa(all[i])]...)
	}
	return all, err
}

// statFields are those of proc_pid_stat(5) after the name, which may hold
// anything but ends at the last parenthesis.
func statFields(pid int) ([][]byte, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(fields) < 13 {
		return nil, fmt.Errorf("%s has %d fields", path, len(fields))
	}
	return fields, nil
}

// CPUOf is what processes have used so far, user and system.
func CPUOf(pids ...int) (total time.Duration, err error) {
	for _, pid := range pids {
		fields, err := statFields(pid)
		if err != nil {
			return 0, err
		}
		for _, f := range fields[11:13] {
			n, err := strconv.ParseUint(string(f), 10, 63)
			if err != nil {
				return 0, fmt.Errorf("the times of process %d: %w", pid, err)
			}
			total += time.Duration(n) * tick
		}
	}
	return total, nil
}

// PeakOf is the most memory that each of processes has had resident, together, in bytes
// (VmHWM of proc_pid_status(5)).
func PeakOf(pids ...int) (total int64, err error) {
	for _, pid := range pids {
		path := fmt.Sprintf("/proc/%d/status", pid)
		raw, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		n, err := kilobytes(raw, "VmHWM:")
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		total += n << 10
	}
	return total, nil
}
