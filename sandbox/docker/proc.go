package docker

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

// Commands are the processes that are believed what their command lines say, each
// with its words: those of this user in this process's PID namespace. Anybody on this
// host, and whatever runs in a container, could call itself anything.
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

// Command is the command line of a process that is believed it; nil of others.
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

// startedByUs tells whether the process of a folder of /proc was started by this user. Who
// owns the folder has its effective rights only: anybody has ours by a set-user-ID
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

// Parent is a process's, from proc_pid_stat(5). Its error says that it is gone.
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
