package process

import (
	"bytes"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Commands yields the processes whose command lines are believed, with the words of each:
// those of this user in this process's PID namespace. Anybody else on this host, and
// anything in a container, could call itself anything.
func Commands() iter.Seq2[int, []string] {
	return func(yield func(int, []string) bool) {
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			if words := Command(pid); words != nil && !yield(pid, words) {
				return
			}
		}
	}
}

// Command returns the command line of a process; nil if it is not believed.
func Command(pid int) []string {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || len(line) == 0 {
		return nil
	}
	if !startedByUs(dir) {
		return nil
	}
	own, err := ownNamespace()
	if err != nil {
		return nil
	}
	if ns, err := os.Readlink(filepath.Join(dir, "ns/pid")); err != nil || ns != own {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
}

// startedByUs tells whether this user started the process of a folder of /proc. The owner
// of the folder shows the effective user only: anybody has ours by a set-user-ID
// program, under any command line (proc_pid_status(5): real, effective, saved and file
// system's).
func startedByUs(dir string) bool {
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			own := strconv.Itoa(os.Geteuid())
			return slices.Equal(strings.Fields(ids), []string{own, own, own, own})
		}
	}
	return false
}

// ownNamespace names this process's PID namespace, which it keeps (pid_namespaces(7)).
var ownNamespace = sync.OnceValues(func() (string, error) { return os.Readlink("/proc/self/ns/pid") })

// Parent returns the parent of a process (proc_pid_stat(5)), or an error if the process is gone.
func Parent(pid int) (int, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // state, parent, …
	if len(fields) < 2 || bytes.ContainsAny(fields[0], "ZX") {
		return 0, unix.ESRCH // one that is dead has no parent any more
	}
	return strconv.Atoi(string(fields[1]))
}
