package env

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Memory of processes, in bytes (Documentation/filesystems/proc.rst, smaps_rollup).
type Memory struct {
	// Resident counts what processes share in each of them: the file of a
	// program that two run, twice.
	Resident int64
	// Proportional counts it once, a share in each of those that have it.
	Proportional int64
}

// MemoryOf adds up what processes have now.
func MemoryOf(pids ...int) (m Memory, err error) {
	for _, pid := range pids {
		path := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
		raw, err := os.ReadFile(path)
		if err != nil {
			return Memory{}, err
		}
		for name, to := range map[string]*int64{"Rss:": &m.Resident, "Pss:": &m.Proportional} {
			n, err := kilobytes(raw, name)
			if err != nil {
				return Memory{}, fmt.Errorf("%s: %w", path, err)
			}
			*to += n << 10
		}
	}
	return m, nil
}

// kilobytes is the number in a line that begins with a name.
func kilobytes(text []byte, name string) (int64, error) {
	for line := range bytes.Lines(text) {
		if kb, ok := bytes.CutPrefix(line, []byte(name)); ok {
			return strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(kb), []byte("kB")))), 10, 64)
		}
	}
	return 0, fmt.Errorf("it does not say %s", name)
}
